"""Sums, and whatever else is not elementwise, under the `random-rounding:SEED` policy: see `policies.random_rounding`.

Results for the operands of several devices are found together: errors of many small arrays take less time in one call.
They have the bits that each has alone, as errors depend on the elements of one array and on their places in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import widen
from hloexec.ops.policies import chance
from hloexec.ops.policies.narrow_sums import added_stepwise
from hloexec.ops.rounding import Rounding, Summation

_EVEN = 4
"""If one operand of a product is this many times larger than the other, errors of sums are applied to the smaller."""
_LARGEST_WHOLE = 2.0**24
"""Whole numbers that are smaller are added without errors, in every type that sums are accumulated in."""


@frozen(eq=False)
class RandomSums:
    """A kernel that makes sums, or what is treated as such."""

    kernel: Callable[..., Any]
    """Elementwise, from operands in f64 (c128) to a result in that type; of sums along dimensions, in the types that
    they are accumulated in; as declared otherwise."""
    rounding: Rounding
    shape: Shape
    summation: Summation
    name: str
    """The opcode, or the library call."""
    number: int = 0
    """Of the product, where a contraction adds up several."""
    even_type: ElementType | None = None
    """What even seeds round elements to, where odd ones keep those of a wider type: see `excess.widest_shape`."""

    @property
    def key(self) -> Any:
        """What makes hashes those of this kernel, under the run's seed."""
        return chance.key_of(self.name) + 1024 * self.number

    @property
    def keeps_types(self) -> bool:
        """Whether the kernel is given operands as declared, and not in the types that they are added up in."""
        return self.rounding is not Rounding.SUM or self.summation.is_stepwise

    def rounded_type(self, shape: ArrayShape) -> ElementType:
        """The type that the elements of a result of this shape are rounded to."""
        return shape.element_type if self.even_type is None or chance.has_odd_seed() else self.even_type

    def rounded_sums(self, given: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of several lists of operands."""
        sums = self.summation
        is_narrow = self._is_narrow(given[0])
        if sums.along and not is_narrow:
            return self._results([self.kernel(*operands) for operands in self._walked(given)], self.shape, 0.0)
        may_be_exact = self.rounding is Rounding.SUM and not (sums.is_product or sums.transformed)
        exact = {may_be_exact and self._adds_exactly(operands) for operands in given}
        if len(exact) > 1 or (sums.transformed and len(given) > 1):
            return chance.one_by_one(lambda operands: self.rounded_sums([operands])[0], given)
        terms = sums.narrow_steps if is_narrow else sums.terms
        amplitudes = (0.0, 0.0) if exact == {True} else (math.sqrt(terms / 6), math.sqrt(terms / 3))
        columns = [
            self._noisy(column, amplitudes[0], 16 + number) if isinstance(column[0], np.ndarray) else column
            for number, column in enumerate(zip(*given, strict=True))
        ]
        entry = element_type_of(given[0][0].dtype)
        may_lose = is_narrow and chance.has_odd_seed() and sums.along and len(columns) == 2 and entry.bits == 16
        totals = []
        for noisy in zip(*columns, strict=True):
            total = self.kernel(*noisy)
            if may_lose and noisy[0].size:
                stepwise = noisy[1] + added_stepwise(noisy[0], sums.along[0], entry)
                total = np.where(np.isfinite(stepwise), stepwise, total)
            totals.append(total)
        return self._results(totals, self.shape, amplitudes[1])

    def _is_narrow(self, operands: Sequence[object]) -> bool:
        """Whether partial sums may be rounded to a narrow type."""
        entries = [element_type_of(operand.dtype) for operand in operands if isinstance(operand, np.ndarray)]
        return self.summation.narrow_steps > 0 and any(entry.is_narrow and entry.is_floating for entry in entries)

    def _adds_exactly(self, operands: Sequence[object]) -> bool:
        """Whether all that is added is whole numbers, so few and small that no partial sum is rounded."""
        arrays = [operand for operand in operands if isinstance(operand, np.ndarray) and operand.size]
        if any(array.dtype.kind == "c" for array in arrays):
            return False
        largest = math.prod(map(_largest_whole, arrays))
        entries = [element_type_of(array.dtype) for array in arrays]
        kept = min((entry.mantissa_bits for entry in entries if entry.is_floating), default=0)
        is_stepwise = self.summation.is_stepwise or self._is_narrow(operands)
        limit = 2.0 ** (kept + 1) if is_stepwise else _LARGEST_WHOLE
        return largest * self.summation.terms < limit

    def _noisy(self, column: Sequence[Array], amplitude: float, number: int) -> Sequence[Array]:
        """Operands with independent errors, in the type that they are added up in."""
        entry = element_type_of(column[0].dtype)
        to = entry if self.keeps_types else accumulated_type(entry)
        if self.summation.transformed:
            amplitudes = [math.sqrt(terms / 6) for terms in self.summation.transformed]
            unit = self._of_units(1.0, entry)
            return [
                chance.with_errors_along(operand, [unit * each for each in amplitudes], self.key + number)
                for operand in column
            ]
        if not entry.is_inexact or not amplitude:
            return column if self.keeps_types else [chance.accumulated(operand) for operand in column]
        return self._with_errors(column, self._of_units(amplitude, entry), to, self.key + number)

    def _with_errors(self, column: Sequence[Array], amplitude: float, entry: ElementType, key: int) -> Sequence[Array]:
        """Arrays of one shape, each with the errors that it has alone."""
        together = stacked(column)
        is_one = together is column[0]
        found = chance.with_errors(together, amplitude, entry, key, count=1 if is_one else len(column))
        return [found] * len(column) if is_one else parted(found, len(column))

    def _of_units(self, amplitude: float, entry: ElementType) -> float:
        """So many units of roundoff of the type in which partial sums of numbers of a type are rounded."""
        is_stepwise = self.summation.is_stepwise or (self.summation.narrow_steps > 0 and entry.is_narrow)
        return amplitude * unit_roundoff(entry if is_stepwise else element_type_of(entry.accumulate))

    def _walked(self, given: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Lists of operands with the errors that adding them, or products of them, leaves in the sums."""
        shares, exact = self._error_shares(given[0])
        if any(self._error_shares(operands) != (shares, exact) for operands in given[1:]):
            return chance.one_by_one(lambda operands: self._walked([operands])[0], given)
        columns = [
            self._walked_column(column, place, shares[place], exact)
            if place in shares
            else [chance.accumulated(operand) for operand in column]
            for place, column in enumerate(zip(*given, strict=True))
        ]
        return list(zip(*columns, strict=True))

    def _walked_column(self, column: Sequence[Array], place: int, share: float, exact: float) -> Sequence[Array]:
        """Arrays of one shape, each with the random walks that it has alone."""
        along, key = self.summation.along[place], self.key + 16 + place
        together = stacked(column)
        if together is column[0] or not together.size:
            return [chance.walked(column[0], along, share, key, exact)] * len(column)
        walked = chance.walked(together, [dimension + 1 for dimension in along], share, key, exact)
        return parted(walked, len(column))

    def _error_shares(self, operands: Sequence[Array]) -> tuple[dict[int, float], float]:
        """Which share of the errors of sums each operand takes, by its place, and up to which number whole sums have
        none.

        Both operands of a product take half of the errors' squares each; but where one is much smaller, or mostly
        zeros, that one takes them all.
        """
        along = self.summation.along
        is_inexact = [element_type_of(operand.dtype).is_inexact for operand in operands]
        terms = [place for place, dimensions in enumerate(along) if dimensions and is_inexact[place]]
        shares, exact = dict.fromkeys(terms, 1.0), 0.0
        if len(terms) != 2 or isinstance(self.shape, TupleShape):
            initial = [operand for place, operand in enumerate(operands) if not along[place]]
            exact = _LARGEST_WHOLE / max(map(_largest_whole, initial), default=1.0)
        elif self._adds_exactly(operands):
            shares = {}
        else:
            shares = _shares([operands[place] for place in terms], terms)
        return shares, exact

    def _results(self, values: Sequence[Any], shape: Shape, amplitude: float) -> list[Any]:
        """The leaves of several results, in their declared types, with independent errors of so many units."""
        if isinstance(shape, TupleShape):
            columns = zip(*values, strict=True)
            parts = [
                self._results(column, inner, amplitude) for column, inner in zip(columns, shape.elements, strict=True)
            ]
            return list(zip(*parts, strict=True))
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_inexact:
            return list(values)
        entry, storage = self.rounded_type(shape), shape.element_type.storage
        if not amplitude and element_type_of(values[0].dtype) is entry:
            return [value.astype(storage, copy=False) for value in values]
        if len({value.shape for value in values}) > 1:
            return chance.one_by_one(lambda value: self._results([value], shape, amplitude)[0], values)
        rounded = self._with_errors(values, self._of_units(amplitude, entry), entry, self.key)
        return [value.astype(storage, copy=False) for value in rounded]


def stacked(column: Sequence[Array]) -> Array:
    """Arrays of one shape along a new first dimension; the array itself where they are all one, with one seed."""
    is_one = all(each is column[0] for each in column) and not chance.are_several()
    return column[0] if is_one else np.stack(column)


def parted(together: Array, count: int) -> list[Array]:
    """The arrays that lie along the first dimension."""
    return [together[number, ...] for number in range(count)]


def _shares(operands: Sequence[Array], places: Sequence[int]) -> dict[int, float]:
    """Which share of the errors of sums of products either operand takes, by its place."""
    filled = [np.count_nonzero(operand) / max(1, operand.size) for operand in operands]
    sizes = [operand.size for operand in operands]
    if min(filled) < 0.5:
        return {places[int(np.argmin(filled))]: 1.0}
    if max(sizes) > _EVEN * min(sizes):
        return {places[int(np.argmin(sizes))]: 1.0}
    return dict.fromkeys(places, math.sqrt(0.5))


def _largest_whole(array: Array) -> float:
    """The largest of whole numbers, 1 at least; infinite where some, mostly among the first few, are not whole."""
    for part in (array[(slice(2),) * array.ndim], array):
        values = widen(part)
        if not (values == np.rint(values)).all():
            return math.inf
    return float(np.abs(values).max(initial=1.0))


def accumulated_type(entry: ElementType) -> ElementType:
    """The type that sums are accumulated in."""
    return element_type_of(entry.accumulate) if entry.is_floating else entry
