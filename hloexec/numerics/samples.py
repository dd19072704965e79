"""The moments of a leaf's samples: what is kept of runs that round at random."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.numerics.spread import Spread, moderated
from hloexec.numerics.student import student_quantile
from hloexec.values import Array

__all__ = ["Samples"]

_CHANCE = 0.01
"""Of rounding alone exceeding the tolerance of some element of a leaf."""
_MOST_FACTOR = 6.5
"""Where more would be due, faults of ten spreads would pass; see `hloexec.numerics.spread`."""
_PART = 1 << 19
"""So many elements are looked at together: their samples are one fit, and take no memory but what is kept of them."""


class Samples:
    """The first and second moments of a leaf's samples, about the first of them."""

    def __init__(self, first: Array) -> None:
        self.count = 1
        self._shape = first.shape
        self._parts = [_Moments(part) for part in _parts(first)]

    def fits(self, sample: Array) -> bool:
        """Whether a sample has the extents of the others; dynamic ones may change."""
        return bool(sample.shape == self._shape)

    @property
    def mean(self) -> Array:
        """The means of the elements that are always finite; others as they were first."""
        found = np.empty(self._shape, self._parts[0].compute)
        for moments, part in zip(self._parts, _parts(found), strict=True):
            part[...] = moments.mean(self.count)
        return found

    def add(self, sample: Array) -> None:
        """Take one more sample into account."""
        for moments, part in zip(self._parts, _parts(sample), strict=True):
            moments.add(part)
        self.count += 1

    def spread(self) -> Spread:
        """The scales of the elements; at least two samples must have been given."""
        scales = np.empty(self._shape, self._parts[0].compute.type(0).real.dtype)
        found = []
        for moments, part in zip(self._parts, _parts(scales), strict=True):
            part[...], degrees = moments.scales(self.count)
            found.append(degrees)
        chance = _CHANCE / max(1, int(np.count_nonzero(scales)))
        factors = [min(_MOST_FACTOR, student_quantile(degrees, chance)) for degrees in found]
        for part, factor in zip(_parts(scales), factors, strict=True):
            part *= factor / max(factors)
        return Spread(scales, self.count, min(found), max(factors))


class _Moments:
    """Those of the elements of one part."""

    def __init__(self, first: Array) -> None:
        entry = element_type_of(first.dtype)
        self.first = first.copy()
        self.compute = entry.compute
        # Eight bits of a moment are more than so few samples know of it.
        is_short = self.compute == np.float32
        self._sums = np.zeros(first.shape, ml_dtypes.bfloat16 if is_short else self.compute)
        self._norms = np.zeros(first.shape, self._sums.real.dtype)
        """Roots of the sums of squares, which overflow no sooner than the samples do; NaN where samples differ in
        whether they are finite, and where they are NaN."""

    def add(self, sample: Array) -> None:
        with np.errstate(all="ignore"):
            values, first = sample.astype(self.compute), self.first.astype(self.compute)
            distance = np.asarray(values - first)
            distance[values == first] = 0
            sizes = np.asarray(np.abs(distance))
            sizes[~np.isfinite(sizes)] = np.nan
            distance[np.isnan(sizes)] = 0
            self._sums[...] = self._sums.astype(self.compute) + distance
            self._norms[...] = np.hypot(self._norms.astype(sizes.dtype), sizes)

    def mean(self, count: int) -> Array:
        means = self._sums.astype(self.compute) / count
        return np.asarray(np.where(np.isnan(self._norms), 0, means) + self.first.astype(self.compute))

    def scales(self, count: int) -> tuple[Array, float]:
        """The elements' scales, and their degrees of freedom."""
        with np.errstate(all="ignore"):
            norms = self._norms.astype(self.compute.type(0).real.dtype)
            is_parted = np.isnan(norms)
            norms[is_parted] = 0
            means = self._sums.astype(self.compute) / count
            # √(Σd² − n d̄²), of which neither square need be a number.
            shares = np.abs(means) * norms.dtype.type(math.sqrt(count))
            scales = np.sqrt(np.maximum(norms - shares, 0)) * np.sqrt(norms + shares)
            scales /= norms.dtype.type(math.sqrt(count - 1))
            means += self.first.astype(self.compute)
            scales, degrees = moderated(np.asarray(scales), np.abs(means), count - 1)
            return np.where(is_parted, np.inf, scales), degrees


def _parts(array: Array) -> Iterator[Array]:
    """Views of an array that have up to `_PART` elements each, of about the same size."""
    axis = next((axis for axis, size in enumerate(array.shape) if size > 1), None)
    if array.size <= _PART or axis is None:
        yield array
        return
    size = array.shape[axis]
    count = min(size, -(-array.size // _PART))
    for number in range(count):
        rows = slice(number * size // count, (number + 1) * size // count)
        yield from _parts(array[(slice(None),) * axis + (rows,)])
