"""The shares of instructions in the errors of the outputs, from as many runs as are worth their time.

How many runs in f64 cost about as much as the run with shadows that they follow.

Both are estimated from what that run has done, never measured: the same module on the same inputs gets as many runs on
any machine. The factors are nanoseconds on one core.

The shares of instructions in the errors of the outputs, from runs in which each rounds alone.

The shares that shadows hand on are estimates: they take the errors that meet in an instruction for independent, and
those of an array for alike. Where much is lost, each instruction that rounds is therefore run alone, all others being
in f64; its share is that of its squared error. Where there are too many, those of an opcode round together first; then
those of the group that does most to the outputs by themselves, in the order of their estimated shares, and so on.

A sum or difference is to blame for *cancellation* where rounding its operands alone does more to the outputs than
rounding its result alone, and their relative errors are some times as large in it. It takes over that part from what
rounded before; what was absorbed, or has overflowed or vanished, stays to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Inputs, Value
from hloexec.core.wording import first_line
from hloexec.engine.exec.observers import Stages
from hloexec.engine.options import Options
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.errors import HloError
from hloexec.ops.costs import flops_of
from hloexec.ops.policies.policy import REFERENCE
from hloexec.ops.registry import operation_name, traits_of
from hloexec.ops.relations import Place as Static
from hloexec.tools.shadowing.alone.runs import Energies, WideRuns, rounds
from hloexec.tools.shadowing.outputs import LeafError
from hloexec.tools.shadowing.places import Place, Worst, add_shares
from hloexec.tools.shadowing.store import Amounts

_LEAST = 300e6
"""So much may runs take in any case."""


@define
class Work:
    """What a run has done."""

    events: int = 0
    """Instructions that have run one by one."""
    loop_events: int = 0
    """Those of iterations of loops that were computed together."""
    numbers: int = 0
    """Elements of results."""
    flops: int = 0
    """Of contractions, and terms of sums."""
    _known: dict[Static, int] = attrs.field(factory=dict, init=False)
    """The FLOPs of one run of each instruction."""

    def note(self, computation: Computation, instruction: Instruction, numbers: int, times: int = 1) -> None:
        """Take some runs of an instruction, with so many numbers each, into account."""
        key = computation.name, instruction.name
        flops = self._known.get(key)
        if flops is None:
            flops = self._known[key] = flops_of(computation, instruction)
        self.numbers += times * numbers
        self.flops += times * flops


def affordable_runs(work: Work, places: int) -> int:
    """How many runs cost no more than the run with shadows, which has done this work at so many places."""
    shadowing = 300e3 * places + 30e3 * work.events + 1e3 * work.loop_events + 6.0 * work.numbers + 0.2 * work.flops
    planning = 200e3 * places
    running = 300e3 + 4e3 * work.events + 0.9e3 * work.loop_events + 0.7 * work.numbers + 0.3 * work.flops
    return int(max(0.0, max(shadowing, _LEAST) - planning) // running)


_FEWEST = 3
"""The run in f64, and one for each of two groups."""
_CANCELLERS = 8
"""Sums and differences whose operands are rounded alone."""
_AMPLIFIED = 4.0
"""Operands cancel where their relative errors are so many times as large in the result."""
_MUCH = 0.25
"""So much of an output's squared error comes from there where cancellation is to blame."""
_AGREE = 2.0
"""By how much the error from the run in f64 may differ from that from the shadow."""
_DOUBLE = 2.0**-50
_HOST = "infeed outfeed host_transfers".split()
_OWN = ("rounding", "cancellation")
"""Kinds of loss that what cancels later takes over."""


@frozen
class Shares:
    """The outputs with their shares, and how these were found."""

    outputs: tuple[LeafError, ...]
    reason: str = ""
    """Why shares are estimates; empty where they are measured."""
    runs: int = 0
    alone: Mapping[Static, float] = attrs.field(factory=dict)
    """By instruction, the largest relative error of an output where it alone rounds."""
    measured: frozenset[Static] = frozenset()
    """Those with a share that is measured."""
    cancelling: frozenset[Static] = frozenset()
    """Sums and differences in which operands cancel that errors of the outputs come from."""
    estimated: int = 0
    """How many instructions have estimated shares beside measured ones, or share that of their group."""


