"""Parsing the `backend_config` of library calls.

XLA:GPU writes a protocol buffer as JSON: currently `{"gemm_backend_config":{…},"operation_queue_id":"0",…}`, in older
dumps only the inner object, as a quoted string. What JSON of protocol buffers may say in several ways is one thing
here: fields have the names of the `.proto` files, which older dumps write in lowerCamelCase; numbers may be strings
(the JSON form of 64-bit integers); enumerators are names or numbers; and zeros are omitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hloexec.core.ir import Instruction
from hloexec.core.structs import frozen
from hloexec.core.wording import natural_number, quoted
from hloexec.errors import UnsupportedError

_CAMEL_CASE = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")


def json_object(backend_config: str) -> dict[str, Any]:
    """A config as an object of JSON, its fields in snake_case; UnsupportedError says why one is none."""
    try:
        found = json.loads(backend_config, object_pairs_hook=_in_snake_case)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"its backend_config is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UnsupportedError(f"its backend_config must be a JSON object, but is {quoted(backend_config)}")
    return found


def _in_snake_case(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names of fields are those of `.proto` files: conv_result_scale, where it says convResultScale."""
    found: dict[str, Any] = {}
    for said, value in pairs:
        name = re.sub("[A-Z]", r"_\g<0>", said).lower() if _CAMEL_CASE.fullmatch(said) else said
        if name in found:
            raise UnsupportedError(f"its backend_config gives {name} twice")
        found[name] = value
    return found


def enumerator(value: object, words: Sequence[str]) -> str:
    """A member of an enumeration as a word, where it may be a number: that of its place among `words`."""
    number = natural_number(str(value))
    return words[number] if number is not None and number < len(words) else str(value)


@lru_cache(maxsize=1024)
def backend_config_field(backend_config: str | None, field: str) -> dict[str, Any]:
    """The object `field` of a GPU backend config, or the whole object where it has no such field (the older spelling).

    UnsupportedError says what is wrong with a config that is not an object of JSON. The result must not be modified.
    """
    if backend_config is None:
        raise UnsupportedError(f"it has no backend_config, but {field} says what to compute")
    whole = json_object(backend_config)
    found = whole.get(field, whole)
    if not isinstance(found, dict):
        raise UnsupportedError(f"{field} of its backend_config must be a JSON object, but is {found!r}")
    return found


def checked_json(
    backend_config: str | None, permitted: Mapping[str, Collection[Any] | Callable[[Any], bool]]
) -> dict[str, Any]:
    """A protocol buffer as JSON, each field of which must be known and hold a permitted value; any may be left out.

    `permitted` gives for each name the values, or a function that knows them. UnsupportedError names what does not fit.
    """
    found = json_object(backend_config or "")
    known_fields(found, permitted)
    for name, value in found.items():
        values = permitted[name]
        if not (values(value) if callable(values) else value in values):
            raise UnsupportedError(f"{name} of its backend_config is {value!r}, which hloexec does not support")
    return found


@frozen
class Fields:
    """One object of a config; UnsupportedError where a field is not of the kind that is asked for."""

    values: Mapping[str, Any]

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.values.get(name, default)
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a number, but is {value!r}") from None

    def whole(self, name: str) -> int:
        value = self.number(name)
        if not value.is_integer():
            raise UnsupportedError(f"{name} of its backend_config must be a whole number, but is {value}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise UnsupportedError(f"{name} of its backend_config must be true or false, but is {value!r}")
        return value

    def word(self, name: str, words: Sequence[str]) -> str:
        """A member of an enumeration, by its name or its number; the first one where the field is left out."""
        value = enumerator(self.values.get(name, words[0]), words)
        if value not in words:
            raise UnsupportedError(f"{name} of its backend_config is {value!r}; known are {', '.join(words)}")
        return value

    def object(self, name: str, default: Mapping[str, Any] | None = None) -> Fields:
        """An object inside this one."""
        value = self.values.get(name, default)
        if not isinstance(value, dict):
            raise UnsupportedError(f"{name} of its backend_config must be an object, but is {value!r}")
        return Fields(value)

    def whole_list(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name, [])
        try:
            if isinstance(value, str):
                raise TypeError
            return tuple(int(item) for item in value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a list of whole numbers") from None


def known_fields(values: Mapping[str, Any], known: Collection[str], field: str = "backend_config") -> Fields:
    """The fields of an object; UnsupportedError names one that is not among those `known`."""
    for name in values:
        if name not in known:
            raise UnsupportedError(f"its {field} has the field {name}, which hloexec does not know")
    return Fields(values)


def read_fields(instruction: Instruction, field: str, known: Collection[str]) -> Fields:
    """The fields of the object `field` of a call's config, all of them `known`."""
    return known_fields(backend_config_field(instruction.backend_config, field), known, field)
