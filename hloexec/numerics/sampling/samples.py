"""The moments of the samples of a leaf, from runs with random rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.dtypes import DType, element_type_of
from hloexec.numerics.sampling.groups import groups_of
from hloexec.numerics.sampling.spread import FEW, ROUNDINGS, SAMPLES, Spread, few_move, moderated
from hloexec.numerics.sampling.student import student_quantile
from hloexec.precision import unit_roundoff
from hloexec.structs import frozen
from hloexec.values import Array

__all__ = ["Samples"]

_CHANCE = 0.01
"""Of rounding alone exceeding the tolerance of some element of a leaf."""
_MOST_FACTOR = 6.5
"""Where more would be due, faults of ten spreads would pass; see `hloexec.numerics.sampling.spread`."""
_MOST_FACTOR_BY_MEANS = 5.5
"""The same where both sides are compared with the samples' mean, too."""
_PART = 1 << 17
"""Number of elements processed together: their samples are one fit, and only the results are kept in memory."""
_WHOLE = 1024
"""Of leaves of so many elements or fewer, the first samples are kept as they are."""
_NEAR = 0.2
"""How far eight bits let a number of samples be off."""
_FULL = 127
"""A share of 1, in eight bits."""

Part = tuple[Any, ...]
"""What indexes a part of a leaf."""


class Samples:
    """The first and second moments of a leaf's samples, about the first of them."""

    def __init__(self, first: Array, is_decided: Callable[[], bool] | None = None) -> None:
        """The array is kept, and must not be modified. `is_decided` says whether decisions about floats are behind the
        leaf (`hloexec.dataflow.decisions`)."""
        self.count = 1
        self._moments = _Moments.of(first)
        self._whole = [first] if first.size <= _WHOLE else []
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
        if self._whole and self.count <= SAMPLES:
            self._whole.append(sample)
        for where in _parts(sample.shape):
            self._moments.part(where).add(sample[where], self.count)

    def spread(self, *, has_means: bool = False) -> Spread:
        """The scales of the elements, and their means if asked for; at least two samples must have been given."""
        scales = np.empty(self._moments.first.shape, self._moments.real)
        found, jumping, start = [], [], 0
        parts = [*_parts(scales.shape)]
        for where in parts:
            scales[where], degrees, jumps = self._moments.part(where).scales(self.count, self._is_decided)
            found.append(degrees)
            jumping.append(np.flatnonzero(jumps) + start)
            start += jumps.size
        chance = _CHANCE / max(1, int(np.count_nonzero(scales)))
        most = _MOST_FACTOR_BY_MEANS if has_means else _MOST_FACTOR
        factors = [min(most, student_quantile(degrees, chance)) for degrees in found]
        for where, factor in zip(parts, factors, strict=True):
            scales[where] *= factor / max(factors)
        means = self.means if has_means else None
        return Spread(scales, self.count, min(found), max(factors), means, np.concatenate(jumping), self.ends)

    def ends(self, places: Array) -> Array:
        """The two values that the first samples of elements at places of the flat leaf have, in the last dimension: NaN
        where they have others. Of large leaves, the moments alone tell, and only of six samples."""
        if not self._whole:
            return self._moments.at(places).ends(self.count)
        last = 2 * unit_roundoff(element_type_of(self._moments.first.dtype))
        found = np.full((places.size, 2), np.nan)
        samples = np.stack([sample.reshape(-1)[places].astype(np.float64) for sample in self._whole])
        for number, own in enumerate(samples.T):
            groups = groups_of(own, last * float(np.abs(own).max()))
            if len(groups) == 2:
                found[number] = [group.centre for group in groups]
        return found


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
            self.norms[...] = np.hypot(self.norms.astype(self.real), sizes)
            shares = sums[..., None].view(self.real) / self._units(count)
            self.shares[...] = np.clip(np.rint(np.nan_to_num(shares)), -_FULL, _FULL)

    def mean(self, count: int) -> Array:
        means = self._sums(count) / count
        return np.asarray(np.where(np.isnan(self.norms), 0, means) + self._widened(self.first))

    def ends(self, count: int) -> Array:
        """Where k of N samples are d from the first and the others as it is, (Σd)² = k Σd² and d = Σd²/Σd."""
        with np.errstate(all="ignore"):
            squares, sums = np.square(self.norms.astype(np.float64)), self._sums(count).astype(np.float64)
            times = np.square(sums) / squares
            is_either = (np.abs(times - np.rint(times)) < _NEAR) & (times > 0.5) & (count <= SAMPLES)
            first = self._widened(self.first).astype(np.float64)
            found = np.stack([first, first + squares / sums], -1)
        return np.where(is_either[..., None], found, np.nan)

    def scales(self, count: int, is_decided: Callable[[], bool] | None) -> tuple[Array, float, Array]:
        """The elements' scales, their degrees of freedom, and which elements jump.

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
            scales, degrees, is_far = moderated(own, roundings, count - 1)
            roundings *= unit_roundoff(element_type_of(self.first.dtype))
            jumps = own > ROUNDINGS * roundings
            if few_move(own):
                too_large = (own == 0) & (scales > roundings)
                is_pooled = np.count_nonzero(own) < FEW and too_large.any()
                if is_pooled and is_decided is not None and is_decided():
                    scales = np.where(too_large, roundings, scales)
            else:
                jumps &= is_far
            return np.where(is_parted, np.inf, scales), degrees, jumps & ~is_parted & (self.compute == self.real)

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
