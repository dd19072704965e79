"""Elementwise functions of values whose last dimension is short: by columns where NumPy's loops would be that short.

Where an operand repeats elements along one of the last dimensions, NumPy cannot go through all of a block in one loop:
it starts one for each row, which takes longer than three or four elements do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.values import Array

__all__ = ["by_columns", "has_short_rows"]

_SHORT = 4
_MOST_COLUMNS = 64
_LEAST_ROWS = 1 << 10
"""Fewer do not outweigh the calls."""


def has_short_rows(row: tuple[int, ...]) -> bool:
    """Whether a row of these dimensions is worth looking at."""
    return bool(row) and 1 < row[-1] <= _SHORT and int(np.prod(row)) <= _MOST_COLUMNS


def by_columns(function: np.ufunc) -> Any:
    """The function of operands and of the array to fill, of blocks whose rows are short; operands of one element stand
    for all."""

    def compute(*arrays: Array) -> None:
        out = arrays[-1]
        if len(out) < _LEAST_ROWS or all(array.size == 1 or array.flags.c_contiguous for array in arrays):
            function(*arrays)
            return
        for column in np.ndindex(out.shape[1:]):
            function(*(array if array.size == 1 else array[:, *column] for array in arrays))

    return compute
