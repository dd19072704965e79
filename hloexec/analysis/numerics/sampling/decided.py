"""More samples where a verdict is open, and elements for which rounding chooses between separate values.

Taking more samples where those at hand leave a verdict open.

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

Elements of which rounding chooses between separate values: the sign of a number that is nearly 0 (as in the first
step of Adam or of Lion), a floor at a tie, a route.

Where these may be what makes leaves different, samples of the elements at hand are looked at one by one, from 64 runs
that round at random. An element whose sides lie in two groups (`numerics.sampling.spread`) is *not decided*. If
they lie in one, its spread is that group's. If its samples are no groups but vary far more than the first runs showed,
its spread is that of all of them; beside a pole, where they have a long tail, it is *not decided* within that. All
other elements, and the leaves' rows, are judged as ever, with the spreads of the first runs: those of 64 runs hold the
other groups, too.

A value that rounding yields with the probability p is not among N samples with (1 − p)ᴺ, while what is behind the
decision may be off by up to five spreads, as anything may. Twenty of the runs therefore round three times as far: what
is turned by three spreads is missed by 64 plain runs eleven times in twelve, and by these one time in thirty. What no
sample shows remains *different*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow.dependences import decided_leaves, ordered_leaves, steep_leaves
from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
from hloexec.analysis.numerics.leaves import Pair
from hloexec.analysis.numerics.measuring import MOST_ELEMENTS, MOST_PLACES, Measured, measure
from hloexec.analysis.numerics.sampling.runs import Sample, Sampled, is_far
from hloexec.analysis.numerics.sampling.spread import (
    FEW,
    SAMPLES,
    STAGES,
    Membership,
    Spread,
    Spreads,
    are_in_tails,
    groups_of,
    membership,
    reach_of,
    student_quantile,
    student_tail,
)
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, label_of
from hloexec.ops.common import wide
from hloexec.ops.policies.chance import FARTHER

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
        stage = next(stages, None)
        if stage is None:
            break
        comparison = judge(stage)
        del stage  # The next runs shall not find it in memory.
    return comparison


def is_open(comparison: Comparison) -> bool:
    """Whether more samples might show that nothing but rounding differs: chance may be behind every leaf that is
    different, or a factor that some leaf's elements have in common is farther off than chance mostly puts it."""
    different = comparison.different
    return all(map(_may_be_chance, different)) if different else any(leaf.is_suspect for leaf in comparison.leaves)


def severity_beside(actual: Array, expected: Array, measured: Measured, spread: Spread) -> float:
    """How far the elements are off that stand in a row with some that are beyond their tolerance: the mean of their
    severities, of the row where it is largest; 0 where more elements are beyond it than are listed."""
    severities = [0.0]
    columns = expected.shape[-1] if expected.ndim else 1
    rows = dict.fromkeys(element.index[:-1] for element in measured.first)
    is_of_use = measured.tolerance.samples and measured.mismatches <= MOST_ELEMENTS
    for row in rows if is_of_use else ():
        start = columns * int(np.ravel_multi_index(row, expected.shape[:-1])) if row else 0
        means = None if spread.means is None else partial(_from, spread.means, start)
        ours, theirs, scales = (np.atleast_1d(side[row]) for side in (actual, expected, spread.scales))
        here = measure(ours, theirs, measured.tolerance, scales, means)
        severities.append(here.severity_within)
    return max(severities)


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


_CHANCE = 0.01
"""Of rounding alone being farther from the centre of its group, in some element of a leaf."""
_SHARE = 1 / 16
"""So many elements may be different where decisions are behind a leaf; a fault of a whole leaf is in more."""
_SHARE_BY_STEEPNESS = 1 / 100
"""And where only quotients and poles are."""
_FEW_ROWS = 8
"""Or those of one row of so many: a route decides over a whole row."""
_LARGE_SCALE = 3.0
"""All samples of an element vary so many times more than the first ones where they are its spread."""
_FIRST = 4
_IN_GROUPS = "rounding chooses between values that are far apart, and both sides are among them"
_IN_TAIL = "beside a pole, rounding moves it far in a few runs, and both sides are as far off"

_Judge: TypeAlias = Callable[[Spreads, Sequence[Pair]], Sequence[LeafComparison]]
"""What compares pairs with these spreads."""


def with_groups(
    comparison: Comparison,
    pairs: Sequence[Pair],
    spreads: Spreads,
    sample: Sample,
    judge: _Judge,
    module: Module,
) -> Comparison:
    """A comparison, with elements between whose values rounding chooses *not decided*.

    `judge` compares leaves with spreads.
    """
    arrays = {label: (actual, expected) for label, actual, expected in pairs}
    labels = Labels(module)
    places = _beyond(comparison, labels)
    if not places or sum(leaf.mismatches for leaf in comparison.different) > MOST_PLACES:
        return comparison

    def looks_of(runs: Sampled) -> dict[str, _Look]:
        leaves = (leaf for leaf in comparison.leaves if leaf.label in places)
        return {
            leaf.label: _Look.of(
                leaf,
                arrays[leaf.label],
                places[leaf.label],
                runs.kept[leaf.label],
                labels.is_steep(leaf.label),
            )
            for leaf in leaves
        }

    looks = _looks(sample(stages=STAGES, kept=places, round_far=True), places.keys(), looks_of)
    return _judged(pairs, spreads, looks, judge) if looks else comparison


