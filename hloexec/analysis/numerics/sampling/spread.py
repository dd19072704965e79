"""What rounding does to each element of a module's results, measured by a few runs that round at random.

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

import math
import warnings
from collections.abc import Callable

import numpy as np

from hloexec.analysis.numerics.sampling.student import digamma, inverse_trigamma, trigamma
from hloexec.core.structs import frozen
from hloexec.core.values import Array

SAMPLES = 6
"""Runs that a comparison takes."""
STAGES = (SAMPLES, 24, 64)
"""How many it takes in all, where those before leave it open whether chance explains what is off
(`numerics.sequential`)."""
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
    sides are compared with them, too (`numerics.severities`)."""
    common: float = math.nan
    """The standard deviation of the factor that all elements of a sample have in common."""


def moderated(scales: Array, magnitudes: Array, degrees: int) -> tuple[Array, float]:
    """The scales, each drawn towards what the others say of it, and their degrees of freedom."""
    has_size = (magnitudes > 0) & np.isfinite(magnitudes) & np.isfinite(scales)
    known = has_size & (scales > 0)
    if np.count_nonzero(known) < FEW:
        # Too few to fit: those that no sample has moved get the relative scale that the others have in the median.
        relative = np.median(scales[known] / magnitudes[known]) if known.any() else 0.0
        return np.where(has_size & ~known, relative * magnitudes, scales), float(degrees)
    # Squares need not be numbers where scales are: all that follows is done with logarithms.
    logs = 2 * np.log(scales)
    sizes = np.floor(_SIZES_PER_BINADE * np.log2(np.where(has_size, magnitudes, 1))).astype(np.int32)
    if np.mean(magnitudes[known] <= scales[known]) > 0.5:
        # Most elements are errors and nothing else. So are those of which no sample shows any, as of the smallest.
        zeros = (magnitudes == 0) & (scales == 0)
        sizes[zeros] = sizes[known].min()
        has_size |= zeros
    fit = _fit(np.where(known, logs, np.nan), sizes)
    half = degrees / 2
    residuals = _usual((logs - fit)[known].astype(np.float64), trigamma(half))
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
    found = [tuple(other for other in range(len(dimensions)) if other != axis) for axis in axes]
    if len(axes) > 2:
        found += [(axis,) for axis in axes if dimensions[axis] >= FEW]
    return found


def _bins(sizes: Array, known: Array) -> list[Array]:
    """The places (in a flat leaf) of elements in groups of about the same size: those of one size, with those of the
    sizes above as long as few of them are known."""
    flat, is_known = sizes.reshape(-1), known.reshape(-1)
    found, counts = np.unique(flat[is_known], return_counts=True)
    edges: list[int] = []
    count = 0
    for size, many in zip(found.tolist(), counts.tolist(), strict=True):
        if not edges or count >= FEW:
            edges.append(size)
            count = 0
        count += many
    if len(edges) > 1 and count < FEW:
        edges.pop()
    groups = np.searchsorted(edges[1:], flat, side="right")
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.searchsorted(groups[order], np.arange(1, len(edges))))
