"""The error of each leaf of a result: how many digits are right, and where the rest went."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy as np

from hloexec.dtypes import ElementType, element_type_of
from hloexec.ops.threads import in_blocks
from hloexec.precision import unit_roundoff
from hloexec.shadowing.computing.elements import taken
from hloexec.shadowing.store import Shadow, wide
from hloexec.values import Array

__all__ = ["LeafError", "digits_of", "leaf_error"]

_BLOCK = 1 << 15
_SAMPLE = 1 << 14
"""Elements of a leaf of which the median is taken."""
_HUGE = 1e300


@attrs.frozen
class LeafError:
    """The rounding error of a leaf of the result, as its shadow shows it."""

    index: tuple[int, ...]
    devices: tuple[int, ...]
    element_type: ElementType
    dimensions: tuple[int, ...]
    relative_error: float
    """The root of the sum of squared errors, relative to that of the exact values; of finite elements."""
    digits: float | None
    """Significant decimal digits of the median element; of zeros and integers there is nothing to tell: None."""
    worst_digits: float | None
    """Those of the worst element."""
    worst_index: tuple[int, ...] | None
    """Where that is."""
    worst_value: float | None
    worst_exact: float | None
    lost: int
    """How many elements are infinite or NaN and should not be."""
    shares: Mapping[int, float]
    """By the number of a place, its share of the squared error."""
    lost_shares: Mapping[int, float]
    unit: float
    """The largest unit roundoff of the types that the error was made in."""

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
        relative = np.abs(errors) / np.abs(exact)
        found = np.where(relative > 0, -np.log10(relative), most)
    found = np.where(np.isfinite(np.abs(errors)), found, 0.0)
    found = np.where((exact == 0) & (errors == 0), np.nan, found)
    return np.clip(found, 0.0, most)


def leaf_error(index: tuple[int, ...], devices: tuple[int, ...], value: Array, shadow: Shadow | None) -> LeafError:
    """The error of a leaf; that of integers and preds is none."""
    entry = element_type_of(value.dtype)
    known: Mapping[int, float] = {}
    if shadow is None or not value.size:
        most = -math.log10(unit_roundoff(entry)) if entry.is_inexact and value.size else None
        return LeafError(index, devices, entry, value.shape, 0.0, most, most, None, None, None, 0, known, known, 0.0)
    flat, data = np.ascontiguousarray(value).reshape(-1), np.ascontiguousarray(shadow.data).reshape(-1)
    scale, energy, place = _summed(flat, data, shadow)
    step = max(1, flat.size // _SAMPLE)
    some = _errors(flat[step // 2 :: step], data[step // 2 :: step], shadow.is_whole)
    every = digits_of(*some, entry)
    every = every[~np.isnan(every)]
    lowest = digits_of(*_errors(flat[place : place + 1], data[place : place + 1], shadow.is_whole), entry)
    value_there, exact_there = _pair(value, shadow, place)
    return LeafError(
        index=index,
        devices=devices,
        element_type=entry,
        dimensions=value.shape,
        relative_error=min(1.0, math.sqrt(energy / scale)) if scale > 0 else float(energy > 0),
        digits=float(np.median(every)) if every.size else None,
        worst_digits=None if np.isnan(lowest[0]) else float(lowest[0]),
        worst_index=tuple(map(int, np.unravel_index(place, value.shape))),
        worst_value=value_there,
        worst_exact=exact_there,
        lost=shadow.lost,
        shares=shadow.blame.shares,
        lost_shares=shadow.blame.lost,
        unit=shadow.blame.unit,
    )


def _summed(flat: Array, data: Array, shadow: Shadow) -> tuple[float, float, int]:
    """The sums of the squares of exact numbers and of errors, and where the largest relative error is."""
    is_narrow = not shadow.is_whole and data.dtype == np.float32
    seen = [(0.0, 0.0, -1.0, 0)] * -(-flat.size // _BLOCK)

    def work(start: int, stop: int) -> None:
        values, kept = flat[start:stop], data[start:stop]
        energy = 0.0
        with np.errstate(all="ignore"):
            if is_narrow:
                # To compare them, f32 will do.
                exact, errors = np.add(values, kept, dtype=np.float32), kept
                numbers = exact.astype(np.float64)
                own = float(np.vdot(numbers, numbers))
                amounts, sizes = np.abs(errors), np.abs(exact, out=exact)
            else:
                errors, exact = _errors(values, kept, shadow.is_whole)
                sizes, amounts = np.abs(exact), np.abs(errors)
                own = float(np.minimum(sizes**2, _HUGE).sum())
                energy = float(np.minimum(amounts[amounts < np.inf] ** 2, _HUGE).sum())
            ratios = np.divide(amounts, sizes, out=amounts)
            largest = int(np.argmax(ratios))
            if np.isnan(ratios[largest]):
                ratios[np.isnan(ratios)] = 0
                largest = int(np.argmax(ratios))
        seen[start // _BLOCK] = own, energy, float(ratios[largest]), start + largest

    in_blocks(work, flat.size, _BLOCK)
    scales, energies, worst, places = zip(*seen, strict=True)
    return sum(scales), shadow.energy if is_narrow else sum(energies), places[worst.index(max(worst))]


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


def _pair(value: Array, shadow: Shadow, place: int) -> tuple[float, float]:
    """An element and its shadow; of complex numbers the absolute values."""
    where = np.array([place])
    number, data = wide(taken(value, where))[0], taken(shadow.data, where)[0]
    exact = data if shadow.is_whole else number + data
    return (float(number), float(exact)) if value.dtype.kind != "c" else (float(abs(number)), float(abs(exact)))
