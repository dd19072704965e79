"""`shadow`: run a module beside exact numbers, and say where the error of its results comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from hloexec.core.arguments import listed, require_integer, require_module
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.values import Inputs, Value
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Observer, Stages
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.language.origins import hlo_line, sole_callers, source_lines, source_lines_around
from hloexec.tools.shadowing.alone.budget import affordable_runs
from hloexec.tools.shadowing.alone.shares import Shares, estimated_shares, measured_shares
from hloexec.tools.shadowing.digits import SampledDigits, require_samples, sampled_digits
from hloexec.tools.shadowing.findings import Decision, Loss, ShadowRun, Untold
from hloexec.tools.shadowing.observer import ShadowObserver
from hloexec.tools.shadowing.places import Place, Worst


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
    (`shadowing.blame`, `shadowing.kinds`). Parameters and constants count as exact. Where the shadows
    would compare, convert to integers or sort otherwise, `decisions` says so.

    Where an output has lost more than rounding takes, shares are measured: by running each instruction that rounds
    alone, all others being in f64 (`shadowing.alone.shares`), in at most `share_runs` runs (by default as many
    as are estimated to cost no more than the run with shadows). `Loss.is_measured` says whether a share is measured;
    `ShadowRun.estimates_reason`, why all are estimates.

    With `samples` (at least 2), the module runs so many times more, with random rounding, and the digits on which these
    runs agree are given with a confidence interval (`shadowing.digits`).

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
        return estimated_shares(outputs, "there is little to share")
    if most is None:
        most = affordable_runs(observer.work, len(observer.places))
    found = measured_shares(module, inputs, results, outputs, observer.places, most, stages, options)
    for place in observer.places:
        place.judge(is_cancelling=place.static in found.cancelling, is_measured=place.static in found.measured)
    return found


def _result(
    module: Module,
    observer: ShadowObserver,
    shares: Shares,
    samples: int,
    digits: tuple[SampledDigits, ...],
    by_place: dict[tuple[str, str], SampledDigits],
) -> ShadowRun:
    scores: dict[int, float] = defaultdict(float)
    lost: dict[int, float] = defaultdict(float)
    of_outputs: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
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
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in order:
        groups[observer.places[place].static].append(place)
    places = [Place.joined([observer.places[number] for number in numbers]) for numbers in groups.values()]
    sums = {static: [sum(each[n] for n in numbers) for each in (lost, scores)] for static, numbers in groups.items()}
    to_blame = [place for place in places if place.static in of_outputs]
    found = [
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
        losses=tuple(found),
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
    found = ((observer.places[number], reason) for number, reason in observer.failing.items())
    return tuple(
        dict.fromkeys(
            Untold(place.instruction.name, place.computation.name, place.instruction.opcode, reason)
            for place, reason in found
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
    by_place: dict[tuple[str, str], Any],
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
    found = [place for place in places if place.decisions]
    found.sort(key=lambda place: -place.decisions)
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
        for place in found
    )