def measured_shares(
    module: Module,
    inputs: Inputs | None,
    results: Sequence[Value],
    outputs: Sequence[LeafError],
    places: Sequence[Place],
    most: int,
    stages: Stages,
    options: Options,
) -> Shares:
    """Shares from at most so many runs; estimates where these do not tell."""
    reason = ""
    if options.numerics != REFERENCE:
        reason = "other numerics than the reference have no form in f64"
    elif any(options[name] for name in _HOST):
        reason = "a run that takes values from the host is not repeated"
    elif any(output.relative_error > 0 and output.unit < _DOUBLE for output in outputs):
        reason = "no type is wider than f64"
    elif most < _FEWEST:
        reason = "runs of single instructions would take long" if most else "no runs are allowed"
    else:
        try:
            return _Measuring(module, outputs, places, most).shares(inputs, results, stages, options)
        except Exception as error:
            if not isinstance(error, HloError):
                warn_of_failure("running instructions alone", error)
            reason = f"the module does not run in f64: {first_line(str(error))}"
    return Shares(tuple(outputs), reason)


class _Measuring:
    """Which runs are made, and what they say."""

    def __init__(self, module: Module, outputs: Sequence[LeafError], places: Sequence[Place], most: int) -> None:
        self._module, self._outputs, self._most = module, outputs, most
        self._numbers: dict[Static, list[int]] = defaultdict(list)
        for number, place in enumerate(places):
            self._numbers[place.static].append(number)
        self._places = places
        self._estimates: Amounts = defaultdict(float)
        """By the numbers of places, what they are estimated to do to all outputs."""
        for output in outputs:
            add_shares(self._estimates, output.shares, output.weight)
        self._groups: dict[frozenset[Static], Energies] = {}
        """What groups of instructions do to the outputs."""

    # What is run

    def shares(self, inputs: Inputs | None, results: Sequence[Value], stages: Stages, options: Options) -> Shares:
        candidates, cancellers = self._candidates(), self._possible_cancellers()
        stages.begin("rounding one by one", min(self._most, 1 + len(candidates) + 2 * len(cancellers)))
        runs = WideRuns(self._module, inputs, self._outputs, candidates, cancellers, options)
        stages.tick()
        totals = runs.energies_of(results)
        scales = [runs.scale(number) for number in range(len(self._outputs))]
        if not all(map(self._agrees, self._outputs, totals, scales)):
            return Shares(tuple(self._outputs), "in f64 the module decides otherwise", runs.count)
        candidates, cancellers = (list(filter(runs.can_round, entries)) for entries in (candidates, cancellers))
        self._measure(runs, candidates, len(cancellers), stages)
        taken: dict[Static, list[_Cancelled]] = {}
        weighed: set[Static] = set()
        for static in self._in_order_of_effect(cancellers):
            own = self._energies_alone(static)
            if runs.count + 1 + (own is None) > self._most:
                break
            weighed.add(static)
            own = own or runs.rounding([static])
            reading = runs.reading(static)
            stages.tick()
            if reading.amplified >= _AMPLIFIED and reading.inherited > 0:
                inherited = max((entries.inherited for entries in self._worst_runs(static)), default=0.0)
                reach = (inherited / reading.inherited) ** 2
                entries = zip(reading.energies, own, totals, strict=True)
                taken[static] = [_Cancelled.of(*energies, reach) for energies in entries]
        alone = {
            static: max((min(1.0, (e / s) ** 0.5) for e, s in zip(energies, scales, strict=True) if s > 0), default=0.0)
            for group, energies in self._groups.items()
            for static in group
            if len(group) == 1
        }
        outputs = tuple(self._shared(number, taken, weighed) for number in range(len(self._outputs)))
        rest = sum(1 for static in candidates if static not in alone)
        cancelling = frozenset(static for static, parts in taken.items() if any(part.share >= _MUCH for part in parts))
        return Shares(outputs, "", runs.count, alone, frozenset({*alone, *weighed}), cancelling, rest)

    def _candidates(self) -> list[Static]:
        """The instructions that have rounded, those of the largest estimated shares first."""
        candidates = [
            static
            for static, numbers in self._numbers.items()
            if rounds(self._places[numbers[0]].instruction) and any(map(self._has_added, numbers))
        ]
        return sorted(
            candidates,
            key=lambda static: (
                -self._estimate(static),
                -max(map(self._worst_added, self._numbers[static])),
            ),
        )

    def _possible_cancellers(self) -> list[Static]:
        """Sums and differences of two operands of floats with errors."""
        cancellers = []
        for static, numbers in self._numbers.items():
            instruction = self._places[numbers[0]].instruction
            if traits_of(instruction).cancels and rounds(instruction) and self._worst_runs(static):
                cancellers.append(static)
        return cancellers

    def _in_order_of_effect(self, cancellers: Sequence[Static]) -> list[Static]:
        """The first of them, by what is estimated to cancel in them and by what they do to the outputs."""

        def effect(static: Static) -> tuple[float, float]:
            numbers = self._numbers[static]
            kinds = [self._places[number].kinds.get("cancellation", 0.0) for number in numbers]
            return -self._estimate(static) * (max(kinds) > 0), -sum(self._energies_alone(static) or (0.0,))

        return sorted(cancellers, key=effect)[:_CANCELLERS]

    def _measure(self, runs: WideRuns, candidates: Sequence[Static], cancellers: int, stages: Stages) -> None:
        """Round instructions alone, or in groups where there are too many; two runs are left for each canceller."""
        kept = min(2 * cancellers, 2 * _CANCELLERS, max(2, self._most // 4)) if self._most >= 2 + _FEWEST else 0
        left = self._most - runs.count - kept

        def round_together(group: Sequence[Static]) -> None:
            nonlocal left
            left -= 1
            self._groups[frozenset(group)] = runs.rounding(group)
            stages.tick()

        for group in self._first_groups(candidates, left):
            round_together(group)
        while large := [group for group in self._groups if len(group) > 1]:
            largest = max(large, key=self._score)
            members = [static for static in candidates if static in largest]
            if left < min(len(members), 2):
                break
            del self._groups[largest]
            alone = len(members) if len(members) <= left else left - 1
            for static in members[:alone]:
                round_together([static])
            if rest := members[alone:]:
                round_together(rest)

    def _first_groups(self, candidates: Sequence[Static], most: int) -> list[list[Static]]:
        """At most so many groups of instructions, those of the largest estimated shares first: one each, or those of an
        opcode, the last of them with all others."""
        if len(candidates) <= most:
            return [[static] for static in candidates]
        by_opcode: dict[str, list[Static]] = defaultdict(list)
        for static in candidates:
            by_opcode[operation_name(self._places[self._numbers[static][0]].instruction)].append(static)
        groups = list(by_opcode.values())
        return [*groups[: most - 1], [*chain(*groups[most - 1 :])]] if len(groups) > most else groups

    # What they say

    def _agrees(self, output: LeafError, energy: float, scale: float) -> bool:
        """Whether the run in f64 says of an output's error what the shadow says."""
        if not output.relative_error or not scale > 0:
            return True
        measured_error = float(min(1.0, (energy / scale) ** 0.5))
        most = 8 * output.unit
        return max(measured_error, output.relative_error) <= most or (
            measured_error <= _AGREE * output.relative_error and output.relative_error <= _AGREE * measured_error
        )

    def _shared(self, number: int, taken: Mapping[Static, Sequence[_Cancelled]], weighed: set[Static]) -> LeafError:
        """An output with measured shares."""
        output = self._outputs[number]
        if not output.relative_error:
            return output
        measured: dict[Static, float] = defaultdict(float)
        total = 0.0
        for group, energies in self._groups.items():
            total += energies[number]
            for static, part in self._parts(group).items():
                measured[static] += part * energies[number]
        if not total > 0:
            return output
        # What was not run keeps what is estimated of it.
        measured_statics = {*measured, *weighed}
        rest = {
            place: share for place, share in output.shares.items() if self._places[place].static not in measured_statics
        }
        left = max(0.0, 1.0 - sum(rest.values()))
        shares = {static: left * energy / total for static, energy in measured.items() if energy > 0}
        parts = {
            static: cancellations[number].part
            for static, cancellations in taken.items()
            if cancellations[number].part > 0
        }
        open_statics = {static for static in shares if static in parts or self._kind(static, output) in _OWN}
        open_ = sum(shares[static] for static in open_statics)
        cut = min(1.0, sum(parts.values()))
        factor = cut / sum(parts.values()) if parts else 0.0
        for static in open_statics:
            shares[static] *= 1.0 - cut
        for static, part in parts.items():
            shares[static] = shares.get(static, 0.0) + part * factor * open_
        by_place = dict(rest)
        for static, share in shares.items():
            for place, part in self._by_place(static, output).items():
                by_place[place] = by_place.get(place, 0.0) + share * part
        return attrs.evolve(output, shares=by_place)

    def _parts(self, group: frozenset[Static]) -> dict[Static, float]:
        """How what a group does is divided among its instructions: as is estimated."""
        sizes = {static: self._estimate(static) for static in sorted(group)}
        total = sum(sizes.values())
        return {static: size / total if total > 0 else 1.0 / len(group) for static, size in sizes.items()}

    def _by_place(self, static: Static, output: LeafError) -> Amounts:
        """An instruction's places, one for each of several devices, and how its share is divided among them."""
        numbers = self._numbers[static]
        for sizes in (
            [output.shares.get(number, 0.0) for number in numbers],
            [self._worst_added(number) ** 2 for number in numbers],
        ):
            if sum(sizes) > 0:
                return {number: size / sum(sizes) for number, size in zip(numbers, sizes, strict=True)}
        return {numbers[0]: 1.0}

    def _energies_alone(self, static: Static) -> Energies | None:
        return self._groups.get(frozenset([static]))

    def _score(self, group: frozenset[Static]) -> float:
        """What a group does to all outputs, relative to what all groups do."""
        totals = [sum(energies) or 1.0 for energies in zip(*self._groups.values(), strict=True)]
        each = zip(self._outputs, self._groups[group], totals, strict=True)
        return sum(output.weight * energy / total for output, energy, total in each)

    def _estimate(self, static: Static) -> float:
        return sum(self._estimates.get(number, 0.0) for number in self._numbers[static])

    def _kind(self, static: Static, output: LeafError) -> str:
        """How an instruction loses most, on the device that most of its share is of."""
        parts = self._by_place(static, output)
        return self._places[max(parts, key=lambda number: parts[number])].kind(is_lost=False)

    def _worst_added(self, number: int) -> float:
        worst = self._places[number].worst
        return 0.0 if worst is None else worst.added

    def _has_added(self, number: int) -> bool:
        kinds = self._places[number].kinds
        return self._worst_added(number) > 0 or any(kinds[kind] > 0 for kind in kinds if kind != "cancellation")

    def _worst_runs(self, static: Static) -> list[Worst]:
        """The worst runs at its places, of those that have errors."""
        return [worst for number in self._numbers[static] if (worst := self._places[number].worst) is not None]


@frozen
class _Cancelled:
    """What a sum or difference whose operands cancel does to an output."""

    share: float
    """The part of the error that comes from its operands and is amplified."""
    part: float
    """What it takes over of that: not what rounding its result would do as well."""

    @classmethod
    def of(cls, reading: float, own: float, total: float, reach: float) -> _Cancelled:
        """From the energies where its operands are rounded alone and where its result is, that of the whole error, and
        how many times as large its operands' squared errors are in the run as those of rounded operands."""
        if not reading > 0 or not total > 0:
            return cls(0.0, 0.0)
        share = min(1.0, reach * reading / total)
        return cls(share, max(0.0, 1.0 - own / reading) * share)
