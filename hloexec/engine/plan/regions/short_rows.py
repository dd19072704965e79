"""Regions of short rows: where NumPy's loops would be as short, blocks are computed by columns.

Where an operand repeats elements along one of the last dimensions, NumPy cannot go through all of a block in one loop:
it starts one for each row, which takes longer than three or four elements do. In regions that have many such functions,
the values of a block lie in memory column by column, so that each loop goes through all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from hloexec.core.dtypes import DType
from hloexec.core.values import Array

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
