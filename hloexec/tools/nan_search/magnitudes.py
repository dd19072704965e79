"""The range of a value, and whether it is finite: what a search keeps of every value it has seen."""

from __future__ import annotations

import math

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array

_BLOCK = 1 << 18


@frozen
class Range:
    """The least and the greatest element of an array, NaN left out; of complex numbers those of both parts."""

    low: float
    """Infinite where there is nothing but NaN, as `high` is, with the opposite sign."""
    high: float
    has_nan: bool

    @property
    def has_infinity(self) -> bool:
        return self.low <= self.high and (math.isinf(self.low) or math.isinf(self.high))

    @property
    def is_finite(self) -> bool:
        return not self.has_nan and not self.has_infinity

    @property
    def magnitude(self) -> float:
        """The greatest absolute value; infinite where there is NaN."""
        return float("inf") if self.has_nan else max(abs(self.low), abs(self.high))

    @property
    def least(self) -> float:
        """A bound below the absolute values: 0 where the range has 0 in it."""
        return 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))


def range_of(array: Array) -> Range | None:
    """The range of an array of floats or complex numbers; None for other types and where there are no elements.

    Where everything is finite, as it nearly always is, an array is read twice and nothing is copied but blocks of
    narrow types.
    """
    its_type = element_type_of(array.dtype)
    if not array.size or not its_type.is_inexact:
        return None
    if not its_type.is_narrow and not its_type.is_complex:
        return _range(array)
    flat = array.reshape(-1)  # a copy where strides say so
    if its_type.is_complex:
        return _joined([_range(flat.real), _range(flat.imag)])
    return _joined([_range(flat[start : start + _BLOCK].astype(np.float32)) for start in range(0, flat.size, _BLOCK)])


def _range(array: Array) -> Range:
    with np.errstate(all="ignore"):
        low, high = float(array.min()), float(array.max())
        if low <= high:
            return Range(low, high, False)
        rest = array[~np.isnan(array)]
        if not rest.size:
            return Range(math.inf, -math.inf, True)
        return Range(float(rest.min()), float(rest.max()), True)


def _joined(parts: list[Range]) -> Range:
    return Range(min(part.low for part in parts), max(part.high for part in parts), any(part.has_nan for part in parts))
