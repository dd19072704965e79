"""Regions of long rows: functions that read a number for each row, or one row for all of them.

NumPy goes through several rows in one loop, as many as its buffer holds, and copies what it reads into the buffer if it
does not lie there like that. From rows of some hundred elements on, a loop for each row takes half the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.values import Array

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
        return not any(np.isnan(each).any() for each in numbers)
    return not arrays[-1].shape[-1] % _WHOLE_REGISTERS
