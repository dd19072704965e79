"""Columns: parts of an array that are bounded each by itself, such as the components of index vectors.

The element at place f in row-major order is in column `f // stride % count`. A reshape leaves that as it is. Rules of
opcodes say which columns of an operand become which columns of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from hloexec.structs import frozen

__all__ = ["MOST_COLUMNS", "Columns", "Ends", "stride_of", "tightest"]

Ends: TypeAlias = tuple[float, float]
"""The lowest and the highest number of a column."""

MOST_COLUMNS = 16
"""Arrays with more positions along a dimension are not told apart by position."""


@frozen(cache_hash=True)
class Columns:
    """The ends of each column, and how far in row-major order the columns are from each other."""

    stride: int
    ends: tuple[Ends, ...]

    @property
    def count(self) -> int:
        return len(self.ends)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether an array of these sizes consists of whole rows of columns."""
        return math.prod(sizes) % (self.stride * self.count) == 0

    def axis(self, sizes: Sequence[int]) -> int | None:
        """The dimension of an array of these sizes that tells the columns apart; None where it takes several."""
        for axis, size in enumerate(sizes):
            stride = stride_of(sizes, axis)
            if stride and self.stride % stride == 0 and stride * size % (self.stride * self.count) == 0:
                return axis
        return None

    def moved(self, sizes: Sequence[int], to_sizes: Sequence[int], to_axis: int) -> Columns | None:
        """The same columns in an array of other sizes, where the dimension that tells them apart is `to_axis`."""
        axis = self.axis(sizes)
        if axis is None or sizes[axis] != to_sizes[to_axis]:
            return None
        return Columns(self.stride // stride_of(sizes, axis) * stride_of(to_sizes, to_axis), self.ends)

    def along(self, sizes: Sequence[int], axis: int) -> tuple[Ends, ...]:
        """The ends at each position of the dimension that tells the columns apart."""
        stride = stride_of(sizes, axis)
        return tuple(self.ends[place * stride // self.stride % self.count] for place in range(sizes[axis]))


def stride_of(sizes: Sequence[int], axis: int) -> int:
    """How many elements of a row-major array lie between neighbours along a dimension."""
    return math.prod(sizes[axis + 1 :])


def tightest(ends: Sequence[Ends]) -> Ends:
    """What lies within the ends of every column in which there is a choice; of the first where nothing does."""
    free = [pair for pair in ends if pair[0] < pair[1]] or ends
    low, high = max(pair[0] for pair in free), min(pair[1] for pair in free)
    return (low, high) if low <= high else free[0]
