"""What rounding does to each element of a module's results, and the few statistics that this takes.

Samples of one element that fall into groups: a decision (a floor at a tie, the sign of what is nearly 0, a route)
goes one way in some runs, and the other way in the others.

A standard deviation of all samples says nothing of such an element. Each group has a centre and a spread of its own,
and a number belongs to the group whose centre it is nearest to. Groups are separate if each gap between them is twice
as wide as all of them together, and wider than a few last roundings.

What rounding does to each element of a module's results, measured by a few runs that round at random.

The runs of a module under the `random-rounding` policy differ by nothing but rounding, so that the standard deviation s
of an element over them is its own scale: what rounding does to *it*, whatever stands beside it. Rounding to nearest has
half of the variance of rounding at random (a twelfth of the squared distance of neighbours, not a sixth), so two runs
that round to nearest, each in its way, differ by a standard deviation of s at most.

N samples know s² no better than a χ² of ν = N − 1 degrees of freedom does. Elements of one leaf help one another: their
scales mostly follow their size, their row and their column. A leaf's log s² are fitted by effects of each dimension's
places and of each quarter of a binade of sizes (medians, so that a row of huge numbers changes nothing but its own
effect); how far most of them lie about the fit, beyond what χ² explains, says for how many degrees of freedom d₀ the
fit itself counts (G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression",
2004). The scale of an element is then ŝ² = (d₀ fit + ν s²)/(d₀ + ν), of one that no sample has moved, too, as what goes
up once in ten times does not show in half of all sets of six. And error/ŝ follows Student's distribution of d₀ + ν
degrees of freedom: `factor` is what that exceeds in one leaf in a hundred, if elements are independent, but 6.5 at
most. Where so few degrees of freedom are left that more would be due, faults of ten times the spread would pass; and
what results that are rounded to nearest differ by, which is half as much or less, hardly ever needs it
(docs/verdicts.md). (Sohier, de Oliveira Castro, Févotte, Lathuilière, Petit and Jamond, "Confidence intervals for
stochastic arithmetic", 2021, give intervals for one result.)

Where the samples' mean m is at hand, the error of two results x and y is the lesser of |x − y| and of the larger of
|x − m| and |y − m|, and 5.5 is enough. Errors of two honest results are independent: for both to be T apart they need
half of that each, where one of them alone would need all of it, which for T of four true spreads is fifty times less
likely; a fault of one side, however, stands out against the mean as much as against the other side.
"""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array

_MOST_DEGREES = 200.0
"""Beyond, the normal distribution is as near as it matters; fewer degrees of freedom are on the safe side."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


@cache
def student_quantile(degrees: float, chance: float) -> float:
    """What |t| exceeds with this chance, where t follows Student's distribution with `degrees` degrees of freedom."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > chance else (low, middle)
    return high


def student_tail(t: float, degrees: float) -> float:
    """P(|T| > t): with t = √ν tan φ the density is proportional to cos^(ν − 1) φ, of which this is the integral from φ
    to π/2 over that from 0, B(½, ν/2)/2."""
    count = min(degrees, _MOST_DEGREES)
    end = math.atan2(math.sqrt(count), t)
    angles = end / 2 * (_NODES + 1)
    integral = float(end / 2 * np.sum(_WEIGHTS * np.sin(angles) ** (count - 1)))
    whole = math.exp(math.lgamma(0.5) + math.lgamma(count / 2) - math.lgamma((count + 1) / 2)) / 2
    return integral / whole


def digamma(x: float) -> float:
    """ψ(x) for x > 0: ψ(x) = ψ(x + 1) − 1/x up to where its asymptotic series is exact (DLMF 5.11.2)."""
    shift = 0.0
    while x < 12:
        shift += 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return math.log(x) - 1 / (2 * x) - series - shift


def trigamma(x: float) -> float:
    """ψ′(x) for x > 0, in the same way (DLMF 5.15.8)."""
    shift = 0.0
    while x < 12:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return series + shift


def inverse_trigamma(y: float) -> float:
    """x > 0 with ψ′(x) = y > 0; ψ′ falls from infinity to 0."""
    low, high = 1e-6, 1.0
    while trigamma(high) > y:
        low, high = high, 2 * high
        if high > 1e12:
            return high
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > y else (low, middle)
    return high


