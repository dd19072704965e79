"""`shadow`: run a module beside exact numbers, and say where the error of its results comes from.

Let x be an element of the run and X₁ … X_N what N runs with random rounding give. Z = (X − x)/m, where m is the mean of
the X, has a root of mean square r, and −log₁₀ r is the number of digits that rounding leaves. If the X are normally
distributed, N r²/σ² is at most as spread as χ² of N degrees of freedom (as much where rounding has no bias), which
gives the interval for −log₁₀ σ. Without any assumption: as all of N runs agreed on d digits, at least α^(1/N) of all
runs do, or it happened by a chance of α (both: D. Sohier, P. de Oliveira Castro, F. Févotte, B. Lathuilière, E. Petit
and O. Jamond, "Confidence intervals for stochastic arithmetic", 2021).

Random rounding shows how sensitive a result is to rounding; it does not know the exact result. Where all runs agree to
the last digit, no more is claimed than the digits of the type, and infinities and NaN have none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.numerics.sampling.runs import at_random
from hloexec.core.arguments import listed, require_integer, require_module
from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen, told
from hloexec.core.tree import leaves
from hloexec.core.values import Array, Described, Inputs, Value, arrays_of
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Event, Observer, Stages
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.options import Options
from hloexec.errors import InputError
from hloexec.language.origins import SourceLine, hlo_line, sole_callers, source_lines, source_lines_around
from hloexec.ops.common import is_inexact
from hloexec.ops.relations import Place as Static
from hloexec.ops.traits import Index
from hloexec.tools.shadowing.alone.shares import Shares, affordable_runs, measured_shares
from hloexec.tools.shadowing.computing.elements import taken
from hloexec.tools.shadowing.observer import ShadowObserver
from hloexec.tools.shadowing.outputs import LeafError, digits_left
from hloexec.tools.shadowing.places import Place, Worst
from hloexec.tools.shadowing.store import Amounts, wide

CONFIDENCE = 0.95
_WATCHED = 64
"""Elements of an instruction's result that are compared."""


@frozen
class SampledDigits:
    """Significant decimal digits of a value, as runs with random rounding show them."""

    index: Index
    """Of an output the leaf; of an instruction the leaf of its result."""
    devices: tuple[int, ...]
    element_type: ElementType
    samples: int
    """The number of runs."""
    digits: float
    """Of the median element."""
    low: float
    """The lower end of the 95 % confidence interval, under normality."""
    high: float
    """Its upper end."""
    worst: float
    """Of the worst element."""
    agreed: float
    """The digits on which every run agreed, of the median element."""
    probability: float
    """At least this part of all runs agree so far, with a confidence of 95 %, whatever their distribution."""


class _Moments:
    """Of one array, what is known of its samples."""

    def __init__(self, first: Array) -> None:
        self.reference = wide(first)
        self.entry = element_type_of(first.dtype)
        self.squares = np.zeros(first.shape)
        self.largest = np.zeros(first.shape)
        self.sums = np.zeros(first.shape, self.reference.dtype)
        self.count = 0

    def add(self, sample: Array) -> None:
        if sample.shape != self.squares.shape:
            return
        with np.errstate(all="ignore"):
            numbers = wide(sample)
            distance = np.abs(numbers - self.reference)
            self.squares += distance**2
            np.maximum(self.largest, distance, out=self.largest)
            self.sums += numbers
        self.count += 1

    def found(self, index: Index, devices: tuple[int, ...]) -> SampledDigits | None:
        if not self.count or not self.squares.size:
            return None
        count = self.count
        most = -math.log10(unit_roundoff(self.entry))
        with np.errstate(all="ignore"):
            means = np.abs(self.sums / count)
            means = np.where(means > 0, means, np.abs(self.reference))
            digits = digits_left(np.sqrt(self.squares / count) / means, most)
            agreed = digits_left(self.largest / means, most)
        is_zero = (means == 0) & (self.squares == 0)
        if is_zero.all():
            return None
        digits, agreed = digits[~is_zero], agreed[~is_zero]
        middle = float(np.median(digits))
        low, high = (math.log10(chi_square_quantile(q, count) / count) / 2 for q in _TAILS)
        return SampledDigits(
            index=index,
            devices=devices,
            element_type=self.entry,
            samples=count,
            digits=middle,
            low=min(most, max(0.0, middle + low)),
            high=min(most, max(0.0, middle + high)),
            worst=float(digits.min()),
            agreed=float(np.median(agreed)),
            probability=(1 - CONFIDENCE) ** (1 / count),
        )


