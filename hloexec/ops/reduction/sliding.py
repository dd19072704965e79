"""Windows that slide along one dimension of an array, each reduced with an associative and commutative operation.

Two algorithms, chosen by sizes alone: tap by tap, in order; and windows composed of windows of 1, 2, 4, … taps, mostly
for cumulative windows, which contain all elements up to their position: rounding errors of their sums grow only with
the logarithm of the length. Nothing is ever subtracted: a sliding sum by subtraction loses small terms that were once
added to something larger.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.ir import WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.windows import output_size, part_of_windows, visits

Combination: TypeAlias = Callable[..., object]
"""`combination(x, y, out=out)` fills `out`, which may be `x`; NumPy's function where there is one."""


_LITTLE_BYTES = 1 << 12
"""In arrays of so few bytes, all taps together take less time than a call for each."""

_SHORT_LOOP, _DEEP, _MUCH_BYTES = 64, 8, 1 << 15
"""Loops of so few elements, for so many operations, of so much: to copy the array twice takes less."""


class _Form(enum.Enum):
    TRIVIAL = enum.auto()
    """The window is each element itself."""
    TAPS = enum.auto()
    DOUBLED = enum.auto()
    CUMULATIVE = enum.auto()
    CUMULATIVE_REVERSED = enum.auto()


