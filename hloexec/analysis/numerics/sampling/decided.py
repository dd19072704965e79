"""Elements of which rounding chooses between separate values: the sign of a number that is nearly 0 (as in the first
step of Adam or of Lion), a floor at a tie, a route.

Where these may be what makes leaves different, samples of the elements at hand are looked at one by one, from 64 runs
that round at random. An element whose sides lie in two groups (`numerics.sampling.groups`) is *not decided*. If
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

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow.decisions import decided_leaves, ordered_leaves, steep_leaves
from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
from hloexec.analysis.numerics.leaves import Pair
from hloexec.analysis.numerics.measuring import MOST_ELEMENTS, MOST_PLACES
from hloexec.analysis.numerics.sampling.groups import Membership, are_in_tails, groups_of, membership, reach_of
from hloexec.analysis.numerics.sampling.runs import Sample, Sampled, is_far
from hloexec.analysis.numerics.sampling.spread import SAMPLES, STAGES, Spread
from hloexec.analysis.numerics.sequential import MOST_BESIDE
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, label_of
from hloexec.ops.common import wide
from hloexec.ops.policies.chance import FARTHER

_CHANCE = 0.01
"""Of rounding alone being farther from the centre of its group, in some element of a leaf."""
_SHARE = 1 / 16
"""So many elements may be different where decisions are behind a leaf; a fault of a whole leaf is in more."""
_SHARE_BY_STEEPNESS = 1 / 100
"""And where only quotients and poles are."""
_FEW_ROWS = 8
"""Or those of one row of so many: a route decides over a whole row."""
_GROWN = 3.0
"""All samples of an element vary so many times more than the first ones where they are its spread."""
_FIRST = 4
_IN_GROUPS = "rounding chooses between values that are far apart, and both sides are among them"
_IN_TAIL = "beside a pole, rounding moves it far in a few runs, and both sides are as far off"

_Judge: TypeAlias = Callable[[Mapping[str, Spread], Sequence[Pair]], Sequence[LeafComparison]]
"""What compares pairs with these spreads."""


def with_groups(
    found: Comparison,
    pairs: Sequence[Pair],
    spreads: Mapping[str, Spread],
    sample: Sample,
    judge: _Judge,
    module: Module,
) -> Comparison:
    """A comparison, with elements between whose values rounding chooses *not decided*.

    `judge` compares leaves with spreads.
    """
    arrays = {label: (actual, expected) for label, actual, expected in pairs}
    labels = Labels(module)
    places = _beyond(found, labels)
    if not places or sum(leaf.mismatches for leaf in found.different) > MOST_PLACES:
        return found

    def looks_of(runs: Sampled) -> dict[str, _Look]:
        leaves = (leaf for leaf in found.leaves if leaf.label in places)
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
    return _judged(pairs, spreads, looks, judge) if looks else found


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


def _beyond(found: Comparison, labels: Labels) -> dict[str, Array]:
    """Elements that are beyond their tolerance, by leaf; none where a leaf is different that is so as a whole."""
    places = {}
    for leaf in found.different:
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
            if scale > _GROWN * flat[place]:
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
    spreads: Mapping[str, Spread],
    looks: Mapping[str, _Look],
    judge: _Judge,
) -> Comparison:
    """The comparison with what the samples show."""
    own = {label: looks[label].spread(each) if label in looks else each for label, each in spreads.items()}
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
