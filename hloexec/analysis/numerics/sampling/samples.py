"""The moments of the samples of a leaf, from runs with random rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.analysis.numerics.sampling.spread import FEW, Spread, moderated
from hloexec.analysis.numerics.sampling.student import student_quantile
from hloexec.core.dtypes import DType, element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array

_CHANCE = 0.01
"""Of rounding alone exceeding the tolerance of some element of a leaf."""
_MOST_FACTOR = 6.5
"""Where more would be due, faults of ten spreads would pass; see `numerics.sampling.spread`."""
_MOST_FACTOR_BY_MEANS = 5.5
"""The same where both sides are compared with the samples' mean, too."""
_PART = 1 << 17
"""Number of elements processed together: their samples are one fit, and only the results are kept in memory."""
_FULL = 127
"""A share of 1, in eight bits."""

Part = tuple[Any, ...]
"""What indexes a part of a leaf."""


class Samples:
    """The first and second moments of a leaf's samples, about the first of them."""

    def __init__(self, first: Array, is_decided: Callable[[], bool] | None = None) -> None:
        """The array is kept, and must not be modified. `is_decided` says whether decisions about floats are behind the
        leaf (`dataflow.decisions`)."""
        self.count = 1
        self._factors = [1.0]
        self._moments = _Moments.of(first)
        self._is_decided = is_decided

    def fits(self, sample: Array) -> bool:
        """Whether a sample has the extents of the others; dynamic ones may change."""
        return bool(sample.shape == self._moments.first.shape)

    def means(self, places: Array | None = None) -> Array:
        """The means of all elements, or of those at places of the flat leaf, where they are always finite; others as
        they were first."""
        return (self._moments if places is None else self._moments.at(places)).mean(self.count)

    def add(self, sample: Array) -> None:
        """Take one more sample into account."""
        self.count += 1
        sums = [self._moments.part(where).add(sample[where], self.count) for where in _parts(sample.shape)]
        drift, square = map(sum, zip(*sums, strict=True))
        self._factors.append(1.0 + drift / square if square else math.nan)

    def spread(self, *, has_means: bool = False) -> Spread:
        """The scales of the elements, and their means if asked for; at least two samples must have been given."""
        scales = np.empty(self._moments.first.shape, self._moments.real)
        found = []
        parts = [*_parts(scales.shape)]
        for where in parts:
            scales[where], degrees = self._moments.part(where).scales(self.count, self._is_decided)
            found.append(degrees)
        chance = _CHANCE / max(1, int(np.count_nonzero(scales)))
        most = _MOST_FACTOR_BY_MEANS if has_means else _MOST_FACTOR
        factors = [min(most, student_quantile(degrees, chance)) for degrees in found]
        for where, factor in zip(parts, factors, strict=True):
            scales[where] *= factor / max(factors)
        common = float(np.std(self._factors, ddof=1))
        return Spread(scales, self.count, min(found), max(factors), self.means if has_means else None, common)


