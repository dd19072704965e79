"""The exact numbers of an array, by ranges of its elements, for what computes block by block.

A block is converted to f64 when it is asked for; what a broadcast repeats is converted once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.common import row_major
from hloexec.tools.shadowing.store import Shadow, wide

BLOCK = 1 << 15
"""Elements that are computed together: several f64 arrays of so many stay in the cache, and each is small enough for
the allocator to hand out the same memory again."""
_LONGEST = 1 << 16
"""Elements of a row that is kept in f64 for all blocks."""

Ranges = Callable[[int, int], Array]
"""The exact numbers of the flat array from one place to another, at most `BLOCK` of them; where all are the same, one
alone."""


def exact_ranges(array: Array, shadow: Shadow | None) -> Ranges:
    """The exact numbers of an array that has this shadow."""
    data = None if shadow is None else shadow.data
    is_whole = shadow is not None and shadow.is_whole
    if array.size > 1 and 0 in array.strides:
        found = _repeating(array, data, is_whole)
        if found is not None:
            return found
    flat, kept = flattened(array), None if data is None else flattened(data)
    if flat.size == 1 and (kept is None or kept.size == 1):
        return partial(_same, _exact(flat, kept, is_whole))

    def exact(start: int, stop: int) -> Array:
        where = slice(start, stop)
        return _exact(
            flat if flat.size == 1 else flat[where],
            None if kept is None else kept if kept.size == 1 else kept[where],
            is_whole,
        )

    return exact


def _repeating(array: Array, data: Array | None, is_whole: bool) -> Ranges | None:
    """Those of what a broadcast has made of a smaller array, by adding dimensions before its own or behind them; None
    of other arrays."""
    repeats = [not stride for stride in array.strides]
    if data is not None:
        repeats = [ours and not stride for ours, stride in zip(repeats, data.strides, strict=True)]
    kinds = [repeat for repeat, size in zip(repeats, array.shape, strict=True) if size > 1]
    where = tuple(slice(1) if repeat else slice(None) for repeat in repeats)
    is_leading, is_trailing = kinds == sorted(kinds, reverse=True), kinds == sorted(kinds)
    if not any(kinds) or not (is_leading or is_trailing):
        return None
    compact = _exact(array[where].reshape(-1), None if data is None else data[where].reshape(-1), is_whole)
    if compact.size == 1:
        return partial(_same, compact)
    if is_trailing:
        return partial(_repeated, compact, array.size // compact.size)
    return partial(_tiled, np.resize(compact, BLOCK + compact.size), compact.size) if compact.size <= _LONGEST else None


def _same(number: Array, start: int, stop: int) -> Array:
    return number


def _tiled(row: Array, period: int, start: int, stop: int) -> Array:
    first = start % period
    return row[first : first + stop - start]


def _repeated(compact: Array, times: int, start: int, stop: int) -> Array:
    first, last = start // times, -(-stop // times)
    if times < BLOCK:
        return compact[first:last].repeat(times)[start - first * times : stop - first * times]
    found = np.empty(stop - start, compact.dtype)
    for number in range(first, last):
        found[max(0, number * times - start) : (number + 1) * times - start] = compact[number]
    return found


def flattened(array: Array) -> Array:
    """The elements in one dimension; a single one where all are the same in memory."""
    if not any(array.strides) and array.size:
        return array[(slice(1),) * array.ndim].reshape(-1)
    return row_by_row(array)


def row_by_row(array: Array) -> Array:
    """All elements in one dimension."""
    return (array if array.flags.c_contiguous else row_major(array)).reshape(-1)


def _exact(block: Array, data: Array | None, is_whole: bool) -> Array:
    if data is None:
        return wide(block)
    return data if is_whole else summed(block, data)


def summed(block: Array, data: Array) -> Array:
    """Elements and their differences added up, in f64 (c128)."""
    numbers = wide(block)
    # Converted first: NumPy would do so in pieces, through buffers, which takes it twice as long.
    data = data.astype(numbers.dtype, copy=False)
    if numbers.dtype == block.dtype or data.size > numbers.size:
        return np.asarray(numbers + data)
    numbers += data
    return numbers
