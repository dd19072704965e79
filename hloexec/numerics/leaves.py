"""The arrays that a value holds, by their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.errors import InputError
from hloexec.values import Array, Token

__all__ = ["leaves_of"]


def leaves_of(value: object, which: str) -> Iterator[tuple[str, Array]]:
    """The arrays of a value with their labels; tokens hold nothing."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        label, current = stack.pop()
        if isinstance(current, Mapping):
            stack.extend((f"{label}.{key}" if label else str(key), current[key]) for key in reversed(list(current)))
        elif isinstance(current, (tuple, list)):
            for number in reversed(range(len(current))):
                stack.append((f"{label}.{number}" if label else str(number), current[number]))
        elif not isinstance(current, Token):
            yield label or "value", _array(current, f"leaf {label}" if label else f"the {which} value")


def _array(value: object, what: str) -> Array:
    """A leaf as an array of a type that HLO has; JAX's and PyTorch's arrays are taken, too."""
    try:
        array = np.asarray(value)
        element_type_of(array.dtype)
    except (KeyError, TypeError, ValueError, RuntimeError):
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{what} is no array of an element type that HLO has, but {kind}") from None
    return array