@frozen
class Along:
    """The windows along one dimension."""

    axis: int
    extent: int
    places: int
    dimension: WindowDimension
    form: _Form

    @classmethod
    def of(cls, axis: int, extent: int, dimension: WindowDimension) -> Along:
        places = output_size(extent, dimension)
        return cls(axis, extent, places, dimension, _form(extent, places, dimension))

    @property
    def depth(self) -> int:
        """How many operations there are at most between an element and a window's result."""
        size = self.dimension.size
        return size if self.form is _Form.TAPS else 2 * size.bit_length()

    @property
    def may_be_cut(self) -> bool:
        """Whether some places can be had from some of the elements."""
        is_cumulative = self.form in (_Form.CUMULATIVE, _Form.CUMULATIVE_REVERSED)
        return not is_cumulative and self.dimension.base_dilation == 1

    def part(self, places: range) -> tuple[Along, slice]:
        """The windows at some places, and the elements that they see."""
        if len(places) == self.places:
            return self, slice(None)
        elements, dimension = part_of_windows(self.extent, places, self.dimension)
        return Along(self.axis, elements.stop - elements.start, len(places), dimension, self.form), elements

    def reduced(self, array: Array, combine: Combination, identity: Callable[[DType], Any]) -> Array:
        """The array with one element per place along the axis."""
        if self.form is _Form.TRIVIAL:
            return array
        if isinstance(combine, np.ufunc) and self._has_short_loops(array):
            rows = attrs.evolve(self, axis=0)
            found = rows.reduced(np.ascontiguousarray(np.moveaxis(array, self.axis, 0)), combine, identity)
            return np.moveaxis(found, 0, self.axis)
        if self.form in (_Form.CUMULATIVE, _Form.CUMULATIVE_REVERSED):
            return self._accumulated(array, combine)
        neutral = identity(array.dtype)
        if self.form is _Form.TAPS:
            return self._by_taps(array, combine, neutral)
        return self._doubled(self.laid_out(array, neutral), combine)

    def _has_short_loops(self, array: Array) -> bool:
        """Whether NumPy's innermost loops would go through a few elements each, of many."""
        is_last = 0 < self.axis == array.ndim - 1
        return is_last and self.extent <= _SHORT_LOOP and self.depth >= _DEEP and array.nbytes > _MUCH_BYTES

    def _by_taps(self, array: Array, combine: Combination, neutral: object) -> Array:
        if isinstance(combine, np.ufunc) and array.nbytes <= _LITTLE_BYTES:
            index = _elements_of_taps(self.extent, self.places, self.dimension)
            # NumPy adds whole rows one after the other, but not the numbers of a single row.
            if index is not None and prod(array.shape[self.axis + 1 :]) * self.places > 1:
                terms = array.take(index, self.axis)
                total: Array = combine.reduce(terms, axis=self.axis, dtype=array.dtype, initial=neutral)
                return total
        found = [visit for visit in visits(self.extent, self.places, self.dimension) if visit is not None]
        everywhere = slice(0, self.places, 1)
        if len(found) > 1 and found[1][0] == everywhere:
            # Which of two comes first makes no difference.
            found[:2] = found[1::-1]
        if not found or found[0][0] != everywhere:
            total, left = self._filled(array, self.places, neutral), found
        elif len(found) > 1 and found[1][0] == everywhere:
            first, second = (array[self._at(element)] for _, element in found[:2])
            total, left = np.empty_like(first), found[2:]
            combine(first, second, out=total)
        else:
            total, left = array[self._at(found[0][1])].copy(), found[1:]
        for place, element in left:
            part = total[self._at(place)]
            combine(part, array[self._at(element)], out=part)
        return total

    def laid_out(self, array: Array, neutral: object) -> Array:
        """What the windows see: the dilated operand cut to their reach, `neutral` where there is no element."""
        dimension = self.dimension
        reach = (self.places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
        if dimension.padding_low == 0 and dimension.base_dilation == 1 and 0 <= reach <= self.extent:
            return array[self._at(slice(reach))]
        layout = self._filled(array, reach, neutral)
        everything = WindowDimension(1, padding_low=dimension.padding_low, base_dilation=dimension.base_dilation)
        (visit,) = visits(self.extent, reach, everything)
        if visit is not None:
            layout[self._at(visit[0])] = array[self._at(visit[1])]
        return layout

    def _doubled(self, layout: Array, combine: Combination) -> Array:
        """Windows put together from windows of 1, 2, 4, … taps: about 2·log2(size) operations an element."""
        size, dilation, stride = self.dimension.size, self.dimension.window_dilation, self.dimension.stride
        places = layout.shape[self.axis] - (size - 1) * dilation
        doubled, covered = layout, 0
        total: Array | None = None
        for bit in range(size.bit_length()):
            taps = 1 << bit
            if size & taps:
                part = doubled[self._at(slice(covered * dilation, covered * dilation + places, stride))]
                if total is None:
                    total = part.copy()
                else:
                    combine(total, part, out=total)
                covered += taps
            if 2 * taps <= size:
                early = doubled[self._at(slice(None, -taps * dilation))]
                wider = np.empty_like(early)
                combine(early, doubled[self._at(slice(taps * dilation, None))], out=wider)
                doubled = wider
        assert total is not None
        return total

    def _accumulated(self, array: Array, combine: Combination) -> Array:
        """Each element combined with all before it, or with all after it where the form is reversed."""
        result, other = np.empty_like(array), np.empty_like(array)
        covered = 1
        while covered < self.extent:
            first, last = self._at(slice(None, covered)), self._at(slice(-covered, None))
            early, late = self._at(slice(None, -covered)), self._at(slice(covered, None))
            kept, combined = (first, late) if self.form is _Form.CUMULATIVE else (last, early)
            result[kept] = array[kept]
            combine(array[early], array[late], out=result[combined])
            array, result, other = result, other, result
            covered *= 2
        return array

    def _filled(self, array: Array, length: int, value: object) -> Array:
        shape = (*array.shape[: self.axis], length, *array.shape[self.axis + 1 :])
        return np.full(shape, value, array.dtype)

    def _at(self, place: slice) -> tuple[slice, ...]:
        return (*(slice(None),) * self.axis, place)


@lru_cache(maxsize=256)
def _elements_of_taps(extent: int, places: int, dimension: WindowDimension) -> Array | None:
    """The numbers of the elements `[taps, places]` that windows see; None where there are none, or too many."""
    if dimension.base_dilation > 1 or not 0 < dimension.size * places <= _LITTLE_BYTES:
        return None
    taps = np.arange(dimension.size)[:, None] * dimension.window_dilation - dimension.padding_low
    index: Array = taps + np.arange(places) * dimension.stride
    return index if index.min() >= 0 and index.max() < extent else None


def _form(extent: int, places: int, dimension: WindowDimension) -> _Form:
    if dimension == WindowDimension(size=1):
        return _Form.TRIVIAL
    if extent > 0:
        if dimension == WindowDimension(extent, padding_low=extent - 1):
            return _Form.CUMULATIVE
        if dimension == WindowDimension(extent, padding_high=extent - 1):
            return _Form.CUMULATIVE_REVERSED
    seen = (places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    is_crowded = places > 0 and dimension.size * places > 2 * dimension.size.bit_length() * seen
    return _Form.DOUBLED if is_crowded else _Form.TAPS