@define(slots=False, eq=False)
class Labels:
    """The labels of leaves that what chooses is behind."""

    _module: Module

    def decides(self, label: str) -> bool:
        """Whether a decision about floats is behind a leaf."""
        return _has(self._decided, label)

    def is_steep(self, label: str) -> bool:
        """Whether a quotient or a pole is."""
        return _has(self._steep, label)

    def is_ordered(self, label: str) -> bool:
        """Whether an order of floats is."""
        return _has(self._ordered, label)

    def chooses(self, label: str) -> bool:
        """Whether either is."""
        return self.decides(label) or self.is_steep(label)

    @cached_property
    def _decided(self) -> frozenset[str]:
        return frozenset(map(label_of, decided_leaves(self._module)))

    @cached_property
    def _ordered(self) -> frozenset[str]:
        return frozenset(map(label_of, ordered_leaves(self._module)))

    @cached_property
    def _steep(self) -> frozenset[str]:
        return frozenset(map(label_of, steep_leaves(self._module)))


def _has(labels: frozenset[str], label: str) -> bool:
    """Whether a leaf is among those of a device's result; of several devices', labels have the number in front."""
    rest = label.partition(".")[2]
    lone = ("value", "0") if label in ("value", "0") else ()
    return not labels.isdisjoint((label, rest or "value", *lone))


