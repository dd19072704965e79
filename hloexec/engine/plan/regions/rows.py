"""The rows of the operands of a region, and regions of long and of short rows.

Regions of long rows: functions that read a number for each row, or one row for all of them. NumPy goes through several
rows in one loop, as many as its buffer holds, and copies what it reads into the buffer if it does not lie there like
that. From rows of some hundred elements on, a loop for each row takes half the time.

Regions of short rows: where NumPy's loops would be as short, blocks are computed by columns. Where an operand repeats
elements along one of the last dimensions, NumPy cannot go through all of a block in one loop: it starts one for each
row, which takes longer than three or four elements do. In regions that have many such functions, the values of a block
lie in memory column by column, so that each loop goes through all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.values import Array
from hloexec.ops.common import copy_into, lies_in_order, strided


class Rows:
    """The rows of an array whose first dimensions, `length` of them, make `rows`; copies unless they lie in row-major
    order."""

    def __init__(self, array: Array, length: int, rows: int) -> None:
        self._length = length
        self._is_transposed = not (array.flags.c_contiguous or lies_in_order(array))
        if length > 1:
            merged = _merged(array, length, rows)
            if merged is not None:
                array, self._length = merged, 1
        self._array = array

    def part(self, start: int, stop: int) -> Array:
        part = self._array[start:stop] if self._length == 1 else _gathered(self._array, self._length, start, stop)
        return _in_order(part) if self._is_transposed else part


def _merged(array: Array, length: int, rows: int) -> Array | None:
    """The array with its first dimensions merged into one, where that is a view."""
    sizes = (rows, *array.shape[length:])
    if array.flags.c_contiguous:
        return array.reshape(sizes)
    expected = None
    stride = 0
    for size, step in zip(reversed(array.shape[:length]), reversed(array.strides[:length]), strict=True):
        if size == 1:
            continue
        if expected is None:
            stride = step
        elif step != expected:
            return None
        expected = step * size
    return strided(array, sizes, (stride, *array.strides[length:]))


def _gathered(array: Array, length: int, start: int, stop: int) -> Array:
    """Some rows of an array whose first dimensions are its prefix; a copy where they cannot be merged."""
    while length > 1:
        inner = prod(array.shape[1:length])
        first, last = start // inner, (stop - 1) // inner
        if first < last:
            break
        array, length, start, stop = array[first], length - 1, start - first * inner, stop - first * inner
    if length == 1:
        return array[start:stop]
    if inner > stop - start:
        # Two indices of the first dimension share the rows.
        middle = last * inner
        return np.concatenate([_gathered(array, length, start, middle), _gathered(array, length, middle, stop)])
    whole = array[first : last + 1].reshape(((last + 1 - first) * inner, *array.shape[length:]))
    return whole[start - first * inner : stop - first * inner]


def _in_order(block: Array) -> Array:
    """A copy in row-major order."""
    result = np.empty(block.shape, block.dtype)
    copy_into(result, block)
    return result


_LONG = 512
_BUFFER = 8192
"""What NumPy's buffer holds, unless told otherwise: of longer rows it copies nothing."""
_LEAST_ELEMENTS = 1 << 15
"""Fewer are not worth another buffer."""
_COMMUTATIVE = (np.add, np.multiply)
_WHOLE_REGISTERS = 32
"""Elements of two registers, of which NumPy's loops compute a multiple before the rest."""


def has_long_rows(row: tuple[int, ...]) -> bool:
    """Whether a row of these dimensions is worth looking at."""
    return bool(row) and _LONG <= row[-1] < _BUFFER


def row_by_row(function: np.ufunc) -> Any:
    """The function, which must be one that IEEE 754 defines, of operands and of the array to fill."""

    def compute(*arrays: Array) -> None:
        if arrays[-1].size < _LEAST_ELEMENTS or not _gains(function, arrays):
            function(*arrays)
            return
        size = np.setbufsize(_LONG)
        try:
            function(*arrays)
        finally:
            np.setbufsize(size)

    return compute


def _gains(function: np.ufunc, arrays: tuple[Array, ...]) -> bool:
    repeated = [array for array in arrays if array.size > 1 and 0 in array.strides]
    if not repeated or function not in _COMMUTATIVE:
        return bool(repeated)
    # Which of two NaNs a sum is depends on NumPy's loop: that for a number and a row, and what remains at the end of a
    # row, may choose another one than the loop for two rows.
    numbers = [array[..., 0] for array in repeated if not array.strides[-1]]
    if numbers:
        return not any(np.isnan(column).any() for column in numbers)
    return not arrays[-1].shape[-1] % _WHOLE_REGISTERS


_SHORT = 4
_MOST_COLUMNS = 64
_LEAST_ROWS = 1 << 10
"""Fewer do not outweigh the calls."""


def has_short_rows(row: tuple[int, ...]) -> bool:
    """Whether a row of these dimensions is worth looking at."""
    return bool(row) and 1 < row[-1] <= _SHORT and prod(row) <= _MOST_COLUMNS


def has_few_columns(rows: int, dimensions: Iterable[tuple[int, ...]]) -> bool:
    """Whether values of so many rows of these dimensions may lie column by column."""
    return rows >= _LEAST_ROWS and all(prod(row) <= _MOST_COLUMNS for row in dimensions)


def laid_in_columns(memory: Array, count: int, row: tuple[int, ...], dtype: DType) -> Array:
    """`[count, row...]` in memory that holds one column after the other."""
    return _rows_first(memory.view(dtype).reshape((*row, count)))


def in_columns(block: Array) -> Array:
    """The block, or a copy that lies column by column where its rows lie one after the other."""
    columns = _rows_last(block)
    if block.ndim == 1 or not any(block.strides[1:]) or block.strides[0] <= block.itemsize:
        return block
    return _rows_first(_copied(columns))


def spread_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of operands none of which repeats elements, but those of one: where it is approximated, NumPy may
    round otherwise on an element that its loop repeats."""
    return lambda *arrays: function(*map(_without_repetition, arrays))


def _without_repetition(block: Array) -> Array:
    if block.size == 1 or all(stride or size == 1 for size, stride in zip(block.shape, block.strides, strict=True)):
        return block
    return _rows_first(_copied(_rows_last(block)))


def _rows_first(columns: Array) -> Array:
    return columns.transpose(columns.ndim - 1, *range(columns.ndim - 1))


def _rows_last(block: Array) -> Array:
    return block.transpose(*range(1, block.ndim), 0)


def _copied(array: Array) -> Array:
    """A copy in row-major order; NumPy moves plain integers faster than types that are not its own."""
    return array.view(f"u{array.itemsize}").copy().view(array.dtype) if array.itemsize <= 8 else array.copy()
