"""Views as data: the index that makes one of an array, which passes of a plan compose and generated Python writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array


@frozen
class Indexing:
    """The kernel operand[index], a view: of slices, integers where a dimension of one element goes, None where one
    comes."""

    index: tuple[Any, ...]

    def __call__(self, operand: Array) -> Array:
        result: Array = operand[self.index]
        return result


@frozen
class Spreading:
    """The kernel that repeats operand[fill] along dimensions of one element."""

    fill: tuple[Any, ...]
    """What makes the operand's dimensions those of the result, or of one element."""
    sizes: tuple[int, ...]
    is_copied: bool

    def __call__(self, operand: Array) -> Array:
        if not self.is_copied:
            return np.broadcast_to(operand[self.fill], self.sizes)
        result = np.empty(self.sizes, operand.dtype)
        result[...] = operand[self.fill]
        return result


def without_units(sizes: tuple[int, ...], others: tuple[int, ...]) -> tuple[Any, ...]:
    """The index that gives an array of some sizes others that differ in dimensions of one element only."""
    index: list[Any] = []
    place = 0
    for size in others:
        while place < len(sizes) and sizes[place] == 1 and size != 1:
            index.append(0)
            place += 1
        if place < len(sizes) and sizes[place] == size:
            index.append(slice(None))
            place += 1
        else:
            index.append(None)
    index += [0] * (len(sizes) - place)
    # A last `...` keeps an array where all dimensions go.
    return tuple(index) if slice(None) in index or None in index else (*index, ...)