def _beyond(comparison: Comparison, labels: Labels) -> dict[str, Array]:
    """Elements that are beyond their tolerance, by leaf; none where a leaf is different that is so as a whole."""
    places = {}
    for leaf in comparison.different:
        measured = leaf.measured
        if measured is None or leaf.tolerance.is_given or leaf.ulp_type[:1] == "c" or not labels.chooses(leaf.label):
            return {}
        # What is off as a whole is a fault.
        if is_whole(leaf):
            return {}
        most = _SHARE if labels.decides(leaf.label) else _SHARE_BY_STEEPNESS
        columns = max(1, measured.error_map.columns)
        are_in_few_rows = np.unique(measured.beyond // columns).size <= max(1, leaf.count // columns // _FEW_ROWS)
        if leaf.mismatches > max(MOST_ELEMENTS, most * leaf.count) and not are_in_few_rows:
            return {}
        places[leaf.label] = measured.beyond
    return places


def is_whole(leaf: LeafComparison) -> bool:
    """Whether a leaf that is different is off as a whole, beside what is beyond its tolerance."""
    within = 0.0 if leaf.measured is None else leaf.measured.severity_within
    return leaf.tolerance.factor * max(leaf.severity_beside, within) > MOST_BESIDE or not leaf.mismatches


def _looks(
    stages: Iterator[Sampled], labels: Set[str], looks_of: Callable[[Sampled], dict[str, _Look]]
) -> dict[str, _Look]:
    """What all runs show; nothing where that changes no verdict. Where many are off, a third of the runs tells."""
    looks: dict[str, _Look] = {}
    for count, runs in zip(STAGES, stages, strict=False):
        if runs.failure or runs.kept.keys() != labels:
            return {}
        if count == SAMPLES:
            continue
        looks = looks_of(runs)
        if count < STAGES[-1] and any(look.are_many_failing for look in looks.values()):
            return {}
    return looks


@frozen(eq=False)
class _Look:
    """What the samples of elements of a leaf show."""

    leaf: LeafComparison
    places: Array
    open: Mapping[int, tuple[str, str]]
    """Elements whose sides are in two groups, or in a tail: why they are, and what the runs gave."""
    scales: Mapping[int, float]
    """What the spread of others is that have groups, or that vary far more than the first samples."""
    grown: Mapping[int, float]
    """The standard deviations of those that have none."""
    failing: int
    """How many are in no group."""
    samples: int

    @property
    def are_many_failing(self) -> bool:
        return self.failing > max(MOST_ELEMENTS, self.places.size // 4)

    @classmethod
    def of(
        cls,
        leaf: LeafComparison,
        sides: tuple[Array | None, Array | None],
        places: Array,
        kept: Array,
        is_steep: bool,
    ) -> _Look:
        """`kept` has a row of samples for each run."""
        actual, expected = sides
        assert actual is not None
        assert expected is not None
        chance = _CHANCE / max(1, leaf.count)
        chosen: dict[int, tuple[str, str]] = {}
        scales: dict[int, float] = {}
        grown: dict[int, float] = {}
        failing = 0
        are_far = np.array([is_far(number) for number in range(len(kept))])
        reaches = np.where(are_far, FARTHER, 1.0)
        for place, x, y, own in zip(places.tolist(), _f64(actual, places), _f64(expected, places), kept.T, strict=True):
            last = leaf.tolerance.atol + leaf.tolerance.rtol * float(np.abs(own).max(initial=0.0))
            groups = groups_of(own, last, reaches) or groups_of(own[~are_far], last)
            if not groups:
                own = own[~are_far]
                if np.isfinite(own).all():
                    grown[place] = float(np.std(own, ddof=1))
                if not abs(x - y) <= reach_of(grown.get(place, 0.0), len(own) - 1, last, chance):
                    if is_steep and place in grown and are_in_tails(x, y, own):
                        chosen[place] = _IN_TAIL, f"between {own.min():.6g} and {own.max():.6g}"
                    else:
                        failing += 1
                elif leaf.tolerance.factor and place in grown:
                    # So many runs of its own say more than the first few.
                    scales[place] = max(grown[place], abs(float(x - y)) / leaf.tolerance.factor)
                continue
            where = membership(float(x), float(y), groups, last, chance, is_steep=is_steep)
            if where is Membership.OTHER:
                values = " and ".join(f"{group.centre:.6g} in {group.count}" for group in groups)
                chosen[place] = _IN_GROUPS, values
                continue
            failing += where is not Membership.SAME
            if where is Membership.BETWEEN and is_steep:
                continue
            scale = max(group.scale for group in groups)
            is_within = where is Membership.SAME and leaf.tolerance.factor
            # The mean of all samples, which errors are measured from, too, is not that of the group.
            scales[place] = max(scale, abs(float(x - y)) / leaf.tolerance.factor) if is_within else scale
        return cls(leaf, places, chosen, scales, grown, failing, len(kept))

    def spread(self, before: Spread) -> Spread:
        """The spread of the leaf with that of its groups."""
        scales = before.scales.copy()
        flat = scales.reshape(-1)
        for place, scale in self.scales.items():
            flat[place] = scale
        for place, scale in self.grown.items():
            if scale > _LARGE_SCALE * flat[place]:
                flat[place] = scale
        return attrs.evolve(before, scales=scales)

    def masked(self, pair: Pair) -> Pair:
        """The pair with elements that are not decided as they are expected."""
        label, actual, expected = pair
        if not self.open or actual is None or expected is None:
            return pair
        mask = self.mask(expected)
        return label, np.where(mask, expected.astype(actual.dtype), actual), expected

    def mask(self, array: Array) -> Array:
        """Which elements are not decided."""
        mask = np.zeros(array.size, np.bool_)
        mask[list(self.open)] = True
        return mask.reshape(array.shape)

    def undecided(self, shape: tuple[int, ...]) -> Undecided:
        """What is not decided, and why."""
        indices = [tuple(map(int, np.unravel_index(place, shape))) for place in list(self.open)[:_FIRST]]
        why, values = next(iter(self.open.values()))
        where = f"[{', '.join(map(str, indices[0]))}]" if shape else "it"
        far = sum(map(is_far, range(self.samples)))
        runs = f"of {self.samples} runs that round at random, {far} of them {FARTHER:g} times as far"
        reason = f"{why}: {runs}, {where} is {values}"
        return Undecided(len(self.open), tuple(indices), (), reason)


def _judged(
    pairs: Sequence[Pair],
    spreads: Spreads,
    looks: Mapping[str, _Look],
    judge: _Judge,
) -> Comparison:
    """The comparison with what the samples show."""
    own = {label: looks[label].spread(spread) if label in looks else spread for label, spread in spreads.items()}
    masked = [looks[pair[0]].masked(pair) if pair[0] in looks else pair for pair in pairs]
    rest = judge(own, masked)
    whole = {leaf.label: leaf for leaf in judge(own, pairs)}
    shapes = {label: expected.shape for label, _, expected in pairs if expected is not None}
    return Comparison(
        tuple(
            _joined(leaf, whole[leaf.label], looks[leaf.label].undecided(shapes[leaf.label]))
            if leaf.label in looks and looks[leaf.label].open
            else leaf
            for leaf in rest
        )
    )


def _joined(rest: LeafComparison, whole: LeafComparison, undecided: Undecided) -> LeafComparison:
    """A leaf of which some elements are not decided."""
    other = rest.undecided
    if other is not None:
        undecided = Undecided(
            undecided.element_count + other.element_count,
            (undecided.first + other.first)[:_FIRST],
            other.instructions,
            f"{undecided.reason}; {other.reason}",
        )
    if rest.verdict is Verdict.DIFFERENT:
        return attrs.evolve(rest, undecided=undecided)
    return attrs.evolve(whole, verdict=Verdict.NOT_DECIDED, undecided=undecided)


def _f64(array: Array, places: Array) -> Array:
    return wide(array.reshape(-1)[places]).astype(np.float64)