_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


def chi_square_quantile(chance: float, degrees: int) -> float:
    """What χ² stays below with this chance, within 1 % from 3 degrees of freedom on (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return float(degrees * max(1e-6, 1 - part + NormalDist().inv_cdf(chance) * math.sqrt(part)) ** 3)


class _Watcher:
    """Takes some elements of the last result of every instruction, on the first device."""

    def __init__(self) -> None:
        self.values: dict[Static, list[Array]] = {}

    def on_instruction(self, event: Event) -> None:
        if event.devices[0] == 0 and event.operands:
            leaves = [leaf for leaf in arrays_of(event.value) if leaf.size]
            arrays = [_some(leaf) for leaf in leaves if is_inexact(leaf)]
            if arrays:
                self.values[event.computation.name, event.instruction.name] = arrays


def _some(array: Array) -> Array:
    step = max(1, array.size // _WATCHED)
    return taken(array, np.arange(step // 2, array.size, step)[:_WATCHED])


def require_samples(samples: object, options: Options) -> None:
    """InputError unless so many runs with random rounding can be compared with the run."""
    require_integer("samples", samples, 0)
    policy = options.numerics
    if samples == 1:
        raise InputError("samples must be 0 or at least 2, as one run shows no spread, but is 1")
    if samples and policy.rounding_seed is not None:
        raise InputError(f"samples compare a run with others that round at random, but numerics is {policy.name}")


def sampled_digits(
    module: Module, inputs: Inputs | None, samples: int, stages: Stages, options: Options
) -> tuple[tuple[SampledDigits, ...], dict[Static, SampledDigits]]:
    """The digits of the leaves of the result on each group of devices, and of instructions by computation and name."""
    if not samples:
        return (), {}
    policy = options.numerics
    outputs: dict[tuple[Index, tuple[int, ...]], _Moments] = {}
    places: dict[Static, list[_Moments]] = {}
    stages.begin("rounding at random", samples)
    for seed in range(-1, samples):
        watcher = _Watcher()
        given = attrs.evolve(options, numerics=policy if seed < 0 else at_random(policy, seed))
        results = run_with(module, inputs, given, [watcher])
        for key, array in _leaves(results):
            if seed < 0:
                outputs[key] = _Moments(array)
            elif key in outputs:
                outputs[key].add(array)
        for place, arrays in watcher.values.items():
            if seed < 0:
                places[place] = [_Moments(array) for array in arrays]
            elif place in places:
                for moments, array in zip(places[place], arrays, strict=False):
                    moments.add(array)
        if seed >= 0:
            stages.tick()
    output_digits = (moments.found(*key) for key, moments in outputs.items())
    by_place = {place: _first(moments) for place, moments in places.items()}
    return tuple(entry for entry in output_digits if entry is not None), {
        place: entry for place, entry in by_place.items() if entry is not None
    }


def _first(moments: Sequence[_Moments]) -> SampledDigits | None:
    """The digits of the first leaf that has any."""
    digits = (entry.found((number,) if len(moments) > 1 else (), (0,)) for number, entry in enumerate(moments))
    return next((entry for entry in digits if entry is not None), None)


def _leaves(results: Sequence[Any]) -> list[tuple[tuple[Index, tuple[int, ...]], Array]]:
    """The leaves of floats of every device's result; devices that hold the same array share one."""
    found: dict[tuple[Index, int], list[int]] = {}
    arrays: dict[tuple[Index, int], Array] = {}
    for device, result in enumerate(results):
        for index, leaf in leaves(result):
            if is_inexact(leaf):
                found.setdefault((index, id(leaf)), []).append(device)
                arrays[index, id(leaf)] = leaf
    return [((index, tuple(devices)), arrays[index, key]) for (index, key), devices in found.items()]


