"""`isolate`: run a module once, and each of its units on a counterpart, as soon as the run has its operands."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

import attrs

from hloexec.core.arguments import listed, named_computation, require_choice, require_integer, require_module, shard_of
from hloexec.core.files import require_new_folder
from hloexec.core.ir import Module
from hloexec.core.values import Inputs, Value
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Event, Observer, Stages
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.extraction.running import Enough
from hloexec.tools.isolating.findings import IsolatedUnit, Isolation, grouped
from hloexec.tools.isolating.judging import Execution, Judge
from hloexec.tools.isolating.units import BY, Unit, default_by, units_of

_SECONDS = 120.0
"""What a unit may take on the counterpart where the options have no limit."""


class _Collector:
    """Sees the run, and has each unit judged when its first execution ends, and that in the iteration that is meant.

    It holds what units are given that are left: of each instruction the last value on each device.
    """

    def __init__(
        self, units: Sequence[Unit], judge: Judge, iteration: int | None, devices: int, stages: Stages
    ) -> None:
        self._judge = judge
        self._iteration = iteration
        self._stages = stages
        self._units = {unit.key: unit for unit in units}
        times = {None, iteration}
        self._left = {key: {(time, device) for time in times for device in range(devices)} for key in self._units}
        """Of each unit, the executions that are to be judged: the first, or that in an iteration, on each device."""
        self._uses = Counter((unit.computation.name, name) for unit in units for name in unit.slice.boundary)
        self._held: dict[tuple[str, str], dict[int, Value]] = {}
        self.results: list[IsolatedUnit] = []

    @property
    def unmet(self) -> list[Unit]:
        """The units of which no execution was seen."""
        met = {(result.computation, result.instruction) for result in self.results}
        return [unit for key, unit in self._units.items() if key not in met]

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        key = event.computation.name, event.instruction.name
        if self._uses[key] > 0:
            self._held.setdefault(key, {}).update(dict.fromkeys(event.devices, event.value))
        if key in self._left:
            self._meet(self._units[key], self._left[key], event)

    def _meet(self, unit: Unit, left: set[tuple[int | None, int]], event: Event) -> None:
        iteration = event.iteration
        times = {None, iteration} & {None, self._iteration}
        met = {(time, device) for time in times for device in event.devices} & left
        left -= met
        if iteration is None:
            left -= {(self._iteration, device) for device in event.devices}
        if met:
            devices = tuple(sorted({device for _, device in met}))
            operands = [self._held[unit.computation.name, name][devices[0]] for name in unit.slice.boundary]
            execution = Execution(unit, event.name, iteration, devices, operands, event.value)
            self.results.append(self._judge.judge(execution))
            self._stages.tick()
        if not left:
            self._release(unit)

    def _release(self, unit: Unit) -> None:
        """Drop what only this unit was still to be given."""
        del self._left[unit.key]
        for name in unit.slice.boundary:
            key = unit.computation.name, name
            self._uses[key] -= 1
            if not self._uses[key]:
                self._held.pop(key, None)
        if not self._left:
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
    `hloexec.RunOptions`); without inputs, they are random. `by` says what a unit is: `"fusion"` (each fusion, and each
    instruction outside of fusions that computes something), `"instruction"` (those inside of fusions, too) or
    `"computation"`; by default fusions where there are some, else instructions. Of a unit in a loop, the first
    execution is looked at, and with `iteration` that in this iteration of the innermost loop, too; of a module for
    several devices, each value that devices hold.

    `against` is a counterpart that runs modules (`hloexec.counterpart`). What it gives is compared with what the unit
    gave here, by what rounding does to each element (`hloexec.compare`); for what differs, `explain` looks for the
    policy under which the unit gives that. A unit that crashes the counterpart, or takes more than `timeout` seconds
    (by default 120) or `memory_limit`, does not keep the others from running. Units that are equal but for names and
    have equal operands run once. Collectives are not isolated.

    What differs is kept in `output`, a new folder: for each a folder with the module, its inputs, the result here
    (expected.npz) and there (actual.npz), and the command that shows it. `shard`, such as `"3/8"`, looks at the third
    of eight parts of the units. Raises InputError for what does not fit, and whatever `run_devices` raises.
    """
    start = time.perf_counter()
    require_module(module)
    resolved = resolve_options("isolate", options)
    other = counterpart_of(against, instead="units are modules of their own, which no file has results of")
    if by is not None:
        require_choice("by", by, BY)
    if iteration is not None:
        require_integer("iteration", iteration, 0)
    part, parts = (0, 1) if shard is None else shard_of(shard)
    if output is not None:
        require_new_folder(output)
    watchers = listed("observers", observers, "observers")
    entry = module.entry if resolved.computation is None else named_computation(module, resolved.computation)
    by = by or default_by(module)
    units = units_of(module, by, entry)[part::parts]
    topology = topology_of(module, resolved.replicas, resolved.partitions)
    stages = Stages(watchers)
    stages.begin("units", len(units))
    of_units = attrs.evolve(resolved.of_parts, timeout=resolved.timeout or _SECONDS)
    judge = Judge(module, units, other, of_units, output)
    collector = _Collector(units, judge, iteration, topology.count, stages)
    is_complete = True
    if inputs is None:
        inputs = [random_inputs(module, resolved.seed, computation=resolved.computation)]
    try:
        with suppress(Enough):
            run_with(module, inputs, attrs.evolve(resolved, timeout=None), [collector, *watchers])
    except KeyboardInterrupt:
        is_complete = False
    ordered, groups = grouped(collector.results)
    return Isolation(
        by=by,
        against=other.name,
        units=ordered,
        groups=groups,
        unit_count=len(units),
        unmet=tuple(unit.name for unit in collector.unmet) if is_complete else (),
        run_count=judge.run_count,
        seconds=time.perf_counter() - start,
        is_complete=is_complete,
        module=module,
    )
