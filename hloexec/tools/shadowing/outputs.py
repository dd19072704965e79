"""The error of each leaf of a result: how many digits are right, and where the rest went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import WHOLE, Array, part_label
from hloexec.ops.resources import in_blocks
from hloexec.ops.traits import Index
from hloexec.tools.shadowing.computing.elements import first_places, subtracted, taken
from hloexec.tools.shadowing.computing.pending import Pending, ranges_of, together
from hloexec.tools.shadowing.places import is_finite
from hloexec.tools.shadowing.store import BLOCK, Shadow, row_by_row, wide

_SAMPLE = 1 << 14
"""Elements of a leaf of which the median is taken."""
_HUGE = 1e300


@frozen
class LeafError:
    """The rounding error of a leaf of the result, as its shadow shows it."""

    index: Index
    devices: tuple[int, ...]
    element_type: ElementType = attrs.field(metadata=UNTOLD)
    dimensions: tuple[int, ...] = attrs.field(metadata=UNTOLD)
    relative_error: float = 0.0
    """The root of the sum of squared errors, relative to that of the exact values; but for elements that are lost."""
    digits: float | None = None
    """Significant decimal digits of the median element, from 0 (the error is at least as large as the exact number) to
    those of the type; of zeros and integers there is nothing to tell: None."""
    worst_digits: float | None = None
    """Those of the worst element: 0 where the error is at least as large as the number."""
    worst_index: tuple[int, ...] | None = None
    """The index of the worst element."""
    worst_value: float | None = None
    """What the worst element is."""
    worst_exact: float | None = None
    """What it would be without rounding."""
    lost: int = 0
    """How many elements are infinite or NaN and should not be."""
    shares: Mapping[int, float] = attrs.field(factory=dict, metadata=UNTOLD)
    """By the number of a place, its share of the squared error."""
    lost_shares: Mapping[int, float] = attrs.field(factory=dict, metadata=UNTOLD)
    unit: float = 0.0
    """The largest unit roundoff of the types that the error was made in."""

    @property
    @told
    def label(self) -> str:
        """Its place in the result: `value`, or `value.1.0` in a tuple."""
        return part_label(WHOLE, self.index)

    @property
    @told
    def shape(self) -> str:
        """The shape, as HLO text."""
        return str(ArrayShape(self.element_type, self.dimensions))

    @property
    def is_more_than_rounding(self) -> bool:
        """Whether its error, as a whole, exceeds eight units of roundoff of the types that it was made in, or elements
        are lost."""
        return self.unit > 0 and bool(self.lost or self.relative_error > 8 * self.unit)

    @property
    def weight(self) -> float:
        """How much the error of this output counts beside that of others: what part of the digits of the type that it
        was made in has gone, as if all types had 24 bits, as a squared error."""
        if not self.relative_error > 0 or not self.unit > 0:
            return 0.0
        bits = -math.log2(self.unit)
        gone = math.log2(max(1.0, self.relative_error / self.unit)) / bits
        return float(4.0 ** (24 * min(gone, 1.0)))


def digits_of(errors: Array, exact: Array, entry: ElementType) -> Array:
    """Significant decimal digits, −log₁₀ |error / exact|, between 0 and those of the type; NaN where exact is 0."""
    most = -math.log10(unit_roundoff(entry))
    with np.errstate(all="ignore"):
        found = digits_left(np.abs(errors) / np.abs(exact), most)
    return np.where((exact == 0) & (errors == 0), np.nan, found)


def digits_left(relative: Array, most: float) -> Array:
    """The digits that relative errors leave, at most so many."""
    found = np.where(relative > 0, -np.log10(relative), most)
    return np.clip(np.where(np.isfinite(relative), found, 0.0), 0.0, most)


def leaf_errors(devices: tuple[int, ...], leaves: Sequence[tuple[Index, Array, Shadow | None]]) -> list[LeafError]:
    """The errors of a result's leaves, each with its index and its shadow; integers and preds have none."""
    measured: dict[int, _Measured] = {}
    pending = [
        (number, _PendingLeaf(value, shadow, shadow.pending))
        for number, (_, value, shadow) in enumerate(leaves)
        if shadow is not None and shadow.pending is not None
    ]
    for places in together([leaf.pending for _, leaf in pending]):
        numbers, group = zip(*(pending[place] for place in places), strict=True)
        for number, measurement in zip(numbers, _measured_at_once(group), strict=True):
            if measurement is not None:
                measured[number] = measurement
    return [
        _leaf_error(index, devices, value, shadow, measured.get(number))
        for number, (index, value, shadow) in enumerate(leaves)
    ]


@frozen(eq=False)
class _PendingLeaf:
    """A leaf whose shadow is not computed yet."""

    value: Array
    shadow: Shadow
    pending: Pending


@frozen
class _Measured:
    """What a leaf's error is made from, or a part of it."""

    scale: float
    """The sum of the squares of the exact numbers, but for elements that are lost."""
    energy: float
    """That of the errors."""
    worst: float
    """The largest relative error."""
    place: int
    error: float
    exact: float
    """What is there; of complex numbers the absolute values."""
    errors: Array
    exacts: Array
    """Those of a sample."""


