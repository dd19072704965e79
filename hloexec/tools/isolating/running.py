"""`isolate`: run a module once, and each of its units on a counterpart, as soon as the run has its operands."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Unpack

import attrs

from hloexec.analysis.calls import CallKind, calls_in
from hloexec.core.arguments import (
    listed,
    named_computation,
    require_choice,
    require_integer,
    require_module,
    require_path,
    shard_of,
)
from hloexec.core.files import require_new_folder
from hloexec.core.ir import Module
from hloexec.core.structs import define
from hloexec.core.values import Inputs, Value, arrays_of
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Event, Observer, Stages
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.extraction.running import Enough, Extraction
from hloexec.tools.isolating.findings import IsolatedUnit, Isolation, severity
from hloexec.tools.isolating.judging import Judge
from hloexec.tools.isolating.units import BY, Unit, units_of

_SECONDS = 120.0
"""What a unit may take on the counterpart where the options have no limit."""


_AHEAD = 4
"""So many units may be waiting for the counterpart, which runs them while others are judged."""


@define(eq=False, slots=False)
class _Held:
    """A value that units are given."""

    value: Value

    @cached_property
    def digest(self) -> bytes:
        """The same for equal values of one shape."""
        digest = hashlib.blake2b()
        for array in arrays_of((self.value,)):
            digest.update(array.tobytes())
        return digest.digest()


class _Collector:
    """Sees the run, and has each unit judged when its first execution ends, and that in the iteration that is meant.

    It holds what units are given that are left: of each instruction the last value on each device.
    """

    def __init__(
        self, units: Sequence[Unit], judge: Judge, iteration: int | None, count: int, stages: Stages, ahead: int
    ) -> None:
        self._judge = judge
        self._ahead = ahead
        self._awaited: deque[Callable[[], IsolatedUnit]] = deque()
        self._iteration = iteration
        self._stages = stages
        self._units = {unit.key: unit for unit in units}
        times = {None, iteration}
        self.left = {key: {(time, device) for time in times for device in range(count)} for key in self._units}
        """Of each unit, the executions that are to be judged: the first, or that in an iteration, on each device."""
        self._alike = Counter(unit.text for unit in units for _ in self.left[unit.key])
        """How many executions are to be judged of units of a text."""
        self._uses = Counter((unit.computation.name, name) for unit in units for name in unit.boundary)
        self._held: dict[tuple[str, str], dict[int, _Held]] = {}
        self.results: list[IsolatedUnit] = []

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        key = event.computation.name, event.instruction.name
        if self._uses[key] > 0:
            self._held.setdefault(key, {}).update(dict.fromkeys(event.devices, _Held(event.value)))
        left = self.left.get(key)
        if left is None:
            return
        times = {None, event.iteration} & {None, self._iteration}
        met = left.intersection((time, device) for time in times for device in event.devices)
        left -= met
        if event.iteration is None:
            left.difference_update((self._iteration, device) for device in event.devices)
        if met:
            self._meet(self._units[key], event, tuple(sorted({device for _, device in met})))
        if not left:
            self._release(self._units[key])

    def _meet(self, unit: Unit, event: Event, devices: tuple[int, ...]) -> None:
        operands = [self._held[unit.computation.name, name][devices[0]] for name in unit.boundary]
        inputs = [operand.value for operand in operands]
        run = Extraction(unit.named, [inputs], [event.value], event.name, event.iteration, {})
        source = tuple(map(str, source_lines(unit.named, unit.instruction)))
        place = (event.name, *unit.key, hlo_line(unit.instruction), source, devices, event.iteration)
        digests = tuple(operand.digest for operand in operands) if self._alike[unit.text] > 1 else ()
        self._awaited.append(self._judge.begin(unit, run, digests, IsolatedUnit(*place, "refused", text=unit.text)))
        self.finish(self._ahead)

    def finish(self, ahead: int = 0) -> None:
        """Have units judged until so many are left waiting."""
        while len(self._awaited) > ahead:
            self.results.append(self._awaited.popleft()())
            self._stages.tick()

    def _release(self, unit: Unit) -> None:
        """Drop what only this unit was still to be given."""
        del self.left[unit.key]
        for key in [(unit.computation.name, name) for name in unit.boundary]:
            self._uses[key] -= 1
            if not self._uses[key]:
                self._held.pop(key, None)
        if not self.left:
            raise Enough


def isolate(
    module: Module,
    inputs: Inputs | None = None,
    *,
    against: str | NumericsPolicy | Counterpart,
    by: str | None = None,
    iteration: int | None = None,
    shard: str | None = None,
    output: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Isolation:
    """Run each fusion, instruction or computation of a module alone on a counterpart, with the operands of a run here.

    The module runs once, as with `run_devices` (`inputs`, `observers`, `options`: `hloexec.Inputs`,
    `hloexec.RunOptions`); without inputs, they are random. `by` says what a unit is: `"fusion"` (also an instruction
    outside of fusions), `"instruction"` or `"computation"`; by default fusions where there are some, else instructions.
    In loops the first execution is looked at, and that in `iteration` of the innermost loop; on several devices each
    value that they hold.

    What `against` gives, a counterpart that runs modules (`hloexec.counterpart`), is compared with what the unit gave
    here, by what rounding does to each element (`hloexec.compare`); of what differs, `explain` looks for the policy
    that explains it. A unit that crashes, or takes more than `timeout` (120 seconds by default) or `memory_limit`,
    keeps no other from running. Units that are equal but for names and have equal operands run once. Collectives are
    not isolated.

    `output` is a new folder for what differs: of each unit the module, its inputs, what it gives here (expected.npz)
    and there (actual.npz), and the command that shows it. `shard`, such as `"3/8"`, looks at the third of eight parts
    of the units. Raises InputError for what does not fit, and whatever `run_devices` raises.
    """
    require_module(module)
    resolved = resolve_options("isolate", options)
    other = counterpart_of(against, instead="units are modules of their own, which no file has results of")
    if by is not None:
        require_choice("by", by, BY)
    if iteration is not None:
        require_integer("iteration", iteration, 0)
    part, parts = (0, 1) if shard is None else shard_of(shard)
    if output is not None:
        require_path("output", output)
        require_new_folder(output)
    watchers = listed("observers", observers, "observers")
    entry = module.entry if resolved.computation is None else named_computation(module, resolved.computation)
    units = units_of(module, by, entry)[part::parts]
    stages = Stages(watchers)
    stages.begin("units", len(units))
    limits = attrs.evolve(resolved.of_parts, timeout=resolved.timeout or _SECONDS)
    judge = Judge(other, limits, None if output is None else Path(output))
    count = topology_of(module, resolved.replicas, resolved.partitions).count
    # What waits takes memory.
    ahead = _AHEAD if resolved.memory_limit is None else 0
    collector = _Collector(units, judge, iteration, count, stages, ahead)
    if inputs is None:
        inputs = [random_inputs(module, resolved.seed, computation=resolved.computation)]
    is_complete = False
    with suppress(KeyboardInterrupt):
        with suppress(Enough):
            # Without loops, planning takes longer than what it saves in one run.
            is_planned = resolved.planner and any(calls_in(module, CallKind.BODY))
            once = attrs.evolve(resolved, timeout=None, planner=is_planned)
            run_with(module, inputs, once, [collector, *watchers])
        collector.finish()
        is_complete = True
    results = tuple(sorted(collector.results, key=severity))
    met = {(result.computation, result.instruction) for result in results}
    unmet = tuple(unit.instruction.name for unit in units if unit.key not in met)
    return Isolation(module, other.name, results, unmet, is_complete)
