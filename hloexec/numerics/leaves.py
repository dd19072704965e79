"""The arrays of a value, by tuple index, and their elements, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from hloexec.arrays import as_array
from hloexec.dtypes import element_type_of
from hloexec.errors import InputError
from hloexec.values import Array, Token

__all__ = ["Pair", "blocks", "leaves_of"]

Pair: TypeAlias = tuple[str, Array | None, Array | None]
"""The label of a leaf, and what each of two values has for it."""


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
        array = as_array(value)
        element_type_of(array.dtype)
    except InputError as error:
        raise InputError(f"{what}: {error.message}") from error
    except KeyError:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{what} is not an array of an HLO element type, but {kind}") from None
    return array


def blocks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The elements of arrays of one shape in logical order, in contiguous one-dimensional pieces of so many at most."""
    if all(array.flags.c_contiguous for array in arrays):
        flat = [array.reshape(-1) for array in arrays]
        for start in range(0, flat[0].size, size):
            yield tuple(array[start : start + size] for array in flat)
        return
    # nditer's buffering does not know ml_dtypes' types; their bits it does.
    bits = [array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}") for array in arrays]
    pieces = np.nditer(bits, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size)
    for _ in pieces:
        yield tuple(np.ascontiguousarray(pieces[k]).view(array.dtype) for k, array in enumerate(arrays))
