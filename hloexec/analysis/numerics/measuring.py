"""Measuring the difference of two arrays of one shape, block by block, in ULPs and in tolerances.

Units in the last place: the number of representable values between two numbers.

A unit in the last place (ULP) is the distance from a number to the next one that its element type can represent. Two
numbers of one type are as many ULPs apart as there are steps from one to the other; two numbers of different types are
compared in the narrower one, to which the wider is rounded first.

Measuring the difference of two arrays of one shape, block by block: values of gigabytes take megabytes to compare.

The first pass determines the magnitude of the numbers, so that no square overflows; the second compares the elements.
Blocks with equal bits cost little more than reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import ErrorMap, MapMaker, blocks
from hloexec.analysis.numerics.tolerances import Tolerance
from hloexec.core.dtypes import (
    DType,
    ElementType,
    element_type_of,
    largest_number,
    part_type,
    smallest_normal,
    unit_roundoff,
)
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide


def are_comparable(first: ElementType, second: ElementType) -> bool:
    """Whether numbers of both types can be compared with each other: both floats, both complex, both integers."""
    return first is second or (first.kind is second.kind) or (first.is_integral and second.is_integral)


def narrower(first: ElementType, second: ElementType) -> ElementType:
    """The type of the two with the shorter significand (the fewer bits, where they have none)."""
    return min(first, second, key=lambda entry: (part_type(entry).mantissa_bits, entry.bits))


def same_bits(actual: Array, expected: Array) -> Array:
    """Whether elements of two arrays of one type have the same bits or are both NaN (complex: part by part).

    Of types narrower than a byte, only their own bits count.
    """
    entry = element_type_of(actual.dtype)
    if entry.is_complex:
        part = part_type(entry).storage
        return np.asarray(same_bits(_parts(actual, part), _parts(expected, part)).all(-1))
    patterns = [_patterns(array, entry) for array in (actual, expected)]
    same = patterns[0] == patterns[1]
    if entry.has_nan and not same.all():
        same |= np.isnan(actual) & np.isnan(expected)
    return np.asarray(same)


def magnitudes(values: Array) -> Array:
    """The absolute values of what `wide` gives; of integers and preds as f64."""
    return np.asarray(np.abs(values.astype(np.float64) if values.dtype.kind in "iub" else values))


def ulp_distances(actual: Array, expected: Array) -> Array:
    """How far elements are apart in the narrower of the two types: counts of representable values, as f64.

    Integers: the difference. Floats: the steps from one to the other, both zeros being one value; infinity lies one
    step beyond the largest number, the distance from NaN to a number is infinite, from NaN to NaN zero. Complex: the
    absolute difference in units of the distance between neighbours of their parts' type at |expected|.
    """
    entry = narrower(element_type_of(actual.dtype), element_type_of(expected.dtype))
    with np.errstate(all="ignore"):
        if entry.is_complex:
            return _complex_distances(actual, expected, entry)
        if not entry.is_floating:
            return _integer_distances(wide(actual), wide(expected))
        first, second = (_rounded(array, entry) for array in (actual, expected))
        distances = _float_distances(_patterns(first, entry), _patterns(second, entry), entry)
        if entry.has_nan:
            nan, its_nan = np.isnan(first), np.isnan(second)
            distances[nan | its_nan] = np.inf
            distances[nan & its_nan] = 0.0
    return distances


def _parts(array: Array, part: DType) -> Array:
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(part)


def _patterns(array: Array, entry: ElementType) -> Array:
    patterns = np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.itemsize}")
    return patterns & ((1 << entry.bits) - 1) if entry.bits < 8 else patterns


def _rounded(array: Array, entry: ElementType) -> Array:
    return array if array.dtype == entry.storage else narrow(wide(array), entry)


def _float_distances(first: Array, second: Array, entry: ElementType) -> Array:
    sign = 1 << entry.bits - 1 if entry.has_sign else 0
    mask = first.dtype.type(~sign & ((1 << 8 * first.itemsize) - 1))
    steps, its_steps = ((patterns & mask).astype(np.uint64) for patterns in (first, second))
    unlike = ((first ^ second) & first.dtype.type(sign)) != 0
    gaps = np.maximum(steps, its_steps) - np.minimum(steps, its_steps)
    return np.asarray(np.where(unlike, steps + its_steps, gaps), np.float64)


def _integer_distances(first: Array, second: Array) -> Array:
    """|first − second|, rounded to f64 only once it is known."""
    if first.dtype == np.bool_:
        return np.asarray((first != second).astype(np.float64))
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    if larger.dtype.kind == "f":  # of s64 and u64 NumPy makes f64
        return np.asarray(larger - smaller)
    return (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)


def _complex_distances(actual: Array, expected: Array, entry: ElementType) -> Array:
    first, second = wide(actual), wide(expected)
    magnitude = np.maximum(np.abs(second), smallest_normal(entry))
    spacing: Array = np.exp2(np.floor(np.log2(magnitude))) * 2 * unit_roundoff(entry)
    distances: Array = np.abs(first - second) / spacing
    distances[np.isnan(distances)] = np.inf
    distances[(first == second) | (np.isnan(first) & np.isnan(second))] = 0.0
    return distances


def agreement(actual: Array, expected: Array, tolerance: Tolerance, scales: Array | None) -> Array:
    """Which elements of two arrays of one type agree within a tolerance: pred, of their dimensions."""
    with np.errstate(all="ignore"):
        x, y = wide(actual), wide(expected)
        # Of floats they are looked at only where the tolerance is in ULPs.
        ulps = x if x.dtype.kind in "fc" and tolerance.ulp is None else ulp_distances(actual, expected)
        narrow = element_type_of(actual.dtype)
        element_severities = severities(x, y, absolute_errors(x, y, ulps), ulps, tolerance, narrow, scales)
        return np.asarray(same_bits(actual, expected) | ~exceeds(element_severities, tolerance))


def severities(
    x: Array,
    y: Array,
    errors: Array,
    ulps: Array,
    tolerance: Tolerance,
    narrow: ElementType,
    scales: Array | None = None,
    means: Array | None = None,
) -> Array:
    """The errors in units of the tolerance, NaN counting as infinite.

    `scales` are the elements' own, where a tolerance was measured (`numerics.sampling.spread`), and `means`
    those of the samples it was measured by. With them an error is the distance of the side that is farther from the
    mean, where that is less: two honest sides share an error, while a fault is of one of them.
    """
    if tolerates_nothing(tolerance):
        return np.where(np.isnan(errors), np.inf, errors)
    ratios = np.full(errors.shape, np.inf)
    if tolerance.rtol or tolerance.atol or tolerance.factor:
        if not tolerance.is_given and x.dtype.kind in "fc":
            # Beyond the largest number, a rounding decides between it and infinity.
            x, y = _clipped(x, narrow), _clipped(y, narrow)
            errors = np.abs(x - y)
            if means is not None:
                errors = np.fmin(errors, np.maximum(np.abs(x - means), np.abs(y - means)))
        sizes = magnitudes(y)
        allowed = tolerance.rtol * np.where(np.isfinite(sizes), sizes, 0.0)
        if scales is not None:
            allowed = np.hypot(allowed, tolerance.factor * scales) if tolerance.rtol else tolerance.factor * scales
        allowed = allowed + tolerance.atol
        ratios = np.where(errors == 0, 0.0, errors / allowed)
    if tolerance.ulp is not None:
        ratios = np.fmin(ratios, np.where(ulps == 0, 0.0, ulps / tolerance.ulp))
    return np.where(np.isnan(ratios), np.inf, ratios)


def exceeds(severity: Array, tolerance: Tolerance) -> Array:
    """Which severities a tolerance does not allow."""
    if not tolerates_nothing(tolerance):
        return np.asarray(severity > 1)
    # Who gives a tolerance of zero means numbers, of which −0 and +0 are one; else bits are meant.
    return np.asarray(severity > 0) if tolerance.is_given else np.ones(severity.shape, np.bool_)


def tolerates_nothing(tolerance: Tolerance) -> bool:
    """Whether elements must be the same."""
    return not (tolerance.rtol or tolerance.atol or tolerance.factor or tolerance.ulp)


def absolute_errors(x: Array, y: Array, ulps: Array) -> Array:
    """|x − y|: infinite or NaN where either is not finite, unless they are the same infinity."""
    if x.dtype.kind not in "fc":
        return ulps
    return np.where(x == y, 0.0, np.abs(x - y))


def _clipped(values: Array, entry: ElementType) -> Array:
    """Infinities replaced by the largest number of a type."""
    largest = largest_number(entry)
    if values.dtype.kind == "c":
        clipped = values.copy()
        clipped.real, clipped.imag = _clipped(values.real, entry), _clipped(values.imag, entry)
        return clipped
    infinite = np.isinf(values)
    return np.where(infinite, np.copysign(largest, values), values) if infinite.any() else values


PERCENTILES = (50, 90, 99, 100)
_BLOCK = 1 << 16
"""Number of elements processed at a time: the dozen f64 arrays made of them stay in the L2 cache or near it."""
MOST_ELEMENTS = 8
"""How many of the first and of the worst elements are listed."""
MOST_PLACES = 1 << 16
"""Of how many elements it is known which these are."""
_SHARES = {"max": 100, "p99": 99, "median": 50}
"""How many of a hundred elements have to be within the tolerance for a statistic, by nearest rank, to be so."""
_EXACT_BUCKETS = 64
"""Distances below this are counted each by itself, larger ones by octaves."""
_BUCKETS_PER_OCTAVE = 32
"""So percentiles are at most 3 % too low."""
_BUCKETS = _EXACT_BUCKETS + 1 + 60 * _BUCKETS_PER_OCTAVE

_Means: TypeAlias = Callable[[Array], Array] | None
"""What gives the means of samples at flat places."""


@frozen
class ElementDifference:
    """One element at which two arrays differ."""

    index: tuple[int, ...]
    actual: float | int | complex | bool
    """The element of the actual array."""
    expected: float | int | complex | bool
    """The element of the expected array."""
    absolute_error: float
    """Infinite where only one of the two is a finite number."""
    ulps: float
    """The error in units in the last place."""
    severity: float
    """The error in units of the tolerance; the error itself where nothing is tolerated."""


class Places(NamedTuple):
    """In how many places elements are what no number is compared with."""

    both: int
    """On both sides."""
    actual_only: int
    """In the actual array only."""
    expected_only: int
    """In the expected array only."""


@frozen
class Measured:
    """The measurements of `LeafComparison` for two arrays of one shape."""

    unequal: int
    """How many elements do not have the same bits; all NaNs count as equal."""
    mismatches: int
    """How many elements are beyond the tolerance."""
    max_absolute_error: float | None
    """The largest absolute error of elements that are finite on both sides; None if there are none."""
    mean_absolute_error: float | None
    """The mean of these errors."""
    max_relative_error: float | None
    """The largest error relative to the expected value, of those where that is not zero; None if there are none."""
    mean_relative_error: float | None
    """The mean of these errors."""
    ulp_percentiles: dict[int, float]
    """Errors in units in the last place of the narrower type (`numerics.measuring`), by percentiles: the 100th is the
    maximum, the others are exact up to 64 and within 3 % beyond."""
    cosine: float | None
    """The cosine of the angle between both arrays as vectors, over their finite elements."""
    nans: Places
    """In how many places elements are NaN."""
    infinities: Places
    """The same of infinities."""
    unlike_zeros: int
    """How many zeros have the other sign."""
    mean_severity: float
    """The mean of the errors in units of the tolerance."""
    common: tuple[float, float]
    """By which share all elements within a measured tolerance are off in common, and how many scales that is."""
    severity_within: float
    """The mean severity of the elements that are not beyond their tolerance."""
    infinite_mismatches: int
    """How many elements beyond the tolerance have no finite error."""
    is_within: bool
    """Whether the statistic of the errors that the tolerance is for is within it."""
    first: tuple[ElementDifference, ...]
    """The first elements beyond the tolerance, in logical order."""
    worst: tuple[ElementDifference, ...]
    """The elements of the largest errors, in units of the tolerance."""
    beyond: Array = attrs.field(eq=False)
    """The flat places of the elements beyond their tolerance, of not many more than `MOST_PLACES`."""
    error_map: ErrorMap
    """The worst error in each cell of a grid over the last two dimensions."""
    tolerance: Tolerance

    @property
    def one_sided(self) -> int:
        """In how many places one side has a NaN or an infinity that the other does not have."""
        return sum(self.nans[1:]) + sum(self.infinities[1:])


def measure(
    actual: Array, expected: Array, tolerance: Tolerance, scales: Array | None = None, means: _Means = None
) -> Measured:
    """Compare an array with another of the same dimensions and of a comparable type.

    `scales`, of the same dimensions, are what a measured tolerance is in units of; `means` give those of samples
    at flat places.
    """
    accumulator = _Accumulator(actual, expected, tolerance, scales, means)
    start = 0
    for ours, theirs in blocks(_BLOCK, actual, expected):
        accumulator.add(ours, theirs, start)
        start += ours.size
    return accumulator.result()


def _largest(array: Array) -> float:
    """The largest magnitude of a finite element; 1 where all are zero."""
    largest = 0.0
    with np.errstate(all="ignore"):
        for (block,) in blocks(_BLOCK, array):
            sizes = magnitudes(wide(block))
            finite = np.isfinite(sizes)
            largest = max(largest, float((sizes if finite.all() else sizes[finite]).max(initial=0.0)))
    return largest or 1.0


class _Accumulator:
    """Everything that is counted, summed up and remembered on the second pass."""

    def __init__(
        self, actual: Array, expected: Array, tolerance: Tolerance, scales: Array | None, means: _Means
    ) -> None:
        self._arrays = (actual, expected)
        self._own_scales = None if scales is None else scales.reshape(-1)
        self._means = means
        self._narrow = narrower(element_type_of(actual.dtype), element_type_of(expected.dtype))
        self._tolerance = tolerance
        self._scales = _largest(actual), _largest(expected)
        self._products = np.zeros(3)
        self._histogram = np.zeros(_BUCKETS + 1, np.int64)
        self._most_ulps = 0.0
        self._absolute = _Mean()
        self._relative = _Mean()
        self._unequal = self._mismatches = self._unlike_zeros = self._infinite_mismatches = 0
        self._severity_sum = self._severity_within = 0.0
        self._beyond = [np.empty(0, np.int64)]
        self._common = np.zeros(2)
        self._nans = np.zeros(3, np.int64)
        self._infinities = np.zeros(3, np.int64)
        self._first: list[ElementDifference] = []
        self._worst: list[ElementDifference] = []
        self._map = MapMaker(actual.shape)

    def add(self, ours: Array, theirs: Array, start: int) -> None:
        """Take one piece of both arrays into account."""
        with np.errstate(all="ignore"):
            x, y = wide(ours), wide(theirs)
            same = same_bits(ours, theirs) if ours.dtype == theirs.dtype else _same_values(x, y)
            self._count_placement(x, y)
            self._absolute.count += ours.size
            self._relative.count += ours.size
            self._histogram[0] += int(np.count_nonzero(same))
            places = np.flatnonzero(~same)
            if places.size:
                self._add_unequal(ours[places], theirs[places], x[places], y[places], places + start)

    def _count_placement(self, x: Array, y: Array) -> None:
        if x.dtype.kind not in "fc":
            x, y = x.astype(np.float64), y.astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            for counts, test in ((self._nans, np.isnan), (self._infinities, np.isinf)):
                first, second = test(x), test(y)
                counts += [np.sum(first & second), np.sum(first & ~second), np.sum(second & ~first)]
            self._absolute.count -= int(np.sum(~finite))
            self._relative.count -= int(np.sum(~finite))
            x, y = x[finite], y[finite]
        self._relative.count -= int(np.sum(y == 0))
        x, y = x / self._scales[0], y / self._scales[1]
        # Not by BLAS, whose threads would wait for one another on blocks as small as these.
        self._products += [np.sum(first * second.conj()).real for first, second in ((x, y), (x, x), (y, y))]

    def _add_unequal(self, ours: Array, theirs: Array, x: Array, y: Array, places: Array) -> None:
        """Elements that are not the same, with their flat places."""
        self._unequal += places.size
        ulps = ulp_distances(ours, theirs)
        errors = absolute_errors(x, y, ulps)
        sizes = magnitudes(y)
        if x.dtype.kind == "f":
            self._unlike_zeros += int(np.sum((x == 0) & (y == 0)))
        self._absolute.add(errors[np.isfinite(errors)])
        related = np.isfinite(errors) & np.isfinite(sizes) & (sizes > 0)
        self._relative.add(errors[related] / sizes[related])
        self._add_ulps(ulps[~np.isinf(ulps)])
        scales = None if self._own_scales is None else self._own_scales[places]
        means = None if self._means is None else self._means(places)
        severity = severities(x, y, errors, ulps, self._tolerance, self._narrow, scales, means)
        self._map.add(places, np.full(severity.shape, np.inf) if tolerates_nothing(self._tolerance) else severity)
        too_bad = exceeds(severity, self._tolerance)
        self._mismatches += int(np.count_nonzero(too_bad))
        self._infinite_mismatches += int(np.count_nonzero(too_bad & ~np.isfinite(errors)))
        self._severity_sum += float(severity.sum())
        self._severity_within += float(severity[~too_bad].sum())
        if self._mismatches <= MOST_PLACES:
            self._beyond.append(places[too_bad])
        if means is not None and scales is not None and x.dtype.kind == "f":
            last = self._tolerance.rtol * sizes / self._tolerance.factor if self._tolerance.factor else 0.0
            few = ~too_bad
            centres = means[few].astype(np.float64)
            self._common[0] += np.sum((x[few] - y[few]) * centres)
            self._common[1] += np.sum((np.hypot(scales, last))[few] * np.abs(centres))
        picked = np.flatnonzero(too_bad)[: MOST_ELEMENTS - len(self._first)]
        count = min(MOST_ELEMENTS, places.size)
        order = np.argpartition(-severity, count - 1)[:count]
        for kept, chosen in ((self._first, picked), (self._worst, order)):
            kept += [
                _element(*self._arrays, int(places[k]), float(errors[k]), float(ulps[k]), float(severity[k]))
                for k in chosen
            ]
        self._worst.sort(key=lambda element: (-element.severity, -element.absolute_error, element.index))
        del self._worst[MOST_ELEMENTS:]

    def _add_ulps(self, distances: Array) -> None:
        self._most_ulps = max(self._most_ulps, float(distances.max(initial=0.0)))
        whole = np.ceil(distances)
        fraction, exponent = np.frexp(whole)
        octave = np.maximum(exponent - 7, 0)
        coarse = _EXACT_BUCKETS + octave * _BUCKETS_PER_OCTAVE + ((2 * fraction - 1) * _BUCKETS_PER_OCTAVE).astype(int)
        buckets = np.where(whole < _EXACT_BUCKETS, whole, coarse).astype(np.int64)
        self._histogram += np.bincount(np.minimum(buckets, _BUCKETS), minlength=_BUCKETS + 1)

    def result(self) -> Measured:
        dot, first, second = self._products
        is_known = first > 0 and second > 0
        return Measured(
            unequal=self._unequal,
            mismatches=self._mismatches,
            max_absolute_error=self._absolute.largest if self._absolute.count else None,
            mean_absolute_error=self._absolute.mean,
            max_relative_error=self._relative.largest if self._relative.count else None,
            mean_relative_error=self._relative.mean,
            ulp_percentiles=self._percentiles(),
            cosine=float(dot / np.sqrt(first) / np.sqrt(second)) if is_known else None,
            nans=Places(*self._nans.tolist()),
            infinities=Places(*self._infinities.tolist()),
            unlike_zeros=self._unlike_zeros,
            mean_severity=self._mean_severity,
            severity_within=self._severity_within / max(1, self._arrays[0].size - self._mismatches),
            common=self._common_share(),
            infinite_mismatches=self._infinite_mismatches,
            is_within=self._is_within(),
            first=tuple(self._first),
            worst=tuple(self._worst),
            beyond=np.concatenate(self._beyond),
            error_map=self._map.result(),
            tolerance=self._tolerance,
        )

    @property
    def _mean_severity(self) -> float:
        return self._severity_sum / max(1, self._arrays[0].size)

    def _common_share(self) -> tuple[float, float]:
        drift, scales = self._common.tolist()
        square = float(self._products[2]) * self._scales[1] * self._scales[1]
        return (drift / square, drift / scales) if square and scales else (0.0, 0.0)

    def _is_within(self) -> bool:
        """Where NaN or an infinity stands on one side only, there is no error that a statistic could take in."""
        statistic, count = self._tolerance.check_error, self._arrays[0].size
        if self._infinite_mismatches:
            return False
        if statistic == "mean":
            return not exceeds(np.asarray(self._mean_severity), self._tolerance)
        return 100 * (count - self._mismatches) >= _SHARES[statistic] * count

    def _percentiles(self) -> dict[int, float]:
        total = int(self._histogram.sum())
        if not total:
            return {}
        buckets = np.searchsorted(np.cumsum(self._histogram), [total * percentile / 100 for percentile in PERCENTILES])
        distances = [*(min(_smallest_of(bucket), self._most_ulps) for bucket in buckets[:-1].tolist()), self._most_ulps]
        return dict(zip(PERCENTILES, distances, strict=True))


@define
class _Mean:
    """A mean over elements most of which are zero, and the largest of them."""

    count: int = 0
    largest: float = 0.0
    total: float = 0.0

    def add(self, errors: Array) -> None:
        self.largest = max(self.largest, float(errors.max(initial=0.0)))
        self.total += float(errors.sum())

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count > 0 else None


def _smallest_of(bucket: int) -> float:
    """The smallest distance that falls into a bucket."""
    if bucket < _EXACT_BUCKETS:
        return float(bucket)
    octave, part = divmod(bucket - _EXACT_BUCKETS, _BUCKETS_PER_OCTAVE)
    return float((_BUCKETS_PER_OCTAVE + part) * 2 ** (octave + 1))


def _same_values(x: Array, y: Array) -> Array:
    """Of values of two types: whether they are the same number with the same sign, or both NaN."""
    if x.dtype.kind == "c":
        return _same_values(x.real, y.real) & _same_values(x.imag, y.imag)
    if x.dtype.kind != "f":
        return np.asarray(x == y)
    return np.asarray(((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y)))


def elements_at(actual: Array, expected: Array, places: Array) -> tuple[ElementDifference, ...]:
    """The first of the differing elements at flat places, with their distance in ULPs for their error."""
    first = places[:MOST_ELEMENTS]
    pairs = zip(first.tolist(), ulp_distances(actual.flat[first], expected.flat[first]).tolist(), strict=True)
    return tuple(_element(actual, expected, place, ulps, ulps, ulps) for place, ulps in pairs)


def _element(
    actual: Array, expected: Array, place: int, error: float, ulps: float, severity: float
) -> ElementDifference:
    index = tuple(map(int, np.unravel_index(place, actual.shape)))
    error = np.inf if np.isnan(error) else error
    return ElementDifference(index, _scalar(actual[index]), _scalar(expected[index]), error, ulps, severity)


def _scalar(element: object) -> Any:
    """An element as a Python number."""
    return wide(np.asarray(element).reshape(1))[0].item()