@frozen
class Loss:
    """An instruction that part of the error of the outputs comes from."""

    share: float
    """Its share of the error of the outputs, from 0 to 1."""
    lost_share: float
    """Its share of the elements of outputs that are infinite or NaN and should not be."""
    kind: str
    """`rounding`, `cancellation`, `absorption`, `lost updates`, `overflow` or `underflow`
    (`shadowing.places`)."""
    instruction: str
    computation: str
    opcode: str
    hlo: str
    op_name: str | None
    source: tuple[SourceLine, ...]
    """Its source lines, the innermost call first; if it has none, those of the innermost instruction that calls it."""
    name: str
    """Path and instruction in its worst run, e.g. `loop[6]:body/fusion.2/divide.7`."""
    iteration: int | None
    """Of the innermost loop around it in that run, counted from 0."""
    devices: tuple[int, ...]
    inherited: float
    """Of its result in that run, what is inherited: the root of the mean square, relative to the exact result."""
    added: float
    """The same of what it added itself."""
    runs: int
    """How often it ran and gave a result with an error."""
    affected: int
    """How many elements show the kind of loss, of those that were looked at; 0 for rounding."""
    outputs: tuple[int, ...]
    """The outputs, by number, whose error it is part of, the one with the largest share first."""
    alone: float | None = None
    """The relative error of the outputs, of the one that has the largest, where only this instruction rounds its result
    and all else is in f64; None where no such run was made."""
    is_measured: bool = False
    """Whether its share is measured: by rounding it alone, or its operands; else it is an estimate, or its part of what
    a group of instructions does together is."""
    digits: SampledDigits | None = None
    """Where random rounding was asked for, what it says of the last run of the instruction."""


@frozen
class Decision:
    """An instruction whose integers or preds the shadows would make otherwise: a comparison, a conversion, a sort."""

    count: int
    """How many elements."""
    total: int
    """How many elements there are."""
    instruction: str
    computation: str
    opcode: str
    hlo: str
    source: tuple[SourceLine, ...]


@frozen
class Untold:
    """An instruction whose results count as exact, since they cannot be computed in f64."""

    instruction: str
    computation: str
    opcode: str
    reason: str


@frozen
class InstructionError:
    """The error of an instruction in its worst run."""

    computation: str
    instruction: str
    inherited: float
    """What is inherited, relative to the exact result."""
    added: float
    """What the instruction adds itself, relative to the exact result."""


@frozen
class ShadowRun(Described):
    """What `shadow` found."""

    outputs: tuple[LeafError, ...]
    """The error of each leaf of the result, for each group of devices that hold the same."""
    losses: tuple[Loss, ...]
    """Where the errors of the outputs come from, the largest share first."""
    decisions: tuple[Decision, ...]
    """Where the shadows would have decided otherwise."""
    untold: tuple[Untold, ...]
    """What cannot be computed in f64, so that its results count as exact."""
    events: int
    """How many values were looked at."""
    samples: int = 0
    """How many runs with random rounding were made besides."""
    digits: tuple[SampledDigits, ...] = ()
    """What they say of each output."""
    share_runs: int = 0
    """How many runs in f64 were made for the shares."""
    estimates_reason: str = ""
    """Why the shares are estimates, as a clause; empty where they are measured."""
    estimated_count: int = 0
    """Beside measured shares, how many instructions that round did not run alone: the share of their group is divided
    among them, or theirs are estimates."""
    errors: Mapping[Static, tuple[float, float]] = attrs.field(factory=dict)
    """By the names of computation and instruction, of each that made an error or computed with one: what it inherits
    and what it adds in its worst run, relative to its exact result, also where little of it reaches an output."""

    @property
    def culprit(self) -> Loss | None:
        """The instruction that most of the error comes from; None where there is no error."""
        return self.losses[0] if self.losses else None

    @property
    @told
    def instruction_errors(self) -> tuple[InstructionError, ...]:
        """The errors of all instructions, each in its worst run."""
        return tuple(InstructionError(*place, *errors) for place, errors in self.errors.items())

    @property
    @told
    def is_more_than_rounding(self) -> bool:
        """Whether the error of an output, as a whole, exceeds eight units of roundoff of the types that it was made in,
        or elements are infinite or NaN and should not be. Single elements may have lost more."""
        return any(output.is_more_than_rounding for output in self.outputs)

    def __str__(self) -> str:
        if not self.losses:
            return f"no rounding error in {len(self.outputs)} outputs"
        if not self.is_more_than_rounding:
            return f"nothing but rounding in {len(self.outputs)} outputs"
        first = self.losses[0]
        share = max(first.share, first.lost_share)
        return f"%{first.instruction} in {first.computation}: {first.kind}, {share:.0%} of the error of the outputs"


