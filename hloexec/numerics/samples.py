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
_MOST_FACTOR_BY_MEANS = 5.5
"""The same where both sides are held against the samples' mean, too."""
_PART = 1 << 17
"""So many elements are looked at together: their samples are one fit, and take no memory but what is kept of them."""
_FULL = 127
"""A share of 1, in eight bits."""


class Samples:
    """The first and second moments of a leaf's samples, about the first of them."""

    def __init__(self, first: Array) -> None:
        """The array is kept: it must not change any more."""
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
        self.count += 1
        for moments, part in zip(self._parts, _parts(sample), strict=True):
            moments.add(part, self.count)

    def spread(self, *, has_means: bool = False) -> Spread:
        """The scales of the elements, and their means if asked for; at least two samples must have been given."""
        scales = np.empty(self._shape, self._parts[0].compute.type(0).real.dtype)
        found = []
        for moments, part in zip(self._parts, _parts(scales), strict=True):
            part[...], degrees = moments.scales(self.count)
            found.append(degrees)
        chance = _CHANCE / max(1, int(np.count_nonzero(scales)))
        most = _MOST_FACTOR_BY_MEANS if has_means else _MOST_FACTOR
        factors = [min(most, student_quantile(degrees, chance)) for degrees in found]
        for part, factor in zip(_parts(scales), factors, strict=True):
            part *= factor / max(factors)
        return Spread(scales, self.count, min(found), max(factors), self.mean if has_means else None)


class _Moments:
    """Those of the elements of one part, of the distances d from the first sample: Σd² as its root, and Σd as a share
    of the most that it can be, which is √n of that root (Cauchy and Schwarz). Eight bits of each are more than so few
    samples know of them."""

    def __init__(self, first: Array) -> None:
        self.first = first
        self.compute = element_type_of(first.dtype).compute
        self._real = self.compute.type(0).real.dtype
        self._norms = np.zeros(first.shape, ml_dtypes.bfloat16 if self._real == np.float32 else self._real)
        """Roots of the sums of squares, which overflow no sooner than the samples do; NaN where samples differ in
        whether they are finite, and where they are NaN."""
        self._shares = np.zeros((*first.shape, self.compute.itemsize // self._real.itemsize), np.int8)
        """Of real and imaginary parts."""

    def add(self, sample: Array, count: int) -> None:
        """Take a sample into account, the `count`-th."""
        with np.errstate(all="ignore"):
            values, first = self._widened(sample), self._widened(self.first)
            distance = np.asarray(values - first)
            distance[values == first] = 0
            sizes = np.asarray(np.abs(distance))
            sizes[~np.isfinite(sizes)] = np.nan
            distance[np.isnan(sizes)] = 0
            sums = self._sums(count - 1) + distance
            self._norms[...] = np.hypot(self._norms.astype(self._real), sizes)
            shares = sums[..., None].view(self._real) / self._units(count)
            self._shares[...] = np.clip(np.rint(np.nan_to_num(shares)), -_FULL, _FULL)

    def mean(self, count: int) -> Array:
        means = self._sums(count) / count
        return np.asarray(np.where(np.isnan(self._norms), 0, means) + self._widened(self.first))

    def scales(self, count: int) -> tuple[Array, float]:
        """The elements' scales, and their degrees of freedom."""
        with np.errstate(all="ignore"):
            norms = self._norms.astype(self._real)
            is_parted = np.isnan(norms)
            norms[is_parted] = 0
            means = np.where(is_parted, 0, self._sums(count) / count)
            # √(Σd² − n d̄²), of which neither square need be a number.
            shares = np.abs(means) * self._real.type(math.sqrt(count))
            scales = np.sqrt(np.maximum(norms - shares, 0)) * np.sqrt(norms + shares)
            scales /= self._real.type(math.sqrt(count - 1))
            means += self._widened(self.first)
            scales, degrees = moderated(np.asarray(scales), np.abs(means), count - 1)
            return np.where(is_parted, np.inf, scales), degrees

    def _widened(self, values: Array) -> Array:
        return values.astype(self.compute, copy=False)

    def _units(self, count: int) -> Array:
        """What one unit of each share stands for."""
        units: Array = self._norms.astype(self._real) * self._real.type(math.sqrt(count) / _FULL)
        return units[..., None]

    def _sums(self, count: int) -> Array:
        # Where a root is infinite or NaN, no share is kept.
        found = np.where(self._shares == 0, self._real.type(0), self._shares * self._units(count))
        return found.view(self.compute)[..., 0]


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
