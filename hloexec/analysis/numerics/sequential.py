"""Taking more samples where those at hand leave a verdict open.

The scale ŝ of an element is drawn from N samples of its own and from what others say of it, and its tolerance is f ŝ
with an f that is capped (`numerics.sampling.spread`). Both can be too little for an element by chance, above
all for one that a single rounding moves, which goes the other way in a few runs only: it is then *different* although
nothing but rounding differs. Its own samples alone would allow for more: error/s follows Student's distribution of
N − 1 degrees of freedom, which one of n elements exceeds t_{N−1}(1/100n) in one leaf of a hundred, and f in
n P(|T_{N−1}| > f) of its elements. A leaf with no more elements beyond its tolerance than that, none of them by more
than that, says too little: more samples are taken, the same runs and further ones, and all of them decide.

This is so where a tolerance was drawn tighter than N samples of an element could have made it, and with more samples it
is so less and less: of a leaf of 32768 elements, 6 samples leave open what is up to 36 scales off, 24 what is up to 7.
What is a fault in all likelihood takes no more runs, even where 6 samples alone would leave it open: what is off by
twice its tolerance, 11 scales (that ŝ is half of what it should be, or less, happens to one element in sixteen for χ²
of 5 degrees of freedom; a fault of 30 spreads passes for it only where ŝ is 2.7 times too large); more than eight
elements; and several of one row, or elements whose row is off as a whole, as chance strikes here and there.

None of this holds where rounding errors have grown to the size of the elements, as in chaotic iterations: they are not
normal, and are as large in one run of several as they are for elements that no run has moved so far. If all that is
beyond its tolerance is of this kind, more samples are taken whatever it is off by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison
from hloexec.analysis.numerics.measuring import MOST_ELEMENTS, Measured, measure
from hloexec.analysis.numerics.sampling.runs import Sampled
from hloexec.analysis.numerics.sampling.spread import FEW, Spread
from hloexec.analysis.numerics.sampling.student import student_quantile, student_tail
from hloexec.core.values import Array

CHANCE = 0.01
"""Of rounding alone being further off in some element of a leaf than what is left open."""
CHANCE_IN_COMMON = 1e-4
"""Of the same in the factor that a leaf's elements have in common: a result may have a hundred leaves."""
_LEAST_IN_COMMON = 0.5
"""By how many scales such a factor moves elements in the mean, or it is left to others' libraries, whose errors may all
have one sign."""
_MOST_SEVERITY = 2.0
"""What is further off, in units of its tolerance, is a fault whatever samples say."""
MOST_BESIDE = 1.5
"""By how many of their scales the others in a row may be off in the mean: two results that are rounded to nearest
differ by a standard deviation of one at most, 0.8 in the mean; a fault of three of them moves the mean to three."""
_GROWN = 0.1
"""A tolerance of this share of an element, beside what its last roundings take, is for errors that have grown to its
size."""
_FEW = 2
"""So many of a row may be off by chance, where no others are."""


def settled(stages: Iterator[Sampled], judge: Callable[[Sampled], Comparison]) -> Comparison:
    """The comparison that is made with what the first of the stages shows, or with that of the first later one that
    leaves nothing open."""
    comparison = judge(next(stages, Sampled()))
    while is_open(comparison):
        found = next(stages, None)
        if found is None:
            break
        comparison = judge(found)
        del found  # The next runs shall not find it in memory.
    return comparison


def is_open(comparison: Comparison) -> bool:
    """Whether more samples might show that nothing but rounding differs: chance may be behind every leaf that is
    different, or a factor that some leaf's elements have in common is farther off than chance mostly puts it."""
    different = comparison.different
    return all(map(_may_be_chance, different)) if different else any(leaf.is_suspect for leaf in comparison.leaves)


def severity_beside(actual: Array, expected: Array, measured: Measured, spread: Spread) -> float:
    """How far the elements are off that stand in a row with some that are beyond their tolerance: the mean of their
    severities, of the row where it is largest; 0 where more elements are beyond it than are listed."""
    found = [0.0]
    columns = expected.shape[-1] if expected.ndim else 1
    rows = dict.fromkeys(element.index[:-1] for element in measured.first)
    is_of_use = measured.tolerance.samples and measured.mismatches <= MOST_ELEMENTS
    for row in rows if is_of_use else ():
        start = columns * int(np.ravel_multi_index(row, expected.shape[:-1])) if row else 0
        means = None if spread.means is None else partial(_from, spread.means, start)
        ours, theirs, scales = (np.atleast_1d(side[row]) for side in (actual, expected, spread.scales))
        here = measure(ours, theirs, measured.tolerance, scales, means)
        found.append(here.severity_within)
    return max(found)


def severity_in_common(measured: Measured, spread: Spread, count: int, chance: float = CHANCE_IN_COMMON) -> float:
    """How far all elements are off in the mean, in units of their tolerance, where that is a fault of the leaf as a
    whole; else 0. Rounding alone is farther off with the given chance.

    A factor that all have in common stands out where it does not in any element. It is a fault if it is more than the
    samples' own factors explain, which are of what moves all alike, too.
    """
    share, scales = map(abs, measured.common)
    is_of_all = count >= FEW and 2 * measured.unequal >= count and scales > _LEAST_IN_COMMON
    is_of_all &= spread.common < _GROWN  # Else they are errors and nothing else.
    if not is_of_all or not share > student_quantile(spread.samples - 1, chance) * spread.common:
        return 0.0
    return scales / spread.factor


def _from(means: Callable[[Array], Array], start: int, places: Array) -> Array:
    return means(places + start)


def _may_be_chance(leaf: LeafComparison) -> bool:
    tolerance, error_map = leaf.tolerance, leaf.error_map
    if not tolerance.samples or error_map is None:
        return False
    if _have_grown(leaf):
        return True
    degrees = tolerance.samples - 1
    expected = leaf.count * student_tail(tolerance.factor, degrees)
    # Three standard deviations more than are to be expected; one is always possible. All of them must be listed.
    most = min(1 + expected + 3 * math.sqrt(expected), MOST_ELEMENTS)
    reach = student_quantile(degrees, CHANCE / leaf.count) / tolerance.factor
    if leaf.mismatches > most or leaf.worst[0].severity > min(reach, _MOST_SEVERITY):
        return False
    if leaf.severity_beside * tolerance.factor > MOST_BESIDE:
        return False
    rows = {element.index[:-1] for element in leaf.first}
    return leaf.mismatches <= _FEW or len(rows) > 1 or leaf.count == error_map.columns


def _have_grown(leaf: LeafComparison) -> bool:
    """Whether errors up to the tolerance are of the size of the elements, for all beyond it that are listed."""
    least = _GROWN + 2 * leaf.tolerance.rtol
    beyond = [*leaf.first, *(element for element in leaf.worst if element.severity > 1)]
    # An infinite error says nothing, and compares as false.
    return all(
        element.absolute_error >= element.severity * least * max(abs(element.actual), abs(element.expected))
        and math.isfinite(element.absolute_error)
        for element in beyond
    )