def shadow(
    module: Module,
    inputs: Inputs | None,
    *,
    samples: int = 0,
    share_runs: int | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> ShadowRun:
    """Run a module, and beside each of its floats the number that it would be without rounding.

    This *shadow* is computed in f64 (of f64: in twice that) from the shadows of the operands, along the branches,
    indices and orders of the run. The difference is the rounding error of a value. Each instruction inherits errors
    and adds one, and the losses that are found are ranked by their share of the error of the outputs
    (`shadowing.places`, `shadowing.places`). Parameters and constants count as exact. Where the shadows
    would compare, convert to integers or sort otherwise, `decisions` says so.

    Where an output has lost more than rounding takes, shares are measured: by running each instruction that rounds
    alone, all others being in f64 (`shadowing.alone.shares`), in at most `share_runs` runs (by default as many
    as are estimated to cost no more than the run with shadows). `Loss.is_measured` says whether a share is measured;
    `ShadowRun.estimates_reason`, why all are estimates.

    With `samples` (at least 2), the module runs so many times more, with random rounding, and the digits on which these
    runs agree are given with a confidence interval (`shadowing.running`).

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`); `numerics`
    is how the run rounds. Shadows take about as much memory again as the values that are alive. Raises InputError for
    invalid options, and whatever `run_devices` raises.
    """
    require_module(module)
    resolved = resolve_options("shadow", options)
    require_samples(samples, resolved)
    if share_runs is not None:
        require_integer("share_runs", share_runs, 0)
    watchers = listed("observers", observers, "observers")
    topology = topology_of(module, resolved.replicas, resolved.partitions)
    observer = ShadowObserver(module, resolved.computation, topology)
    results = run_with(module, inputs, resolved, [observer, *watchers])
    stages = Stages(watchers)
    shares = _shares(module, inputs, results, observer, share_runs, stages, resolved)
    digits, by_place = sampled_digits(module, inputs, samples, stages, resolved)
    return _result(module, observer, shares, samples, digits, by_place)


def _shares(
    module: Module,
    inputs: Inputs | None,
    results: Sequence[Value],
    observer: ShadowObserver,
    most: int | None,
    stages: Stages,
    options: Options,
) -> Shares:
    outputs = observer.outputs
    if not any(output.shares for output in outputs):
        return Shares(tuple(outputs))
    if not any(output.is_more_than_rounding for output in outputs):
        return Shares(tuple(outputs), "there is little to share")
    if most is None:
        most = affordable_runs(observer.work, len(observer.places))
    shares = measured_shares(module, inputs, results, outputs, observer.places, most, stages, options)
    for place in observer.places:
        place.judge(is_cancelling=place.static in shares.cancelling, is_measured=place.static in shares.measured)
    return shares


def _result(
    module: Module,
    observer: ShadowObserver,
    shares: Shares,
    samples: int,
    digits: tuple[SampledDigits, ...],
    by_place: dict[Static, SampledDigits],
) -> ShadowRun:
    scores: Amounts = defaultdict(float)
    lost: Amounts = defaultdict(float)
    of_outputs: dict[Static, list[tuple[float, int]]] = defaultdict(list)
    for number, output in enumerate(shares.outputs):
        for place, share in output.shares.items():
            scores[place] += output.weight * share * len(output.devices)
            of_outputs[observer.places[place].static].append((-output.weight * share, number))
        for place, share in output.lost_shares.items():
            lost[place] += output.lost * share * len(output.devices)
            of_outputs[observer.places[place].static].append((-float("inf"), number))
    totals = sum(scores.values()) or 1.0, sum(lost.values()) or 1.0
    callers = sole_callers(module)
    # Of an instruction that several devices ran, the run is shown that most of the outputs' errors come from.
    order = sorted(range(len(observer.places)), key=lambda place: (-lost[place], -scores[place], place))
    groups: dict[Static, list[int]] = defaultdict(list)
    for place in order:
        groups[observer.places[place].static].append(place)
    places = [Place.joined([observer.places[number] for number in numbers]) for numbers in groups.values()]
    sums = {static: [sum(part[n] for n in numbers) for part in (lost, scores)] for static, numbers in groups.items()}
    to_blame = [place for place in places if place.static in of_outputs]
    losses = [
        _loss(
            module,
            callers,
            place,
            sums[place.static][1] / totals[0],
            sums[place.static][0] / totals[1],
            tuple(dict.fromkeys(number for _, number in sorted(of_outputs[place.static]))),
            by_place,
            shares.alone.get(place.static),
            place.static in shares.measured,
        )
        for place in sorted(to_blame, key=lambda place: [-amount for amount in sums[place.static]])
    ]
    return ShadowRun(
        outputs=shares.outputs,
        losses=tuple(losses),
        decisions=_decisions(module, places),
        untold=_untold(observer),
        events=observer.events,
        samples=samples,
        digits=digits,
        share_runs=shares.runs,
        estimates_reason=shares.reason,
        estimated_count=shares.estimated,
        errors={
            place.static: (place.worst.inherited, place.worst.added)
            for place in sorted(observer.places, key=_size_of_worst)
            if place.worst is not None
        },
    )


def _untold(observer: ShadowObserver) -> tuple[Untold, ...]:
    failures = ((observer.places[number], reason) for number, reason in observer.failing.items())
    return tuple(
        dict.fromkeys(
            Untold(place.instruction.name, place.computation.name, place.instruction.opcode, reason)
            for place, reason in failures
        )
    )


def _size_of_worst(place: Place) -> float:
    return 0.0 if place.worst is None else max(place.worst.inherited, place.worst.added)


def _loss(
    module: Module,
    callers: Mapping[str, tuple[Computation, Instruction]],
    place: Place,
    share: float,
    lost_share: float,
    outputs: tuple[int, ...],
    by_place: dict[Static, Any],
    alone: float | None,
    is_measured: bool,
) -> Loss:
    instruction = place.instruction
    worst = place.worst or Worst(instruction.name, iteration=None, devices=(0,), inherited=0.0, added=0.0)
    kind = place.kind(is_lost=lost_share > 0)
    counted = "absorption" if kind == "lost updates" else kind
    return Loss(
        share=share,
        lost_share=lost_share,
        kind=kind,
        instruction=instruction.name,
        computation=place.computation.name,
        opcode=instruction.opcode,
        hlo=hlo_line(instruction),
        op_name=instruction.op_name,
        source=source_lines_around(module, place.computation, instruction, callers),
        name=worst.name,
        iteration=worst.iteration,
        devices=worst.devices,
        inherited=worst.inherited,
        added=worst.added,
        runs=place.runs,
        affected=place.counts.get(counted, 0),
        outputs=outputs,
        digits=by_place.get((place.computation.name, instruction.name)),
        alone=alone,
        is_measured=is_measured,
    )


def _decisions(module: Module, places: Sequence[Place]) -> tuple[Decision, ...]:
    deciding = [place for place in places if place.decisions]
    deciding.sort(key=lambda place: -place.decisions)
    return tuple(
        Decision(
            place.decisions,
            place.decided,
            place.instruction.name,
            place.computation.name,
            place.instruction.opcode,
            hlo_line(place.instruction),
            source_lines(module, place.instruction),
        )
        for place in deciding
    )