_MOST_GROUPS = 4
_ROUNDINGS = 4.0
"""How many times wider than what the last roundings take each gap between groups is."""
_GAP = 2.0
"""And how many times wider than all groups together."""
_TAIL = 1 / 64
"""How much of the gap to the next group the tail of a group takes, beside a pole."""
_PRIOR = 4.0
"""For how many samples of a group the spread within all groups counts."""
_FURTHER = 2.0
"""How many times further than the farthest sample a side may be beside a pole: of x / y for y about 0, whose tails are
of index 1, half of those that are beyond all samples are within twice as much."""
_MOST_FACTOR = 5.5
"""As of other spreads (`numerics.sampling.spread`)."""


@frozen
class Group:
    """Samples of an element that lie close together."""

    centre: float
    count: int
    scale: float
    """Their standard deviation, drawn towards that within all groups."""
    degrees: float


class Membership(enum.Enum):
    """Where two numbers lie."""

    SAME = "in one group, as far apart as its spread explains"
    OTHER = "in two groups, or in the tail of one"
    BETWEEN = "one of them between groups"
    NONE = "one of them beyond all groups"


def groups_of(samples: Array, last: float, reaches: Array | None = None) -> tuple[Group, ...]:
    """The groups that samples of an element fall into; empty where they are not separate, or not all finite. `last` is
    what its last roundings take. Errors of samples are `reaches` times as large as those of rounding."""
    order = np.argsort(samples, kind="stable")
    values = np.asarray(samples, np.float64)[order]
    reaches = np.ones(values.size) if reaches is None else reaches[order]
    last *= reaches.max(initial=1.0)
    if not np.isfinite(values).all():
        return ()
    gaps = np.diff(values)
    by_gap = np.argsort(-gaps, kind="stable")
    for count in range(1, min(_MOST_GROUPS, gaps.size + 1)):
        cuts = np.sort(by_gap[:count])
        smallest = float(gaps[cuts].min())
        within = float(values[-1] - values[0] - gaps[cuts].sum())
        if smallest > _ROUNDINGS * last and smallest > _GAP * within:
            edges = [0, *(cuts + 1).tolist(), values.size]
            return _groups([(values[i:j], 1 / reaches[i:j] ** 2) for i, j in pairwise(edges)])
    return ()


def _groups(parts: Sequence[tuple[Array, Array]]) -> tuple[Group, ...]:
    centres = [float(np.average(part, weights=weights)) for part, weights in parts]
    squares = [
        float(np.sum(weights * (part - centre) ** 2)) for (part, weights), centre in zip(parts, centres, strict=True)
    ]
    degrees = sum(part.size - 1 for part, _ in parts)
    common = sum(squares) / degrees if degrees else 0.0
    return tuple(
        Group(
            centre,
            part.size,
            math.sqrt((own + _PRIOR * common) / (part.size - 1 + _PRIOR)),
            part.size - 1 + _PRIOR,
        )
        for (part, _), centre, own in zip(parts, centres, squares, strict=True)
    )


def membership(
    x: float, y: float, groups: Sequence[Group], last: float, chance: float, *, is_steep: bool
) -> Membership:
    """Where the two sides of an element lie; rounding alone is farther from a centre with the given chance.

    Near a pole, groups have long tails towards each other: a side may be a small share of the way to the next group
    away from its own. Where a numerator cancels to 0, as x / |x| has either sign beside it, a side is midway.
    """
    first, second = (min(groups, key=lambda group: abs(side - group.centre)) for side in (x, y))
    is_far = False
    for side, group in ((x, first), (y, second)):
        distance = abs(side - group.centre)
        reach = reach_of(group.scale, group.degrees, last, chance)
        if not distance <= reach:
            is_far = True
            gap = min(abs(group.centre - other.centre) for other in groups if other is not group)
            is_outside = _is_outside(side, groups)
            is_midway = not is_outside and abs(distance - gap / 2) <= reach
            if not (is_steep and (distance <= _TAIL * gap or is_midway)):
                return Membership.NONE if is_outside else Membership.BETWEEN
    return Membership.SAME if first is second and not is_far else Membership.OTHER


