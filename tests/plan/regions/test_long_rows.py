"""Functions that read a number for each of many long rows, or one row for all of them: NumPy's bits, and its state."""

from __future__ import annotations

import numpy as np
import pytest

from hloexec.engine.plan.regions.long_rows import row_by_row

_SPECIAL = np.array(
    [0, 1 << 31, 0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 1, 0x3F800000, 0x40490FDB], np.uint32
).view(np.float32)
"""Zeros, NaNs of two kinds, infinities and numbers."""


@pytest.mark.parametrize("length", [512, 643, 4096])
@pytest.mark.parametrize("function", [np.add, np.subtract, np.multiply, np.divide], ids=lambda each: each.__name__)
def test_rows_that_are_computed_one_by_one_have_the_bits_of_all(function: np.ufunc, length: int) -> None:
    random = np.random.default_rng(length)
    rows = random.choice(_SPECIAL, (64, length))
    row = np.broadcast_to(random.choice(_SPECIAL, length), rows.shape)
    numbers = [random.choice(_SPECIAL, (64, 1)), random.standard_normal((64, 1)).astype(np.float32)]
    with np.errstate(all="ignore"):
        for repeated in (row, *(np.broadcast_to(number, rows.shape) for number in numbers)):
            for operands in ((rows, repeated), (repeated, rows), (repeated, row)):
                expected, value = np.empty_like(rows), np.empty_like(rows)
                function(*operands, expected)
                row_by_row(function)(*operands, value)
                assert value.tobytes() == expected.tobytes()


def test_the_callers_buffer_stays_as_it_is() -> None:
    rows = np.ones((64, 600), np.float32)
    before = np.getbufsize()
    row_by_row(np.divide)(rows, np.broadcast_to(rows[0], rows.shape), np.empty_like(rows))
    with pytest.raises(ValueError, match="broadcast"):
        row_by_row(np.divide)(rows, np.broadcast_to(rows[:1, :1], (64, 500)), np.empty_like(rows))
    assert np.getbufsize() == before