def _leaf_error(
    index: Index, devices: tuple[int, ...], value: Array, shadow: Shadow | None, measured: _Measured | None
) -> LeafError:
    entry = element_type_of(value.dtype)
    if shadow is None or not value.size:
        most = -math.log10(unit_roundoff(entry)) if entry.is_inexact and value.size else None
        return LeafError(index, devices, entry, value.shape, digits=most, worst_digits=most)
    if measured is None and shadow.pending is not None:
        shadow.settle()
    measurement = measured or _measured_of_data(value, shadow)
    every = digits_of(measurement.errors, measurement.exacts, entry)
    every = every[~np.isnan(every)]
    lowest = digits_of(np.array([measurement.error]), np.array([measurement.exact]), entry)
    value_there = wide(taken(value, np.array([measurement.place])))[0]
    exact_there = measurement.exact if measured is not None else _exact_there(value, shadow, measurement.place)
    return LeafError(
        index=index,
        devices=devices,
        element_type=entry,
        dimensions=value.shape,
        relative_error=min(1.0, math.sqrt(measurement.energy / measurement.scale))
        if measurement.scale > 0
        else float(measurement.energy > 0),
        digits=float(np.median(every)) if every.size else None,
        worst_digits=None if np.isnan(lowest[0]) else float(lowest[0]),
        worst_index=tuple(map(int, np.unravel_index(measurement.place, value.shape))),
        worst_value=float(abs(value_there) if value.dtype.kind == "c" else value_there),
        worst_exact=exact_there,
        lost=shadow.lost,
        shares=shadow.blame.shares,
        lost_shares=shadow.blame.lost,
        unit=shadow.blame.unit,
    )


def _measured_at_once(leaves: Sequence[_PendingLeaf]) -> list[_Measured | None]:
    """What pending shadows say, without keeping them; None where numbers are too large for that."""
    exact = ranges_of([leaf.pending for leaf in leaves])
    flats = [row_by_row(leaf.value) for leaf in leaves]
    size = flats[0].size
    seen: list[list[tuple[_Measured, Array]]] = [[] for _ in range(-(-size // BLOCK))]

    def work(start: int, stop: int) -> None:
        for flat, numbers in zip(flats, exact(start, stop), strict=True):
            errors, vanished = subtracted(numbers, flat[start:stop])
            exacts = np.broadcast_to(numbers, errors.shape)
            seen[start // BLOCK].append((_measured(errors, exacts, start, size), vanished))

    in_blocks(work, size, BLOCK)
    measurements: list[_Measured | None] = []
    for number, leaf in enumerate(leaves):
        its = _joined([parts[number][0] for parts in seen])
        if not (its.energy < _HUGE and its.scale < _HUGE):
            measurements.append(None)
            continue
        vanished = first_places((place * BLOCK, parts[number][1]) for place, parts in enumerate(seen))
        start = BLOCK * max(range(len(seen)), key=lambda place: seen[place][number][0].energy)
        where = start, min(size, start + BLOCK)
        corrected = leaf.pending.corrected(leaf.value, leaf.shadow, its.energy, where, vanished)
        leaf.shadow.blame = corrected or leaf.shadow.blame
        measurements.append(its)
    return measurements


def _measured_of_data(value: Array, shadow: Shadow) -> _Measured:
    flat, data = row_by_row(value), row_by_row(shadow.data)
    parts: list[Any] = [None] * -(-flat.size // BLOCK)

    def work(start: int, stop: int) -> None:
        errors, exact = _errors(flat[start:stop], data[start:stop], shadow.is_whole)
        parts[start // BLOCK] = _measured(errors, exact, start, flat.size)

    in_blocks(work, flat.size, BLOCK)
    return _joined(parts)


def _measured(errors: Array, exact: Array, start: int, size: int) -> _Measured:
    """What the elements of a flat array from one place on say."""
    step = max(1, size // _SAMPLE)
    some = slice((step // 2 - start) % step, None, step)
    with np.errstate(all="ignore"):
        sizes, amounts = np.abs(exact), np.abs(errors)
        scale, energy = _squared(sizes if is_finite(amounts) else sizes[amounts < np.inf]), _squared(amounts)
        ratios = np.divide(amounts, sizes, out=sizes)
        largest = int(np.argmax(ratios))
        if np.isnan(ratios[largest]):
            ratios[np.isnan(ratios)] = 0
            largest = int(np.argmax(ratios))
    return _Measured(
        scale,
        energy,
        float(ratios[largest]),
        start + largest,
        float(amounts[largest]),
        float(exact[largest].real if errors.dtype.kind != "c" else abs(exact[largest])),
        errors[some].copy(),
        exact[some].copy(),
    )


def _squared(sizes: Array) -> float:
    """The sum of the squares of finite numbers, none larger than `_HUGE`."""
    total = float(np.vdot(sizes, sizes))
    return total if math.isfinite(total) else float(np.minimum(sizes[sizes < np.inf] ** 2, _HUGE).sum())


def _joined(parts: Sequence[_Measured]) -> _Measured:
    worst = max(parts, key=lambda part: part.worst)
    return attrs.evolve(
        worst,
        scale=sum(part.scale for part in parts),
        energy=sum(part.energy for part in parts),
        errors=np.concatenate([part.errors for part in parts]),
        exacts=np.concatenate([part.exacts for part in parts]),
    )


def _errors(values: Array, data: Array, is_whole: bool) -> tuple[Array, Array]:
    """The errors of some elements, infinite where they are lost, and the exact numbers."""
    numbers = wide(values)
    with np.errstate(all="ignore"):
        if not is_whole:
            errors = data.astype(numbers.dtype, copy=False)
            return errors, numbers + errors
        errors = data - numbers
        alike = ~np.isfinite(numbers) & ~np.isfinite(data)
        errors[alike] = 0
        exact = np.where(np.isfinite(data), data, 0)
        errors[~np.isfinite(errors)] = np.inf
        return errors, exact


def _exact_there(value: Array, shadow: Shadow, place: int) -> float:
    """An element of a shadow; of complex numbers its absolute value."""
    where = np.array([place])
    data = taken(shadow.data, where)[0]
    exact = data if shadow.is_whole else wide(taken(value, where))[0] + data
    return float(exact) if value.dtype.kind != "c" else float(abs(exact))
