"""Reading the `backend_config` of library calls.

XLA:GPU writes a protocol buffer as JSON: today `{"gemm_backend_config":{…},"operation_queue_id":"0",…}`, in older
dumps the inner object alone, as a quoted string. Numbers may be strings (protocol buffers write 64-bit integers so),
words are the names of enumerations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from hloexec.errors import UnsupportedError

__all__ = ["backend_config_field", "checked_json"]


@lru_cache(maxsize=1024)
def backend_config_field(backend_config: str | None, field: str) -> dict[str, Any]:
    """The object `field` of a GPU backend config, or the whole object where it has no such field (the older spelling).

    UnsupportedError says what is wrong with a config that is not an object of JSON. The result must not be modified.
    """
    if backend_config is None:
        raise UnsupportedError(f"it has no backend_config, but {field} says what to compute")
    try:
        whole = json.loads(backend_config)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"its backend_config is not JSON ({error})") from None
    found = whole.get(field, whole) if isinstance(whole, dict) else None
    if not isinstance(found, dict):
        raise UnsupportedError(f"its backend_config must be a JSON object with {field}, but is {backend_config[:80]!r}")
    return found


def checked_json(
    backend_config: str | None, permitted: Mapping[str, Collection[Any] | Callable[[Any], bool]]
) -> dict[str, Any]:
    """A protocol buffer as JSON, each field of which must be known and hold a permitted value; any may be left out.

    `permitted` gives for each name the values, or a function that knows them. UnsupportedError names what does not fit.
    """
    try:
        found = json.loads(backend_config or "")
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"its backend_config is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UnsupportedError(f"its backend_config must be a JSON object, but is {found!r}")
    for name, value in found.items():
        if name not in permitted:
            raise UnsupportedError(f"its backend_config has the field {name}, which hloexec does not know")
        values = permitted[name]
        if not (values(value) if callable(values) else value in values):
            raise UnsupportedError(f"{name} of its backend_config is {value!r}, which hloexec does not support")
    return found
