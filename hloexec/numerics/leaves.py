"""The arrays of a value, by tuple index, and their elements, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from hloexec.arrays import as_array
from hloexec.dtypes import element_type_of
from hloexec.errors import InputError, warn
from hloexec.literals.pairing import pairings
from hloexec.values import WHOLE, Array, Token, index_of
from hloexec.wording import listing

__all__ = ["Pair", "blocks", "leaves_of", "relabelled"]

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


def relabelled(side: Mapping[str, Array], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """A value with the labels of another one, whose leaves have these dimensions, where it has names in place of the
    places of leaves, or flat numbers in place of nested ones, and its arrays fit in one way. A warning says which name
    is taken for which place."""
    labels, theirs = list(side), list(sizes)
    is_known = side.keys() == sizes.keys() or not all(isinstance(label, str) for label in labels)
    if is_known or len(labels) != len(theirs):
        return dict(side)
    is_flat = labels == [str(number) for number in range(len(labels))]
    has_names = not any(index_of(label) for label in labels) and WHOLE not in labels
    if not (is_flat or has_names) or any(index_of(label) is None for label in theirs):
        return dict(side)
    keys = [f"arr_{label}" for label in labels] if is_flat else labels
    ways = pairings(keys, len(keys), lambda key, leaf: np.shape(side[labels[key]]) == sizes[theirs[leaf]])
    if len(ways) != 1:
        return dict(side)
    found = {theirs[leaf]: labels[key] for leaf, key in enumerate(ways[0])}
    if has_names and len(labels) > 1:
        warn(f"results are paired by their shapes: {listing((f'{key} is {leaf}' for leaf, key in found.items()), 20)}")
    return {leaf: side[key] for leaf, key in found.items()}


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
