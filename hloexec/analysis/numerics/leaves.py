"""The arrays of a value, by tuple index, and their elements, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.arrays import as_array
from hloexec.core.dtypes import element_type_of
from hloexec.core.pytrees import branches
from hloexec.core.values import WHOLE, Array, Token, index_of
from hloexec.core.wording import listing, natural_number
from hloexec.errors import InputError, warn
from hloexec.language.literals.pairing import pairings

_DEEPEST = 10_000

Pair: TypeAlias = tuple[str, Array | None, Array | None]
"""The label of a leaf, and what each of two values has for it."""


def leaves_of(value: object, which: str) -> Iterator[tuple[str, Array]]:
    """The arrays of a value with their labels; tokens hold nothing, and neither does None within a container."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        label, current = stack.pop()
        parts = None
        if isinstance(current, Mapping):
            parts = [(key, current[key]) for key in current]
        elif current is not None or label:
            found = branches(current)
            parts = None if found is None else list(enumerate(part for _, part in found))
        if parts is not None:
            if label.count(".") > _DEEPEST:
                raise InputError(f"the {which} value nests more than {_DEEPEST} deep, or holds itself")
            stack.extend((f"{label}.{key}" if label else str(key), part) for key, part in reversed(parts))
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
    places of leaves, or flat numbers in place of nested ones or the other way round, and its arrays fit in one way. A
    warning says which name is taken for which place."""
    labels, theirs = list(side), list(sizes)
    is_known = side.keys() == sizes.keys() or not all(isinstance(label, str) for label in labels)
    if is_known or len(labels) != len(theirs):
        return dict(side)
    flat = [str(number) for number in range(len(labels))]
    places = [index_of(label) for label in labels]
    is_flat = flat in (labels, theirs) and None not in places
    # Of a tuple, the places of items that hold names are its own, not those of leaves.
    is_tree = None in places and all(natural_number(label.partition(".")[0]) is not None for label in labels)
    has_names = (not any(places) or is_tree) and WHOLE not in labels
    if not (is_flat or has_names) or any(index_of(label) is None for label in theirs):
        return dict(side)
    labels = sorted(labels, key=index_of) if is_flat else labels  # type: ignore[arg-type]
    keys = [f"arr_{number}" if is_flat else _sortable(label) for number, label in enumerate(labels)]
    ways = pairings(keys, len(keys), lambda key, leaf: np.shape(side[labels[key]]) == sizes[theirs[leaf]])
    if len(ways) != 1:
        return dict(side)
    found = {theirs[leaf]: labels[key] for leaf, key in enumerate(ways[0])}
    if has_names and len(labels) > 1:
        warn(f"results are paired by their shapes: {listing((f'{key} is {leaf}' for leaf, key in found.items()), 20)}")
    return {leaf: side[key] for leaf, key in found.items()}


def _sortable(label: str) -> str:
    """A label whose numbers are sorted as numbers."""
    return ".".join(part.rjust(20, "0") if natural_number(part) is not None else part for part in label.split("."))


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
