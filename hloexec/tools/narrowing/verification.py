"""The last check: the module that was found, as a whole, on the inputs of the search and on others.

What the errors on a few inputs say of those on others: one-sided tolerance limits.

Logarithms of the worst errors of training steps are nearly normal over inputs (of 300 inputs each, the kurtosis was 3.0
for a convolutional network and 3.5 for a transformer). The limit that all but a share of a normal distribution stays
below follows from the mean and the standard deviation of a sample, with a factor that makes up for both being
estimates.

Where the inputs of a search come from: a list, or a function of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

import attrs

from hloexec.core.arguments import listed
from hloexec.core.ir import Module
from hloexec.core.structs import define
from hloexec.core.values import Inputs
from hloexec.engine.exec.observers import Stages
from hloexec.engine.inputs import random_inputs
from hloexec.errors import InputError
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.findings import Deviation, Standing
from hloexec.tools.narrowing.measuring import Measurer, Ranges, Reference, worst_of
from hloexec.tools.narrowing.rewriting import Rewritten, rewritten
from hloexec.tools.narrowing.search import FAILURES, Search
from hloexec.tools.narrowing.settings import Settings

LEAST_SAMPLE = 20
"""Of how many errors a limit is made: the factor grows fast for fewer."""
_COVERAGE = 0.999
_CONFIDENCE = 0.95
_LEAST = 1e-3
"""Severities below are taken for it: of an error of zero there is no logarithm."""


def upper_limit(severities: Sequence[float]) -> float:
    """The severity that 999 of 1000 inputs stay below, with 95 % confidence, from those of a sample.

    exp(mean + k · standard deviation) of the logarithms; k is the one-sided tolerance factor in the approximation of
    Natrella (NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3), within 1 % for 20 and more.
    """
    logarithms = [math.log(max(severity, _LEAST)) for severity in severities]
    return math.exp(fmean(logarithms) + _factor(len(logarithms)) * stdev(logarithms))


def _factor(count: int) -> float:
    covered, sure = NormalDist().inv_cdf(_COVERAGE), NormalDist().inv_cdf(_CONFIDENCE)
    a = 1 - sure**2 / (2 * (count - 1))
    b = covered**2 - sure**2 / count
    return (covered + math.sqrt(covered**2 - a * b)) / a


class Supply:
    """Inputs for the search, and others that it does not see."""

    def __init__(self, module: Module, inputs: object, settings: Settings) -> None:
        self._seed = settings.seed
        self._make: Callable[[int], Inputs] | None = None
        self._given: list[Inputs] = []
        if inputs is None:
            self._make = lambda seed: random_inputs(module, seed)
        elif callable(inputs) and not isinstance(inputs, type):
            self._make = inputs
        else:
            self._given = listed("inputs", inputs, "inputs, one per run")
            if not self._given:
                raise InputError("inputs must have at least one list of values, or be None for random ones")
        self.is_endless = self._make is not None
        given = len(self._given)
        self.held_back_count = settings.held_back if self.is_endless else min(settings.held_back, (given + 1) // 3)
        self.count = settings.seeds if self.is_endless else given - self.held_back_count
        """How many the search runs on."""

    def first(self) -> Iterator[Inputs]:
        """Those of the search."""
        for number in range(self.count):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]

    def others(self) -> Iterator[Inputs]:
        """Those behind them: without end, where they are made."""
        number = self.count
        while self._make is not None or number < len(self._given):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]
            number += 1


@define(eq=False)
class Verification:
    """The module that was found, run as a whole on all inputs and on others, until nothing is wrong with it."""

    search: Search
    measurer: Measurer
    supply: Supply
    ranges: list[Ranges]
    """Of the original on each of the inputs, by their numbers."""
    limits: Mapping[str, Any]
    stages: Stages
    found: Rewritten = attrs.field(init=False)
    worst: dict[str, Deviation] = attrs.field(factory=dict)
    held_back: dict[str, Deviation] = attrs.field(factory=dict)
    held_back_count: int = 0
    rejections: int = 0

    def run(self) -> Verification:
        others = self.supply.others()
        fresh: list[Reference] = []
        while True:
            self.stages.begin("checking the narrowed module", None)
            self.found = rewritten(self.measurer.module, self.search.accepted)
            self.worst, self.held_back = {}, {}
            count = len(self.search.accepted)
            if not all(self._holds(each, self.worst, 1.0) for each in (*self.search.references, *self.search.joined)):
                self._go_back(count)
                continue
            while len(fresh) < self.supply.held_back_count and (given := next(others, None)) is not None:
                number = len(self.ranges)
                self.ranges.append(Ranges())
                watchers = [self.ranges[number]] if self._may_overflow else []
                fresh.append(self.measurer.reference(number, given, watchers))
            failed = self._failed(fresh)
            if failed is None:
                self.held_back_count = len(fresh)
                return self
            self.rejections += 1
            fresh.remove(failed)
            if self.supply.is_endless:
                fresh = []
            self._go_back(count, failed)

    def _failed(self, fresh: list[Reference]) -> Reference | None:
        """Inputs on which the module is not good enough; or the worst ones, where what it does on all of them says that
        it is too bad on one of a thousand others."""
        severities: list[float] = []
        for each in fresh:
            own: dict[str, Deviation] = {}
            holds = self._holds(each, own, self.search.check_share)
            _join(self.held_back, own)
            if not holds:
                return each
            severities.append(worst_of(own).severity)
        if len(fresh) < LEAST_SAMPLE or upper_limit(severities) <= 1:
            return None
        return fresh[severities.index(max(severities))]

    def _go_back(self, count: int, joined: Reference | None = None) -> None:
        """Narrow less than before: fewer instructions than `count`."""
        self.search.go_back(joined)
        if len(self.search.accepted) == count > 0:
            last = next(reversed(self.search.accepted))
            self.search.refuse([last], Standing.TOGETHER, "the check of the whole module failed with it")

    def _holds(self, reference: Reference, worst: dict[str, Deviation], share: float) -> bool:
        """Whether all outputs are within a share of their tolerances, and nothing is out of range; else what is, is
        taken back."""
        watcher = Ranges()
        watchers = [watcher] if self.ranges[reference.number].found else []
        try:
            found = self.measurer.deviations(self.found.module, reference, observers=watchers, **self.limits)
        except FAILURES:
            return False
        _join(worst, found)
        lost = self._out_of_range(watcher, self.ranges[reference.number])
        if lost:
            self.search.refuse(lost, Standing.RANGE, "goes beyond the type's range once others are narrowed")
        return not lost and all(deviation.severity <= share for deviation in found.values())

    @property
    def _may_overflow(self) -> bool:
        """Whether a narrow type has less range than those that it stands for, so that each run has to be watched."""
        wide = {candidate.place: candidate.element_type for candidate in self.search.candidates}
        return any(narrow.exponent_bits < wide[place].exponent_bits for place, narrow in self.search.accepted.items())

    def _out_of_range(self, watcher: Ranges, original: Ranges) -> list[Place]:
        """What is to blame for the first elements that are not finite, but were in the original."""
        for place, seen in watcher.found.items():
            origin = self.found.origins.get(place)
            before = None if origin is None else original.found.get(origin)
            if origin is not None and before is not None and seen.not_finite > before.not_finite:
                users = [each for each in self.search.accepted if self._uses(each, origin)]
                return users or list(self.search.accepted)
        return []

    def _uses(self, place: Place, origin: Place) -> bool:
        """Whether a narrowed instruction is, or takes, the value of another of its computation."""
        computation = self.measurer.module.by_name[place[0]]
        return origin[0] == place[0] and (origin[1] == place[1] or origin[1] in computation.by_name[place[1]].operands)


def _join(worst: dict[str, Deviation], found: Mapping[str, Deviation]) -> None:
    """Take over what is worse."""
    for label, deviation in found.items():
        if label not in worst or deviation.severity > worst[label].severity:
            worst[label] = deviation
