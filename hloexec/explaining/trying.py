"""Trying a policy: the runs of a module that a search asks for, made once each, and how near each comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import attrs
import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.errors import HloError
from hloexec.explaining.findings import Trial
from hloexec.explaining.values import Leaves, Scale, coefficient, leaves_from, same, spreads_of
from hloexec.numerics.comparing import compare
from hloexec.numerics.comparison import LeafComparison
from hloexec.numerics.measuring import measure
from hloexec.numerics.sampling.spread import SAMPLES, Spread
from hloexec.numerics.tolerances import measured_tolerance
from hloexec.numerics.ulps import narrower, same_bits, ulp_distances
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array, Value

__all__ = ["Trials"]

Run = Callable[[NumericsPolicy], Sequence[Value]]

_MOST_RATIO = 6.0
"""What remains may be so many times as much as random rounding leaves, in the root of the mean square: as few as one
error may be behind it all, and the ratio of two is seldom larger."""


_FEW_ROUNDINGS = 0.2
"""What remains where one element in a hundred goes to its other neighbour, as those of narrow types do now and then."""


class Trials:
    """What is known of the policies that were tried, for one module, its inputs and what is expected."""

    def __init__(self, run: Run, expected: Leaves, budget: float) -> None:
        self._run = run
        self.expected = expected
        self.runs = 0
        self._results: dict[NumericsPolicy, Leaves | None] = {}
        self._samples: dict[NumericsPolicy, list[Leaves]] = {}
        self._end = time.monotonic() + budget
        self.is_over = False
        """Whether the time is up."""

    def has_time(self) -> bool:
        """Whether the search may go on."""
        self.is_over = self.is_over or time.monotonic() > self._end
        return not self.is_over

    # Runs

    def result(self, policy: NumericsPolicy) -> Leaves | None:
        """The leaves under a policy; None where the module does not run under it."""
        if policy not in self._results:
            self.runs += 1
            try:
                self._results[policy] = leaves_from(self._run(policy), "explained")
            except HloError:
                if policy == REFERENCE:
                    raise
                self._results[policy] = None
        return self._results[policy]

    def samples(self, policy: NumericsPolicy) -> list[Leaves]:
        """The leaves of a few runs with random rounding in the types that the policy computes in."""
        if policy not in self._samples:
            self._samples[policy] = []
            for seed in range(SAMPLES):
                self.runs += 1
                # Odd seeds would do more than that; formats are kept.
                at_random = policy.changed(rounding_seed=2 * seed, keeps_formats=True)
                self._samples[policy].append(leaves_from(self._run(at_random), "explained"))
        return self._samples[policy]

    def spreads(self, policy: NumericsPolicy) -> dict[str, Spread]:
        return spreads_of(self.samples(policy))

    @cached_property
    def reference(self) -> Leaves:
        found = self.result(REFERENCE)
        assert found is not None
        return found

    # Measures

    @cached_property
    def scale(self) -> Scale:
        """The units that all policies are measured in."""
        return Scale.of(self.expected, self.spreads(REFERENCE))

    @cached_property
    def difference(self) -> Array:
        """What is expected, less the reference."""
        return self.scale.vector(self.expected, self.reference)

    def effect(self, policy: NumericsPolicy, base: NumericsPolicy = REFERENCE) -> Array:
        """What a policy changes about the results of another."""
        ours, theirs = self.result(policy), self.result(base)
        assert ours is not None and theirs is not None
        return self.scale.vector(ours, theirs)

    def remaining(self, policy: NumericsPolicy) -> float:
        """The root of the mean square of what remains; infinite where the module does not run."""
        found = self.result(policy)
        return math.inf if found is None else _root_mean_square(self.scale.vector(self.expected, found))

    def trial(self, policy: NumericsPolicy, instructions: Sequence[str] = ()) -> Trial | None:
        """How near a policy comes; None where the module does not run under it."""
        found = self.result(policy)
        if found is None:
            return None
        remaining = self.remaining(policy)
        before = _root_mean_square(self.difference)
        equal = total = 0
        furthest = 0.0
        for label, array in self.expected.items():
            is_equal = same_bits(found[label], array)
            equal, total = equal + int(np.count_nonzero(is_equal)), total + array.size
            if array.size and not is_equal.all():
                furthest = max(furthest, float(ulp_distances(found[label], array).max()))
        return Trial(
            policy,
            remaining=remaining,
            bits=math.inf if not remaining else math.log2(before / remaining) if before else 0.0,
            equal_share=equal / total if total else 1.0,
            max_ulps=furthest,
            has_effect=not same(found, self.reference),
            instructions=tuple(instructions),
        )

    def unequal(self, policy: NumericsPolicy) -> int:
        """How many elements have other bits than is expected."""
        found = self.result(policy)
        return 0 if found is None else sum(
            int(np.count_nonzero(~same_bits(found[label], array))) for label, array in self.expected.items()
        )

    def judged(self, trial: Trial) -> Trial:
        """The trial with whether rounding explains what remains of it."""
        policy = trial.policy
        spreads = self.spreads(policy)
        result = self.result(policy)
        assert result is not None
        mismatches = sum(
            _unexplained(result[label], array, spreads.get(label), [sample[label] for sample in self.samples(policy)])
            for label, array in self.expected.items()
        )
        noise = [_root_mean_square(self.scale.vector(sample, result)) for sample in self.samples(policy)]
        ratio = trial.remaining / max(_root_mean_square(np.array(noise)), _FEW_ROUNDINGS)
        return attrs.evolve(
            trial,
            mismatches=mismatches,
            spread_ratio=ratio,
            is_explained=not mismatches and ratio <= _MOST_RATIO,
        )

    def weighed(self, policy: NumericsPolicy, base: NumericsPolicy) -> tuple[float, float, float]:
        """How much of a policy's effect, as opposed to another's, is in what is expected; the error of that; and the
        size of the effect."""
        ours, theirs = self.result(policy), self.result(base)
        assert ours is not None and theirs is not None
        effect = self.scale.vector(ours, theirs)
        size = _root_mean_square(effect)
        if not size:
            return 0.0, math.inf, 0.0
        share = coefficient(self.scale.vector(self.expected, theirs), effect)
        errors = [coefficient(self.scale.vector(sample, theirs), effect) for sample in self.samples(base)]
        errors += [coefficient(self.scale.vector(sample, ours), effect) for sample in self.samples(policy)]
        return share, _root_mean_square(np.array(errors)), size

    def leaves(self, trial: Trial) -> tuple[LeafComparison, ...]:
        """What a policy leaves, output by output."""
        result = self.result(trial.policy)
        assert result is not None
        return compare(result, self.expected, spreads=self.spreads(trial.policy)).leaves


def _unexplained(actual: Array, expected: Array, spread: Spread | None, samples: Sequence[Array]) -> int:
    """How many elements of a leaf are off by more than rounding explains."""
    entries = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if not entries[1].is_inexact:
        off = ~same_bits(actual, expected)
        for sample in samples:
            # What rounding decides, as which of two is larger, may come out either way.
            off &= same_bits(actual, sample)
        return int(np.count_nonzero(off))
    if spread is None or spread.scales.shape != expected.shape:
        return int(np.count_nonzero(~same_bits(actual, expected)))
    narrow = narrower(*entries)
    wide = entries[1] if narrow is entries[0] else entries[0]
    # Without what denormals may be flushed to: that is a policy of its own.
    tolerance = attrs.evolve(measured_tolerance(narrow, wide, spread), atol=0.0, ulp=1.0)
    return measure(actual, expected, tolerance, spread.scales, spread.means).mismatches


def _root_mean_square(vector: Array) -> float:
    return float(np.sqrt(np.mean(np.square(vector)))) if vector.size else 0.0