def are_in_tails(x: float, y: float, samples: Array) -> bool:
    """Whether two sides are no further from the middle of samples than these themselves lead to expect, which lie much
    further away on that side than the middle half does."""
    low, centre, high = np.quantile(samples, (0.25, 0.5, 0.75))
    reach = _MOST_FACTOR * (high - low) / 1.35  # Of a normal distribution.
    is_far = False
    for side in (x, y):
        if not abs(side - centre) <= reach:
            farthest = float(np.max((samples - centre) * np.sign(side - centre)))
            if not (farthest > reach and abs(side - centre) <= _FURTHER * farthest):
                return False
            is_far = True
    return is_far


def _is_outside(side: float, groups: Sequence[Group]) -> bool:
    return not groups[0].centre <= side <= groups[-1].centre


def reach_of(scale: float, degrees: float, last: float, chance: float) -> float:
    """How far off rounding may be."""
    return math.hypot(last, min(_MOST_FACTOR, student_quantile(degrees, chance)) * scale)


SAMPLES = 6
"""Runs that a comparison takes."""
STAGES = (SAMPLES, 24, 64)
"""How many it takes in all, where those before leave it open whether chance explains what is off
(`numerics.sampling.decided`)."""
FEW = 16
"""Fewer elements than this tell nothing of one another."""
_SIZES_PER_BINADE = 4
_SWEEPS = 3
_MOST_PRIOR = 4.0
"""So many times as much as its own samples the others may count for an element: one that rounding moves ten times as
much as its fit says is then held to no less than half of its scale."""
_FAR = 3.0
"""An element is an outlier if it is this many interquartile ranges away from the middle half."""
_UNLIKELY = 4.0
"""An element whose samples vary so many times more than the others make of it is held to what they show: of six samples
of the others' scale, that happens to one in a thousand."""


_LITTLE = 1 << 14
"""So many numbers are sooner sorted than searched for their median."""


@frozen(eq=False)
class Spread:
    """The rounding errors of the elements of one leaf."""

    scales: Array
    """ŝ of each element, in the leaf's dimensions: 0 where nothing says that any sample might differ, infinite where
    samples differ in whether they are finite, and where they are NaN."""
    samples: int
    degrees: float
    """How many degrees of freedom the scales have."""
    factor: float
    """By how many scales rounding may be off."""
    means: Callable[[Array], Array] | None = None
    """What gives the means of the samples of elements, by their places in the flat leaf. Where they are known, both
    sides are compared with them, too (`numerics.measuring`)."""
    common: float = math.nan
    """The standard deviation of the factor that all elements of a sample have in common."""


Spreads: TypeAlias = Mapping[str, Spread]
"""By the labels of leaves."""


def moderated(scales: Array, magnitudes: Array, degrees: int) -> tuple[Array, float]:
    """The scales, each drawn towards what the others say of it, and their degrees of freedom."""
    has_size = (magnitudes > 0) & np.isfinite(magnitudes) & np.isfinite(scales)
    has_scale = has_size & (scales > 0)
    if np.count_nonzero(has_scale) < FEW:
        # Too few to fit: those that no sample has moved get the relative scale that the others have in the median.
        relative = np.median(scales[has_scale] / magnitudes[has_scale]) if has_scale.any() else 0.0
        return np.where(has_size & ~has_scale, relative * magnitudes, scales), float(degrees)
    # Squares need not be numbers where scales are: all that follows is done with logarithms.
    logs = 2 * np.log(scales)
    sizes = np.floor(_SIZES_PER_BINADE * np.log2(np.where(has_size, magnitudes, 1))).astype(np.int32)
    if np.mean(magnitudes[has_scale] <= scales[has_scale]) > 0.5:
        # Most elements are errors and nothing else. So are those of which no sample shows any, as of the smallest.
        zeros = (magnitudes == 0) & (scales == 0)
        sizes[zeros] = sizes[has_scale].min()
        has_size |= zeros
    fit = _fit(np.where(has_scale, logs, np.nan), sizes)
    half = degrees / 2
    residuals = _usual((logs - fit)[has_scale].astype(np.float64), trigamma(half))
    excess = float(np.var(residuals)) - trigamma(half)
    # However well the fit explains most elements, there may be a few that it does not: their own samples count.
    prior = 2 * inverse_trigamma(excess) if excess > 0 else math.inf
    prior = min(prior, _MOST_PRIOR * degrees)
    centre = float(np.mean(residuals)) - digamma(half) + math.log(half)
    del residuals
    fit += centre + digamma(prior / 2) - math.log(prior / 2) + math.log(prior)
    drawn = np.logaddexp(fit, logs + math.log(degrees)) - math.log(prior + degrees)
    kept = ~has_size | (logs > drawn + math.log(_UNLIKELY))
    drawn = np.exp(drawn / 2)
    drawn[kept] = scales[kept]
    return drawn, prior + degrees


