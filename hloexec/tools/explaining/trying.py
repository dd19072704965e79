"""Trying policies for a module or some of its instructions, and how near each comes to what is expected.

Let e be what is expected, p what a policy gives, and s what random rounding under `reference` does to an element (its
spread, and the last rounding of either side). What remains is (e − p)/s. With δ = (p − c)/s the effect of a policy p as
opposed to another, c, the share of that effect in what is expected is

    t = ⟨(e − c)/s, δ⟩ / ⟨δ, δ⟩,

the coefficient of the regression of e − c on p − c: 1 where p is what happened, 0 where c is. Rounding moves t, too;
how far is measured: the same coefficient of runs that round at random, instead of e, is the error of t, however errors
of elements depend on one another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property

import attrs
import numpy as np

from hloexec.analysis.calls import entered_computations
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import LeafComparison
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.measuring import measure, narrower, same_bits, ulp_distances
from hloexec.analysis.numerics.sampling.runs import Samples
from hloexec.analysis.numerics.sampling.spread import SAMPLES, Spread, Spreads
from hloexec.analysis.numerics.tolerances import measured_tolerance
from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.ir import Module
from hloexec.core.places import split_name
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, join_values
from hloexec.errors import EvaluationError, ResourceError, UnsupportedError
from hloexec.ops.common import is_inexact, wide
from hloexec.ops.policies.backends import concerns
from hloexec.ops.policies.policy import POLICIES, REFERENCE, NumericsPolicy, combined, mixed
from hloexec.tools.explaining.findings import Trial
from hloexec.tools.summary import summarize_computations

_WORK = 10**11
"""Operations that a search may take, of contractions and beside them."""
_OF_AN_INSTRUCTION = 20_000
"""Operations that take as long as an instruction of few elements does."""
_RUNS = (60, 1000)
"""A search has so many runs at least, and at most."""


@frozen
class Group:
    """Some instructions of one opcode."""

    opcode: str
    names: tuple[str, ...]
    """As policies name them: `body/dot.3`."""

    def parts(self, count: int) -> list[Group]:
        """The group in so many parts of neighbours, at most."""
        size = -(-len(self.names) // max(1, count))
        return [Group(self.opcode, self.names[at : at + size]) for at in range(0, len(self.names), size)]


def single_units(module: Module, policy: NumericsPolicy, base: NumericsPolicy = REFERENCE) -> list[str]:
    """The instructions that a policy may compute otherwise, in the order in which they run, but for those for which
    `base` has a policy that contradicts it."""
    return [
        f"{computation.name}/{instruction.name}"
        for computation in entered_computations(module)
        for instruction in computation
        if concerns(policy, computation, instruction)
        and all(combined(part, policy) for part in base.of(computation.name, instruction.name).plain_parts)
    ]


def groups_of(module: Module, policy: NumericsPolicy, base: NumericsPolicy = REFERENCE) -> list[Group]:
    """The instructions that a policy may compute otherwise, by opcode, in the order in which they run."""
    names_by_opcode: dict[str, list[str]] = {}
    for name in single_units(module, policy, base):
        home, instruction = split_name(name)
        names_by_opcode.setdefault(module.by_name[home].by_name[instruction].opcode, []).append(name)
    return [Group(opcode, tuple(names)) for opcode, names in names_by_opcode.items()]


def spelled(module: Module, policy: NumericsPolicy) -> NumericsPolicy:
    """The same policy with all that is chosen for instructions spelled out, each by its name."""
    result: NumericsPolicy = policy
    for part in policy.chosen_parts:
        if part not in policy.plain_parts:
            continue
        names = [name for group in groups_of(module, part) for name in group.names]
        having = [name for name in names if part in policy.of_name(name).plain_parts]
        bare = result.without_default(part)
        spelled = mixed(bare, part, having)
        result = spelled if spelled is not None else result
    return result


def most_runs(module: Module) -> int:
    """How many runs of a module a search may take: so that the same question has the same answer on any machine, it is
    work that is limited, not time. Loops count as often as they say."""
    work = sum(
        summary.flops + summary.runs * summary.instructions * _OF_AN_INSTRUCTION
        for summary in summarize_computations(module)
    )
    return min(max(_WORK // max(1, work), _RUNS[0]), _RUNS[1])


Leaves = dict[str, Array]
"""The arrays of a result, by label."""
FAR = 1e6
"""Elements that are further off, or a number on one side only, count as this many units."""
_MOST = 1 << 18
"""Number of elements that are looked at, evenly spread."""
_REWEIGHTINGS = 15


def leaves_from(results: Sequence[Value], which: str) -> Leaves:
    """The leaves of the results of one or several devices."""
    return dict(leaves_of(join_values(results), which))


def spreads_of(samples: Sequence[Leaves]) -> dict[str, Spread]:
    """What rounding does to the elements of each leaf of floats, as runs show it that round at random."""
    spreads = {}
    for label, first in samples[0].items():
        if not is_inexact(first):
            continue
        moments = Samples(first)
        if all(label in sample and moments.fits(sample[label]) for sample in samples):
            for sample in samples[1:]:
                moments.add(sample[label])
            spreads[label] = moments.spread(has_means=True)
    return spreads


@frozen(eq=False)
class Scale:
    """The units of the elements, and how a result becomes a vector of them."""

    labels: tuple[str, ...]
    units: Mapping[str, Array]
    step: int
    """Of so many elements, one is looked at."""

    @classmethod
    def of(cls, expected: Leaves, spreads: Spreads) -> Scale:
        """The units for what is expected: of floats, where there are any; else elements are right or wrong."""
        floats = {label: array for label, array in expected.items() if is_inexact(array)}
        labels = tuple(floats or expected)
        step = max(1, math.ceil(sum(expected[label].size for label in labels) / _MOST))
        units = {}
        for label, array in floats.items():
            entry = element_type_of(array.dtype)
            sizes = np.nan_to_num(np.abs(wide(array.reshape(-1)[::step])), posinf=0.0)
            last = sizes * unit_roundoff(entry)
            smallest = float(np.finfo(np.float64).smallest_normal if entry.bits >= 64 else 2.0**-149)
            units[label] = np.maximum(last, smallest)
            if entry.is_complex:
                units[label] = np.repeat(units[label], 2)
        return cls(labels, units, step).widened(spreads)

    def widened(self, spreads: Spreads) -> Scale:
        """Units that are as large as these spreads, too."""
        units = dict(self.units)
        for label in self.labels:
            spread = spreads.get(label)
            if spread is None or label not in units:
                continue
            scales = np.nan_to_num(_taken(spread.scales, self.step).astype(np.float64), posinf=0.0)
            if scales.size and units[label].size % scales.size == 0:
                units[label] = np.hypot(units[label], np.repeat(scales, units[label].size // scales.size))
        return attrs.evolve(self, units=units)

    def vector(self, ours: Leaves, theirs: Leaves) -> Array:
        """(ours − theirs)/s, elements that are no numbers on either side being equal."""
        parts = [np.zeros(0)]
        for label in self.labels:
            first, second = (_taken(side[label], self.step) for side in (ours, theirs))
            if label not in self.units:
                parts.append((first > second).astype(np.float64) - (first < second))
                continue
            with np.errstate(all="ignore"):
                differences = np.clip((first - second) / self.units[label], -FAR, FAR)
            finite = np.isfinite(first) & np.isfinite(second)
            alike = (first == second) | (np.isnan(first) & np.isnan(second))
            parts.append(np.where(finite, differences, np.where(alike, 0.0, FAR)))
        return np.concatenate(parts)


def _taken(array: Array, step: int) -> Array:
    """Some elements of an array in one dimension; of complex numbers both parts."""
    elements = np.ascontiguousarray(wide(array.reshape(-1)[::step]))
    return elements.view(np.float64) if elements.dtype.kind == "c" else elements


def coefficient(vector: Array, effect: Array) -> float:
    """The coefficient of the regression of a vector on an effect."""
    return float(np.dot(vector, effect) / max(float(np.dot(effect, effect)), 1e-300))


def shares_of(rest: Array, effects: Sequence[Array | None]) -> tuple[list[float], list[float]]:
    """How much of each effect is in what remains, by a regression, and the errors of that if those of elements were
    independent.

    Elements that it fits badly count less, the more so the worse (Cauchy's weights): where effects do not add up. An
    effect that is smaller than rounding counts as none.
    """
    numbers = [number for number, effect in enumerate(effects) if effect is not None and effect.any()]
    shares, errors = [0.0] * len(effects), [math.inf] * len(effects)
    if not numbers:
        return shares, errors
    matrix = np.array([effects[number] for number in numbers])
    weights = np.ones(rest.size)
    for _ in range(_REWEIGHTINGS):
        # As if each share were 0 or so beforehand, and every element had an error of one unit.
        inverse = np.linalg.inv((matrix * weights) @ matrix.T + np.eye(len(numbers)))
        solution = inverse @ ((matrix * weights) @ rest)
        residuals = rest - solution @ matrix
        usual = max(1.0, 1.5 * float(np.median(np.abs(residuals))))
        weights = 1 / (1 + np.square(residuals / usual))
    for number, share, variance in zip(numbers, solution.tolist(), np.diag(inverse).tolist(), strict=True):
        shares[number], errors[number] = share, usual * math.sqrt(max(variance, 0.0))
    return shares, errors


def size_of(vector: Array) -> float:
    """What size elements have that are all about as large: √(exp(mean(ln(1 + x²))) − 1). Other than the root of the
    mean square, it hardly sees a few huge ones; these are counted by themselves."""
    return math.sqrt(math.expm1(float(np.mean(np.log1p(np.square(vector)))))) if vector.size else 0.0


def same(ours: Leaves, theirs: Leaves) -> bool:
    """Whether two results have the same bits."""
    return all(bool(same_bits(ours[label], theirs[label]).all()) for label in theirs)


Run = Callable[[NumericsPolicy, float], Sequence[Value]]
"""Runs a module under a policy; ResourceError where it takes longer than until then, by `time.monotonic`."""

_MOST_RATIO = 6.0
"""What remains may be so many times as much as random rounding leaves, in the root of the mean square: as few as one
error may be behind it all, and the ratio of two is seldom larger."""


_ERRORS = 4.0
"""An effect is told from none if it is so many times its error."""
_MANY = 10
"""So many elements have the same bits by chance once in a thousand times at most."""
_FEW = 0.01
"""A larger share of elements than this is never off by chance."""
_FURTHER = 4
"""Runs with random rounding that a doubtful case takes."""
_FEW_ROUNDINGS = 0.2
"""What remains where one element in a hundred goes to its other neighbour, as those of narrow types do now and then."""


class OutOfTimeError(Exception):
    """The time that a search may take is over."""


def timeout_until(end: float) -> float | None:
    """The timeout of a run that may take until then."""
    return None if end == math.inf else max(end - time.monotonic(), 0.0)


class Trials:
    """What is known of the policies that were tried, for one module, its inputs and what is expected."""

    def __init__(self, run: Run, expected: Leaves, most_runs: int, end: float = math.inf) -> None:
        self._run = run
        self.expected = expected
        self.runs = 0
        self._results: dict[NumericsPolicy, Leaves | None] = {}
        self._judged: dict[NumericsPolicy, Trial] = {}
        self._scales: dict[NumericsPolicy, Scale] = {}
        self._samples: dict[NumericsPolicy, list[Leaves]] = {}
        self._most_runs = most_runs
        self.end = end
        """When time is over, by `time.monotonic`."""
        self.is_over = False
        """Whether the search was cut."""

    def against(self, expected: Leaves) -> Trials:
        """The same runs, compared with something else."""
        trials = copy(self)
        vars(trials).pop("scale", None)
        trials.expected, trials._judged, trials._scales = expected, {}, {}
        return trials

    def may_go_on(self) -> bool:
        """Whether the search has runs left, and time, if that is limited."""
        self.is_over = self.is_over or self.runs >= self._most_runs or not self.has_time()
        return not self.is_over

    @property
    def runs_left(self) -> int:
        return max(0, self._most_runs - self.runs)

    def has_time(self) -> bool:
        return time.monotonic() < self.end

    # Runs

    def _leaves(self, policy: NumericsPolicy) -> Leaves:
        """The leaves of one more run; OutOfTimeError where there is none left for it."""
        if not self.has_time():
            raise OutOfTimeError
        self.runs += 1
        try:
            return leaves_from(self._run(policy, self.end), "explained")
        except ResourceError:
            if self.has_time():
                raise
            raise OutOfTimeError from None

    def result(self, policy: NumericsPolicy) -> Leaves | None:
        """The leaves under a policy; None where the module does not run under it."""
        if policy not in self._results:
            try:
                self._results[policy] = self._leaves(policy)
            except (UnsupportedError, EvaluationError):
                if policy == REFERENCE:
                    raise
                self._results[policy] = None
        return self._results[policy]

    def leaves_of(self, policy: NumericsPolicy) -> Leaves:
        """The same of one under which the module is known to run."""
        leaves = self.result(policy)
        assert leaves is not None
        return leaves

    def samples(self, policy: NumericsPolicy) -> list[Leaves]:
        """The leaves of a few runs with random rounding in the types that the policy computes in."""
        if policy not in self._samples:
            self._samples[policy] = [self._at_random(policy, seed) for seed in range(SAMPLES)]
        return self._samples[policy]

    def _at_random(self, policy: NumericsPolicy, seed: int) -> Leaves:
        # Odd seeds would do more than that; formats are kept.
        return self._leaves(policy.changed(rounding_seed=2 * seed, keeps_formats=True))

    def spreads(self, policy: NumericsPolicy) -> dict[str, Spread]:
        return spreads_of(self.samples(policy))

    @cached_property
    def reference(self) -> Leaves:
        return self.leaves_of(REFERENCE)

    # Measures

    @cached_property
    def scale(self) -> Scale:
        """The units that all policies are measured in."""
        return Scale.of(self.expected, self.spreads(REFERENCE))

    def scale_of(self, policy: NumericsPolicy) -> Scale:
        """Units that elements have that rounding moves further under a policy than under `reference`."""
        if policy not in self._scales:
            self._scales[policy] = self.scale.widened(self.spreads(policy))
        return self._scales[policy]

    @cached_property
    def difference(self) -> Array:
        """What is expected, less the reference."""
        return self.scale.vector(self.expected, self.reference)

    def remaining(self, policy: NumericsPolicy) -> float:
        """The size of what remains; infinite where the module does not run."""
        leaves = self.result(policy)
        return math.inf if leaves is None else size_of(self.scale.vector(self.expected, leaves))

    def trial(self, policy: NumericsPolicy) -> Trial | None:
        """How near a policy comes; None where the module does not run under it."""
        leaves = self.result(policy)
        if leaves is None:
            return None
        remaining = self.remaining(policy)
        before = size_of(self.difference)
        equal = total = 0
        furthest = 0.0
        for label, array in self.expected.items():
            is_equal = same_bits(leaves[label], array)
            equal, total = equal + int(np.count_nonzero(is_equal)), total + array.size
            if array.size and not is_equal.all():
                furthest = max(furthest, float(ulp_distances(leaves[label], array).max()))
        return Trial(
            policy,
            remaining=remaining,
            bits=math.inf if equal == total else math.log2(before / remaining) if before and remaining else 0.0,
            equal_share=equal / total if total else 1.0,
            max_ulps=furthest,
            has_effect=not same(leaves, self.reference),
        )

    def unequal(self, policy: NumericsPolicy) -> int:
        """How many elements have other bits than is expected."""
        leaves = self.result(policy)
        return (
            0
            if leaves is None
            else sum(int(np.count_nonzero(~same_bits(leaves[label], array))) for label, array in self.expected.items())
        )

    def is_explained(self, policy: NumericsPolicy) -> bool:
        """Whether rounding explains what remains under a policy."""
        trial = self.trial(policy)
        return trial is not None and bool(self.judged(trial).is_explained)

    def judged(self, trial: Trial) -> Trial:
        """The trial with whether rounding explains what remains of it."""
        if trial.policy not in self._judged:
            self._judged[trial.policy] = self._judgement(trial)
        return self._judged[trial.policy]

    def is_near(self, policy: NumericsPolicy, best: Trial) -> bool:
        """Whether what rounding leaves under the best one explains what remains under another, which is a little
        different: that takes no runs with random rounding of its own."""
        spreads, samples = self.spreads(best.policy), self.samples(best.policy)
        off = _Off.of(self.expected, self.leaves_of(policy), spreads, samples)
        ratio = self.remaining(policy) / self._noise(best.policy)
        return ratio <= _MOST_RATIO and off.count <= (best.mismatches or 0)

    def _judgement(self, trial: Trial) -> Trial:
        policy = trial.policy
        spreads = self.spreads(policy)
        off = _Off.of(self.expected, self.leaves_of(policy), spreads, self.samples(policy))
        ratio = trial.remaining / self._noise(policy)
        is_explained = ratio <= _MOST_RATIO and (not off.count or self._is_usual(policy, off, spreads))
        return attrs.evolve(trial, mismatches=off.count, spread_ratio=ratio, is_explained=is_explained)

    def _noise(self, policy: NumericsPolicy) -> float:
        """The size of what random rounding leaves under a policy."""
        result = self.leaves_of(policy)
        sizes = [size_of(self.scale.vector(sample, result)) for sample in self.samples(policy)]
        return max(_root_mean_square(np.array(sizes)), _FEW_ROUNDINGS)

    def _is_usual(self, policy: NumericsPolicy, off: _Off, spreads: Spreads) -> bool:
        """Whether as many elements are as far off in further runs with random rounding, which the spreads do not know:
        where roundings decide much, as between neighbours of a narrow type on the way, few samples do not show all."""
        total = sum(array.size for array in self.expected.values())
        if off.count > _FEW * total:
            return False
        count, worst = 0, 0.0
        result = self.leaves_of(policy)
        for number in range(_FURTHER):
            theirs = _Off.of(self._at_random(policy, SAMPLES + number), result, spreads, self.samples(policy))
            count, worst = max(count, theirs.count), max(worst, theirs.worst)
        return off.count <= 2 * count and off.worst <= 2 * worst

    def middles(self, policy: NumericsPolicy, base: NumericsPolicy) -> tuple[Leaves, Leaves]:
        """The results of two policies; without what our own sums lose where these differ by no more than the operands
        of contractions: else the errors of our sums would pass for an effect of the policy."""
        exact = _exact_sums(policy, base)
        results = None if exact is None else (self.result(exact[0]), self.result(exact[1]))
        if results is not None and results[0] is not None and results[1] is not None:
            return results[0], results[1]
        return self.leaves_of(policy), self.leaves_of(base)

    def weighed(self, policy: NumericsPolicy, base: NumericsPolicy) -> tuple[float, float, float]:
        """How much of a policy's effect, as opposed to another's, is in what is expected; the error of that; and the
        size of the effect."""
        ours, theirs = self.middles(policy, base)
        scale = self.scale_of(policy) if policy in self._samples else self.scale
        effect = scale.vector(ours, theirs)
        size = _root_mean_square(effect)
        if not size:
            return 0.0, math.inf, 0.0
        share = coefficient(scale.vector(self.expected, theirs), effect)
        # What rounding does is much the same under all of them: runs under any one show it.
        near = policy if policy in self._samples else REFERENCE
        middle = self.leaves_of(near)
        errors = [coefficient(scale.vector(sample, middle), effect) for sample in self.samples(near)]
        return share, _root_mean_square(np.array(errors)), size

    def is_far(self, share: float, error: float) -> bool:
        """Whether a share of an effect is told from none, given its error."""
        return share > _ERRORS * error and share > 0.5

    def is_excluded(self, policy: NumericsPolicy, by: Trial) -> bool:
        """Whether the values exclude a policy, as another one explains them."""
        if by.equal_share == 1.0 and self.unequal(policy) >= _MANY:
            return True
        share, error, size = self.weighed(by.policy, policy)
        return size > 0 and self.is_far(share, error)

    def leaves(self, trial: Trial) -> tuple[LeafComparison, ...]:
        """What a policy leaves, output by output."""
        spreads = self.spreads(trial.policy) if trial.policy in self._samples else {}
        return compare(self.leaves_of(trial.policy), self.expected, spreads=spreads).leaves


@frozen
class _Off:
    """Elements that are off by more than rounding explains."""

    count: int
    worst: float
    """The largest error, in units of what rounding explains."""

    @classmethod
    def of(cls, theirs: Leaves, ours: Leaves, spreads: Spreads, samples: Sequence[Leaves]) -> _Off:
        """Those of a result that differ from ours."""
        deviations = [
            _unexplained(ours[label], array, spreads.get(label), [sample[label] for sample in samples])
            for label, array in theirs.items()
        ]
        return cls(sum(off.count for off in deviations), max((off.worst for off in deviations), default=0.0))


def _exact_sums(policy: NumericsPolicy, base: NumericsPolicy) -> tuple[NumericsPolicy, NumericsPolicy] | None:
    """Two policies that differ by operands of contractions only, with exact sums; None where they differ otherwise."""
    if policy.is_exact or policy.without_operand_rounding != base.without_operand_rounding:
        return None
    if not any(part.replaces_formulas for side in (policy, base) for part in side.parts):
        first, second = (side.changed(name=f"{side.name}, exact", is_exact=True) for side in (policy, base))
        return first, second
    # Other formulas would give way to exact ones: so those contractions alone are exact that differ.
    having = [dict(side.overrides) for side in (policy, base)]
    names = [name for name in {**having[0], **having[1]} if having[0].get(name) != having[1].get(name)]
    defaults = [attrs.evolve(side, overrides=(), name="") for side in (policy, base)]
    own_policies = [side.get(name) for side in having for name in names]
    if defaults[0] != defaults[1] or any(side is not None and side.replaces_formulas for side in own_policies):
        return None
    ours, theirs = (mixed(side, POLICIES["exact"], names) for side in (policy, base))
    return None if ours is None or theirs is None else (ours, theirs)


def _unexplained(actual: Array, expected: Array, spread: Spread | None, samples: Sequence[Array]) -> _Off:
    """The elements of a leaf that are off."""
    entries = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if not entries[1].is_inexact or spread is None or spread.scales.shape != expected.shape:
        distances = np.where(same_bits(actual, expected), 0.0, _distances(actual, expected, samples))
        return _Off(int(np.count_nonzero(distances > 1)), float(distances.max(initial=0.0)))
    narrow = narrower(*entries)
    wide = entries[1] if narrow is entries[0] else entries[0]
    # Without what denormals may be flushed to: that is a policy of its own.
    tolerance = attrs.evolve(measured_tolerance(narrow, wide, spread), atol=0.0, ulp=1.0)
    measured = measure(actual, expected, tolerance, spread.scales, spread.means)
    return _Off(measured.mismatches, measured.worst[0].severity if measured.mismatches else 0.0)


def _distances(actual: Array, expected: Array, samples: Sequence[Array]) -> Array:
    """How far elements are from what the runs gave, in units of how far these are from one another.

    What rounding decides, as which of two is larger, may come out either way; a number that was rounded to an integer
    moves as far as that does. Where all runs agree, the next integer is two units away. Floats whose spread is not
    known are right or wrong.
    """
    if element_type_of(expected.dtype).is_inexact:
        is_known = np.logical_or.reduce([same_bits(array, expected) for array in (actual, *samples)])
        return np.where(is_known, 0.0, np.inf)
    exact = np.uint64 if expected.dtype == np.uint64 else np.int64
    runs = [array.astype(exact) for array in (actual, *samples)]
    low, high, wanted = np.minimum.reduce(runs), np.maximum.reduce(runs), expected.astype(exact)
    # Differences in f64 do not overflow; those of large neighbours are 0 there.
    below, above, width = (
        np.where(one < other, np.maximum(other.astype(np.float64) - one.astype(np.float64), 1.0), 0.0)
        for one, other in ((wanted, low), (high, wanted), (low, high))
    )
    distances: Array = np.maximum(below, above) / np.maximum(width, 0.5)
    return distances


def _root_mean_square(vector: Array) -> float:
    return float(np.sqrt(np.mean(np.square(vector)))) if vector.size else 0.0
