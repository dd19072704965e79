"""The interpreter for observed runs: what observers see, checks of every result, counters.

Showing observers the program of a plan while its optimized steps run. Steps may combine several instructions, reorder
them, or omit those whose values are not needed. Observers nevertheless see each instruction of the program in order, as
soon as its value is available. A fused region also returns its intermediate values, unless they are so large that they
should not be there all at once; a value that no step computes is computed for the observer from values that are
available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.varying import Varying
from hloexec.engine.exec.code.compiling import Code
from hloexec.engine.exec.lockstep.per_class import EachClass
from hloexec.engine.exec.lockstep.transport import LOCAL, Transport
from hloexec.engine.exec.machine import Machine, store_result
from hloexec.engine.exec.observers import Attached, LoopState, attach
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.exec.tasks import Frame, Loop, Task
from hloexec.engine.plan.kernels import NO_SLOT, InstructionKernel, Kernel, fits
from hloexec.engine.plan.regions.region import Region, RegionKernel
from hloexec.engine.plan.steps import Plan, Step
from hloexec.errors import EvaluationError, HloError, ResourceError

if TYPE_CHECKING:
    from hloexec.engine.exec.host import Host
    from hloexec.engine.exec.limits import Limits


_MOST_BYTES = 1 << 26
"""What the intermediate values of a region may take together."""


@define(eq=False)
class Shown:
    """What is shown of a plan."""

    steps: list[Step]
    """The steps that run, regions so that they give all of their values."""
    program: list[Step]
    last: list[tuple[int, ...]]
    """For each step of the program the slots that nothing needs once it has been shown."""
    computed: frozenset[int]
    """The slots that no step fills."""
    needed: list[tuple[int, ...]]
    """For each step of the program the slots that are filled before it can be shown."""
    is_computed: list[bool]
    """For each step of the program whether its kernel has to run for the observer."""


_known: WeakKeyDictionary[Plan, Shown] = WeakKeyDictionary()


def shown(plan: Plan) -> Shown:
    """What is shown of a plan; worked out once."""
    shown_plan = _known.get(plan)
    if shown_plan is None:
        shown_plan = _known[plan] = _shown(plan)
    return shown_plan


def _shown(plan: Plan) -> Shown:
    filled = {*plan.parameters, *plan.constants}
    steps = []
    for step in plan.steps:
        # A view that stands in its region and outside is there once its region has run.
        if step.kernel is None or not step.results or not filled.issuperset(step.results):
            is_shown = isinstance(step.kernel, RegionKernel) and not step.is_silent
            is_shown = is_shown and _intermediate_bytes(plan, step) <= _MOST_BYTES
            steps.append(_revealing(step, filled) if is_shown else _unshared(step))
            filled.update(steps[-1].results)
    last_use: dict[int, int] = {}
    shown_at: dict[int, int] = {}
    for position, step in enumerate(plan.program):
        for slot in (*step.operands, *step.results):
            last_use[slot] = position
        for slot in step.results:
            shown_at.setdefault(slot, position)
    # A step has run once what it fills is shown.
    for step in steps:
        position = max((shown_at.get(slot, 0) for slot in step.results), default=len(plan.program) - 1)
        for slot in step.operands:
            last_use[slot] = max(last_use.get(slot, 0), position)
    kept = {*plan.results, *plan.constants}
    ends: list[list[int]] = [[] for _ in plan.program]
    for slot, position in last_use.items():
        if slot not in kept:
            ends[position].append(slot)
    computed = frozenset(slot for step in plan.program for slot in step.results if slot not in filled)
    return Shown(
        steps=steps,
        program=plan.program,
        last=[tuple(slots) for slots in ends],
        computed=computed,
        needed=[(*step.operands, *(slot for slot in step.results if slot not in computed)) for step in plan.program],
        is_computed=[step.kernel is not None and not computed.isdisjoint(step.results) for step in plan.program],
    )


def _intermediate_bytes(plan: Plan, step: Step) -> int:
    """What the values take that a region has and does not return."""
    assert isinstance(step.kernel, RegionKernel)
    slots = {part.step.result for part in step.kernel.region.parts}.difference(step.results)
    return sum(plan.slot_shapes[slot].byte_size for slot in slots)


def _revealing(step: Step, filled: Collection[int]) -> Step:
    """A region's step that fills the slots of all of its instructions but those of values that it computes again."""
    assert isinstance(step.kernel, RegionKernel)
    region = step.kernel.region
    slots = tuple(part.step.result for part in region.parts if part.step.result not in filled)
    return attrs.evolve(step, tree=slots, kernel=Kernel(_AllValues(region, slots)))