def _usual(residuals: Array, variance: float) -> Array:
    """Those that do not lie far outside of the middle half of all: a few elements of other sizes than the rest, in a
    leaf that has too few to tell sizes apart, say nothing of how well the fit explains the others."""
    low, high = np.quantile(residuals, (0.25, 0.75))
    # The middle half of a normal distribution is 1.35 standard deviations wide.
    reach = _FAR * max(high - low, 1.35 * math.sqrt(variance))
    return np.asarray(residuals[(residuals >= low - reach) & (residuals <= high + reach)])


def _fit(logs: Array, sizes: Array) -> Array:
    """What size, and places along each of several dimensions, say of each element; NaN means unknown."""
    fit = np.zeros_like(logs)
    effects = _effects(logs.shape)
    bins = _bins(sizes, ~np.isnan(logs))
    for _ in range(_SWEEPS):
        for axes in effects:
            # A row may have no element that is known.
            effect = _medians(logs - fit, axes)
            fit += np.where(np.isnan(effect), 0, effect)
        flat, rest = fit.reshape(-1), (logs - fit).reshape(-1)
        for places in bins:
            flat[places] += _medians(rest[places], (0,))
    return fit


def _medians(values: Array, axes: tuple[int, ...]) -> Array:
    """`np.nanmedian(values, axes, keepdims=True)`, which takes long for few numbers."""
    if values.size > _LITTLE:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            return np.asarray(np.nanmedian(values, axis=axes, keepdims=True))
    kept = [axis for axis in range(values.ndim) if axis not in axes]
    rows = np.sort(values.transpose(*kept, *axes).reshape(*(values.shape[axis] for axis in kept), -1))
    # NaNs come last.
    counts = np.add.reduce(~np.isnan(rows), axis=-1, keepdims=True)
    low, high = (np.take_along_axis(rows, np.maximum(counts - less, 0) // 2, -1) for less in (1, 0))
    shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
    return np.asarray(((low + high) / 2).reshape(shape))


def _effects(dimensions: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Along which dimensions medians are taken: first along all but one, then along one alone where it is long, which
    tells the rows of one matrix from those of another in a stack of them."""
    axes = [axis for axis, size in enumerate(dimensions) if size > 1]
    if len(axes) < 2:
        return []
    axis_groups = [tuple(other for other in range(len(dimensions)) if other != axis) for axis in axes]
    if len(axes) > 2:
        axis_groups += [(axis,) for axis in axes if dimensions[axis] >= FEW]
    return axis_groups


def _bins(sizes: Array, settled: Array) -> list[Array]:
    """The places (in a flat leaf) of elements in groups of about the same size: those of one size, with those of the
    sizes above as long as few of them are known."""
    flat, is_known = sizes.reshape(-1), settled.reshape(-1)
    distinct_sizes, counts = np.unique(flat[is_known], return_counts=True)
    edges: list[int] = []
    count = 0
    for size, many in zip(distinct_sizes.tolist(), counts.tolist(), strict=True):
        if not edges or count >= FEW:
            edges.append(size)
            count = 0
        count += many
    if len(edges) > 1 and count < FEW:
        edges.pop()
    groups = np.searchsorted(edges[1:], flat, side="right")
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.searchsorted(groups[order], np.arange(1, len(edges))))


def by_either_label(spreads: Spreads) -> Spreads:
    """The spreads, where a lone leaf may be labelled in either way."""
    return {**spreads, **dict.fromkeys(("value", "0"), *spreads.values())} if len(spreads) == 1 else spreads