@frozen(eq=False)
class _Moments:
    """Those of some elements' distances d from the first sample: Σd² as its root, and Σd as a share of the most that it
    can be, which is √n of that root (Cauchy and Schwarz). Eight bits of each are more than so few samples know of
    them."""

    first: Array
    norms: Array
    """Roots of the sums of squares, which overflow no sooner than the samples do; NaN where samples differ in whether
    they are finite, and where they are NaN."""
    shares: Array
    """Of real and imaginary parts, which are the last dimension."""
    compute: DType
    """The type that the samples are computed in, and that of its real and imaginary parts."""
    real: DType

    @classmethod
    def of(cls, first: Array) -> _Moments:
        compute = element_type_of(first.dtype).compute
        real = compute.type(0).real.dtype
        norms = np.zeros(first.shape, ml_dtypes.bfloat16 if real == np.float32 else real)
        shares = np.zeros((*first.shape, compute.itemsize // real.itemsize), np.int8)
        return cls(np.asarray(first, order="C"), norms, shares, compute, real)

    def part(self, where: Part) -> _Moments:
        """Views of the moments of a part of the elements."""
        return attrs.evolve(self, first=self.first[where], norms=self.norms[where], shares=self.shares[where])

    def at(self, places: Array) -> _Moments:
        """The moments of elements at these places of the flat leaf."""
        first, norms = self.first.reshape(-1)[places], self.norms.reshape(-1)[places]
        return attrs.evolve(
            self, first=first, norms=norms, shares=self.shares.reshape(-1, self.shares.shape[-1])[places]
        )

    def add(self, sample: Array, count: int) -> tuple[float, float]:
        """Take a sample into account, the `count`-th; returns the sums of its distances' products with the first
        sample, and of that one's squares, which tell the factor that the sample has in common with the first."""
        with np.errstate(all="ignore"):
            values, first = self._widened(sample), self._widened(self.first)
            distance = np.asarray(values - first)
            distance[values == first] = 0
            sizes = np.asarray(np.abs(distance))
            sizes[~np.isfinite(sizes)] = np.nan
            distance[np.isnan(sizes)] = 0
            sums = self._sums(count - 1) + distance
            self.norms[...] = np.hypot(self.norms.astype(self.real), sizes)
            shares = sums[..., None].view(self.real) / self._units(count)
            self.shares[...] = np.clip(np.rint(np.nan_to_num(shares)), -_FULL, _FULL)
            if self.compute.kind == "c":
                return math.nan, math.nan
            wide = first.astype(np.float64)
            return float(np.sum(distance * wide)), float(np.sum(wide * wide))

    def mean(self, count: int) -> Array:
        means = self._sums(count) / count
        return np.asarray(np.where(np.isnan(self.norms), 0, means) + self._widened(self.first))

    def scales(self, count: int, is_decided: Callable[[], bool] | None) -> tuple[Array, float]:
        """The elements' scales, and their degrees of freedom.

        Where decisions are behind a leaf, and move a few elements only, how far these move says nothing of the others,
        as of a floor at a tie: what no sample has moved is held to a rounding of its own.
        """
        with np.errstate(all="ignore"):
            norms = self.norms.astype(self.real)
            is_parted = np.isnan(norms)
            norms[is_parted] = 0
            means = np.where(is_parted, 0, self._sums(count) / count)
            # √(Σd² − n d̄²), of which neither square need be a number.
            shares = np.abs(means) * self.real.type(math.sqrt(count))
            scales = np.sqrt(np.maximum(norms - shares, 0)) * np.sqrt(norms + shares)
            scales /= self.real.type(math.sqrt(count - 1))
            means += self._widened(self.first)
            own, roundings = np.asarray(scales), np.abs(means)
            scales, degrees = moderated(own, roundings, count - 1)
            if 2 * np.count_nonzero(own == 0) >= own.size and np.count_nonzero(own) < FEW:
                roundings *= unit_roundoff(element_type_of(self.first.dtype))
                too_large = (own == 0) & (scales > roundings)
                if too_large.any() and is_decided is not None and is_decided():
                    scales = np.where(too_large, roundings, scales)
            return np.where(is_parted, np.inf, scales), degrees

    def _widened(self, values: Array) -> Array:
        return values.astype(self.compute, copy=False)

    def _units(self, count: int) -> Array:
        """What one unit of each share stands for."""
        return np.asarray(self.norms.astype(self.real)[..., None] * self.real.type(math.sqrt(count) / _FULL))

    def _sums(self, count: int) -> Array:
        # Where a root is infinite or NaN, no share is kept.
        found = np.where(self.shares == 0, self.real.type(0), self.shares * self._units(count))
        return found.view(self.compute)[..., 0]


def _parts(shape: tuple[int, ...]) -> Iterator[Part]:
    """The parts of a leaf that have about `_PART` elements each, or all where it has fewer."""
    if math.prod(shape) <= _PART:
        yield (...,)
        return
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= _PART)
    size = shape[axis]
    count = min(size, -(-math.prod(shape[axis:]) // _PART))
    for outer in np.ndindex(*shape[:axis]):
        rows = [slice(number, number + 1) for number in outer]
        for number in range(count):
            yield (*rows, slice(number * size // count, (number + 1) * size // count))