def _unshared(step: Step) -> Step:
    """A step that leaves the arrays of its operands as they are: they are still to be shown."""
    if step.reused == NO_SLOT:
        return step
    new = step.copied()
    new.reused = NO_SLOT
    return new


@frozen(eq=False)
class _AllValues:
    region: Region
    slots: tuple[int, ...]

    def __call__(self, *operands: Array) -> tuple[Any, ...]:
        values = self.region.intermediate_values(*operands)
        return tuple(values[slot] for slot in self.slots)


_LONG_SECONDS = 0.05
"""Iterations of a loop run as Python for about so long at a time, for the sake of progress, limits and Ctrl-C."""


class WatchedMachine(Machine):
    """Runs plans as `Machine` does, and reports to observers, checks results and counts bytes where asked."""

    _is_watched = True

    def __init__(
        self,
        topology: Topology,
        attached: Attached,
        *,
        check: bool = False,
        statistics: Statistics | None = None,
        hosts: Sequence[Host] = (),
        limits: Limits | None = None,
        transport: Transport = LOCAL,
    ) -> None:
        super().__init__(topology, hosts, transport)
        self._limits = limits
        self._begun: set[Plan] = set()
        """The plans that have been compared with the limits."""
        self._attached = attached
        self._check = check
        self._statistics = statistics
        self._each_class = _CountedClasses(statistics, keeps_operands=attached.see_instructions)
        self._started = 0.0
        """When the last iterations that ran as Python began."""
        self._kernel_started = 0.0
        self._seconds: dict[int, float] = {}
        """How long the last kernel took, by the slots that it filled."""

    def run(self, plan: Plan, arguments: list[Any]) -> list[Any]:
        if self._statistics is not None:
            count = self._topology.count
            self._statistics.watch(self._transport.devices(count) if count > 1 else ())
            for value in arguments:
                self._statistics.ignore(value)
        return super().run(plan, arguments)

    def _may_run_loops_per_class(self) -> bool:
        # Observers are shown a program's steps in its order.
        return not self._attached.see_instructions

    def _beside(self) -> Machine:
        return WatchedMachine(
            self._topology,
            attach(()),
            check=self._check,
            statistics=self._statistics,
            hosts=self._hosts,
            limits=self._limits,
        )

    def _push(self, task: Task, plan: Plan, arguments: list[Any], step: Step | None, loop: Loop | None = None) -> None:
        statistics = self._statistics
        if statistics is not None:
            for value in plan.constants.values():
                statistics.ignore(value)
            for slot, value in zip(plan.parameters, arguments, strict=True):
                if slot not in plan.dead_on_entry or self._attached.see_instructions:
                    statistics.take(value, task.devices)
        if len(task.frames) == 1 and step is not None and self._attached.see_progress:
            iteration = loop.iteration if loop is not None else None
            entry = task.frames[0]
            self._attached.progress(entry.begun, len(entry.plan.steps), step.instruction, iteration)
        self._require_unrolled(plan)
        shown_arguments = list(arguments) if self._attached.see_instructions else []
        super()._push(task, plan, arguments, step, loop)
        if self._attached.see_instructions:
            frame = task.frames[-1]
            frame.remaining = iter(shown(plan).steps)
            # Parameters are shown that nothing reads.
            for slot, value in zip(plan.parameters, shown_arguments, strict=True):
                frame.slots[slot] = value
            self._show(task)

    def _due_code(self, plan: Plan, arguments: Sequence[object]) -> Code | None:
        attached = self._attached
        has_part = self._check or self._limits is not None or self._statistics is not None
        is_watched = has_part or attached.see_instructions or attached.see_progress
        return None if is_watched else super()._due_code(plan, arguments)

    def _due_iterations(self, loop: Loop) -> int:
        """Some at a time. Where bytes are counted, only those whose steps take the same in each iteration."""
        steps = (*loop.flow.condition.steps, *loop.flow.body.steps)
        if self._statistics is not None and any(step.kernel is None for step in steps):
            return 0
        if self._check or self._attached.see_instructions:
            return 0
        if not super()._due_iterations(loop):
            return 0
        self._started = time.perf_counter()
        if self._limits is None:
            return loop.at_a_time
        if loop.flow.condition.depth != 1 or loop.flow.body.depth != 1:
            return 0
        self._require_unrolled(loop.flow.body)
        most = self._limits.max_iterations
        return loop.at_a_time if most is None else min(loop.at_a_time, max(most - loop.iteration, 0))

    def _test_condition(self, task: Task, step: Step, loop: Loop) -> Task | None:
        observer = self._attached.iterating
        if observer is None or self._check or self._statistics is not None or self._limits is not None:
            return super()._test_condition(task, step, loop)
        frame = task.frames[-1]
        while all(isinstance(value, np.ndarray) for value in loop.state):
            jump = observer.on_loop(LoopState(step, frame.context, task.devices, loop.state, loop.iteration))
            if jump is None:
                break
            loop.state, loop.iteration = jump[0], loop.iteration + jump[1]
            if self._attached.see_progress and len(task.frames) == 1:
                self._attached.progress(frame.begun, len(frame.plan.steps), step.instruction, loop.iteration)
        return super()._test_condition(task, step, loop)

    def _iterated(self, loop: Loop, times: int, is_over: bool) -> None:
        if time.perf_counter() - self._started < _LONG_SECONDS / 2:
            loop.at_a_time *= 2
        if self._limits is not None and not is_over:
            self._limits.note(loop)
        flow = loop.flow
        if self._statistics is not None:
            self._statistics.ran(times * len(flow.body.steps) + (times + is_over) * len(flow.condition.steps))

    def _iterate(self, task: Task, step: Step, loop: Loop, again: object) -> Task | None:
        if self._limits is not None and again:
            try:
                self._limits.require_iteration(loop)
                self._limits.require_time(task.frames, loop)
            except ResourceError as error:
                raise self._placed(error, task, step) from None
        return super()._iterate(task, step, loop, again)

    def _require_unrolled(self, plan: Plan) -> None:
        if self._limits is not None and plan not in self._begun:
            self._begun.add(plan)
            self._limits.require_unrolled(plan)

    def _begin(self, task: Task, step: Step) -> bool:
        frame = task.frames[-1]
        frame.begun += 1
        if self._limits is not None:
            self._limits.require_time(task.frames)
        if self._attached.see_progress and len(task.frames) == 1:
            self._attached.progress(frame.begun, len(frame.plan.steps), step.instruction)
        self._kernel_started = time.perf_counter()
        return False

    def _end(self, task: Task, step: Step) -> None:
        self._ran(task, step)
        if self._attached.see_instructions:
            self._show(task)
        self._drop(task, step)

    def _compute(self, task: Task, step: Step) -> None:
        """Run a kernel of the program that no step of the plan runs."""
        slots = task.frames[-1].slots
        assert step.function is not None
        operands = step.fetch(slots)
        self._kernel_started = time.perf_counter()
        if Varying in map(type, operands):
            self._each_class.run(task.devices, step, operands, slots)
        else:
            store_result(step, step.function(*operands), slots)
        self._ran(task, step)

    def _ran(self, task: Task, step: Step) -> None:
        """A kernel has run."""
        frame = task.frames[-1]
        slots = frame.slots
        seconds = (time.perf_counter() - self._kernel_started) / max(len(step.results), 1)
        self._seconds = dict.fromkeys(step.results, seconds)
        if self._check:
            check_results(frame.plan, step, slots)
        if self._statistics is not None:
            self._statistics.ran(1)
            for slot in step.results:
                self._statistics.take(slots[slot], task.devices)

    def _show(self, task: Task) -> None:
        """Show observers the steps of the program whose values are there, in their order."""
        frame = task.frames[-1]
        slots, program = frame.slots, shown(frame.plan)
        while frame.shown < len(program.program):
            step = program.program[frame.shown]
            for slot in program.needed[frame.shown]:
                if slots[slot] is None:
                    return
            if program.is_computed[frame.shown]:
                self._compute(task, step)
            if not step.is_silent:
                # Multiply-adds, and what converts the value of a call, a parameter or a tuple, have operands that the
                # text does not have.
                is_its_own = isinstance(step.kernel, InstructionKernel)
                operands = step.fetch(slots) if is_its_own else None
                seconds = self._seconds.get(step.results[0], 0.0) if step.kernel is not None and step.results else 0.0
                self._attached.instruction(step, slots, operands, seconds, frame.context, task.devices)
                del operands
            for slot in program.last[frame.shown]:
                if self._statistics is not None:
                    self._statistics.release(slots[slot], task.devices)
                slots[slot] = None
            frame.shown += 1

    def _drop(self, task: Task, step: Step) -> None:
        if self._attached.see_instructions:
            # Values stay until they have been shown.
            return
        statistics = self._statistics
        if statistics is not None:
            slots = task.frames[-1].slots
            for slot in step.dead:
                statistics.release(slots[slot], task.devices)
        super()._drop(task, step)

    def _placed(self, error: Exception, task: Task, step: Step) -> HloError:
        placed = super()._placed(error, task, step)
        if self._attached.controls:
            devices = tuple(self._each_class.running) or task.devices
            self._attached.failed(step, task.frames[-1].context, devices, placed)
        return placed

    def _finished(self, task: Task, frame: Frame) -> None:
        if self._statistics is not None:
            self._count(task, frame, self._statistics.release)
        if len(task.frames) == 1 and self._attached.see_progress and frame.plan.steps:
            total = len(frame.plan.steps)
            self._attached.progress(total, total, frame.plan.steps[-1].instruction)

    def _completed(self, task: Task, step: Step) -> None:
        if self._statistics is not None:
            for slot in step.results:
                self._statistics.take(task.frames[-1].slots[slot], task.devices)
        if self._attached.see_instructions:
            self._show(task)

    def _split_task(self, task: Task, step: Step, groups: Sequence[Sequence[int]]) -> list[Task]:
        parts = super()._split_task(task, step, groups)
        self._recount(parts, [task])
        return parts

    def _merge(self, tasks: Sequence[Task]) -> Task:
        task = super()._merge(tasks)
        self._recount([task], tasks)
        return task

    def _recount(self, now: Sequence[Task], before: Sequence[Task]) -> None:
        """Some tasks took the place of others."""
        if self._statistics is not None:
            for tasks, count in (now, self._statistics.take), (before, self._statistics.release):
                for task in tasks:
                    for frame in task.frames:
                        self._count(task, frame, count)

    @staticmethod
    def _count(task: Task, frame: Frame, count: Callable[[Any, Sequence[int]], None]) -> None:
        constants = frame.plan.constants
        for slot, value in enumerate(frame.slots):
            if slot not in constants:
                count(value, task.devices)


class _CountedClasses(EachClass):
    """Counts what kernels give for each class."""

    def __init__(self, statistics: Statistics | None, *, keeps_operands: bool) -> None:
        super().__init__(keeps_operands=keeps_operands)
        self._statistics = statistics

    def made(self, value: object, devices: Sequence[int]) -> None:
        if self._statistics is not None:
            for leaf in flat(value):
                self._statistics.take(leaf, devices)

    def freed(self, value: object, devices: Sequence[int]) -> None:
        if self._statistics is not None:
            for leaf in flat(value):
                self._statistics.release(leaf, devices)


def check_results(plan: Plan, step: Step, slots: list[Any]) -> None:
    """Raise EvaluationError unless a kernel returned what its slots are for; bounds hold for dynamic sizes."""
    for number, slot in enumerate(step.results):
        shape = plan.slot_shapes[slot]
        for value in slots[slot].values if type(slots[slot]) is Varying else (slots[slot],):
            if fits(value, shape):
                continue
            description = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            raise EvaluationError(f"the kernel returned {description} as result {number}, where the shape is {shape}")
