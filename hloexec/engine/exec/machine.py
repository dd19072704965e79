"""The interpreter of plans, on one device or on many in lockstep.

It keeps its own stacks of frames, one frame per running plan, so programs may be nested to any depth. A frame's steps
run in a loop that only calls kernels and drops dead values; control flow and communication leave the loop, and the
interpreter decides how to continue. A kernel runs once if all devices hold the same operands, and otherwise once per
class of devices (`exec.lockstep.per_class`).

All devices begin as one task (`exec.tasks`), which runs until it ends, waits for others, or splits where control flow
diverges. The scheduler says which task runs, which waits, and how tasks that have diverged are joined again;
`exec.lockstep.communication` knows which task waits for which. `exec.watching` has the interpreter for runs with
observers, checks or counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.core.values import TOKEN
from hloexec.engine.devices.topology import FromDevice, FromHost, ToDevice, ToHost, Topology
from hloexec.engine.devices.varying import Classes, Varying, combined, merged, of_position, of_positions
from hloexec.engine.exec.code.compiling import RUNS_BEFORE_CODE, can_be_code, code_of, is_long, loop_code_of
from hloexec.engine.exec.host import CONTEXT, Host, exchanged
from hloexec.engine.exec.limits import with_place
from hloexec.engine.exec.lockstep.communication import Communicator, results_of
from hloexec.engine.exec.lockstep.meetings import Waiting
from hloexec.engine.exec.lockstep.per_class import ClassOperands, EachClass, lone_frame, parts_of_loop, side_by_side
from hloexec.engine.exec.lockstep.transport import LOCAL, State, Transport
from hloexec.engine.exec.placement import is_free
from hloexec.engine.exec.tasks import Frame, Join, Loop, Task, in_order, merged_task
from hloexec.engine.plan.kernels import NO_SLOT, leaves, store
from hloexec.engine.plan.steps import (
    Branch,
    Conditional,
    Context,
    DeviceNumber,
    Exchange,
    Invocation,
    Plan,
    Step,
    While,
)
from hloexec.errors import HloError

if TYPE_CHECKING:
    from hloexec.engine.exec.code.compiling import Code


class Scheduler:
    """The tasks of one run."""

    def __init__(self, topology: Topology, transport: Transport = LOCAL) -> None:
        self._topology = topology
        self._transport = transport
        self._ready: deque[Task] = deque()
        self._joins: list[Join] = []
        """Joins at which tasks wait."""
        self._ended: list[tuple[Task, list[Any]]] = []
        """The tasks that have finished, with their results."""

    @cached_property
    def _communicator(self) -> Communicator:
        """Which tasks wait for which; created on the first communication."""
        return Communicator(self._topology, self._transport)

    def _go(self, task: Task | None) -> None:
        """Run a task until it ends or waits for others."""
        raise NotImplementedError

    def _placed(self, error: Exception, task: Task, step: Step) -> HloError:
        """The error of a task at a step with that place."""
        raise NotImplementedError

    def _results(self, first: Task) -> list[Any]:
        """Run a task to its end, and all tasks that it splits into."""
        count = len(first.devices)
        self._ready.append(first)
        del first
        while unfinished := count - sum(len(task.devices) for task, _ in self._ended):
            if self._ready:
                self._go(self._ready.popleft())
            else:
                self._wait(unfinished)
        if self._transport is LOCAL and "_communicator" in vars(self):
            self._communicator.require_all_received()
        # The machine is in cycles of references, so that what it refers to would live until they are found.
        ended, self._ended = self._ended, []
        if len(ended) == 1:
            return ended[0][1]
        _, order = in_order([task for task, _ in ended])
        return [merged(values, order) for values in zip(*(results for _, results in ended), strict=True)]

    # Splitting

    def _diverge(
        self, task: Task, step: Step, keys: Sequence[object], go_on: Callable[[Task, list[int], Any], Task | None]
    ) -> None:
        """Split a task at `step` by the keys of its positions; each of the new tasks continues separately."""
        groups: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            groups.setdefault(key, []).append(position)
        parts = self._split_task(task, step, list(groups.values()))
        for part, (key, positions) in zip(parts, groups.items(), strict=True):
            new_task = go_on(part, positions, key)
            if new_task is not None:
                self._ready.append(new_task)

    def _split_task(self, task: Task, step: Step, groups: Sequence[Sequence[int]]) -> list[Task]:
        return task.split(step, groups)

    # Going on

    def _complete(self, task: Task, step: Step, results: Sequence[object]) -> Task | None:
        """Store the results of a step that is not a kernel; returns the task that continues, if any."""
        frame = task.frames[-1]
        for slot, value in zip(step.results, results, strict=True):
            frame.slots[slot] = value
        self._completed(task, step)
        self._drop(task, step)
        return self._arrive(task, step)

    def _arrive(self, task: Task, step: Step) -> Task | None:
        """Wait after `step` for the tasks that join there; returns the task that continues, if any."""
        while task.joins:
            join = task.joins[-1]
            if join.step is not step or join.depth != len(task.frames):
                break
            task.joins.pop()
            if join.is_released:
                continue
            if not join.arrived:
                self._joins.append(join)
            join.arrived.append(task)
            if sum(len(arrived.devices) for arrived in join.arrived) < join.count:
                return None
            self._joins.remove(join)
            task = self._joined(join)
        return task

    def _joined(self, join: Join) -> Task:
        """The tasks that have arrived at a join, as one. Tasks before it may know the join, which forgets them: else
        all that were ever split would keep their values."""
        arrived, join.arrived = join.arrived, []
        return self._merge(arrived)

    def _merge(self, tasks: Sequence[Task]) -> Task:
        return merged_task(tasks)

    def _resume(self, waiting: Waiting, over: Sequence[Waiting]) -> Task | None:
        """Resume tasks that no longer have to wait; returns the task of `waiting` if it is one of them."""
        for other in over:
            if other is not waiting:
                self._continue(other)
        return self._complete(waiting.task, waiting.step, results_of(waiting)) if waiting in over else None

    def _continue(self, waiting: Waiting) -> None:
        task = self._complete(waiting.task, waiting.step, results_of(waiting))
        if task is not None:
            self._ready.append(task)

    def _wait(self, unfinished: int) -> bool:
        """Let some task continue when all tasks wait, or so many devices have not finished; False where all have.

        Devices that have what they need are split from those of their task that do not; those who wait for others to
        join continue without them. If neither helps, raises DeadlockError, which says which device waits where.
        """
        communicator = self._communicator
        state = self._transport.wait(unfinished, communicator.unread)
        if state is State.ARRIVED:
            for waiting in communicator.arrived(self._placed):
                self._continue(waiting)
        elif state is State.QUIET and not any(self._transport.gathered(self._unblock())):
            done = [device for task, _ in self._ended for device in task.devices]
            raise communicator.deadlock(done if unfinished else self._transport.devices(self._topology.count))
        return state is not State.OVER

    def _unblock(self) -> bool:
        """Whether a task of this process continues without devices that it waited for."""
        for waiting in self._communicator.waiting:
            over = self._communicator.split(waiting, self._split_task)
            if over is not None:
                self._continue(over)
                return True
        if not self._joins:
            return False
        join = max(self._joins, key=lambda join: join.depth)
        join.is_released = True
        self._joins.remove(join)
        task = self._arrive(self._joined(join), join.step)
        if task is not None:
            self._ready.append(task)
        return True

    # What others may watch

    def _drop(self, task: Task, step: Step) -> None:
        slots = task.frames[-1].slots
        for slot in step.dead:
            slots[slot] = None

    def _completed(self, task: Task, step: Step) -> None:
        """A step that was no kernel has its results in place."""


_METHODS: dict[type, str] = {
    Conditional: "_enter",
    DeviceNumber: "_number_devices",
    Exchange: "_meet",
    FromDevice: "_meet",
    FromHost: "_exchange_with_host",
    Invocation: "_enter",
    ToDevice: "_send",
    ToHost: "_exchange_with_host",
    While: "_enter",
}
"""What carries out a step of each flow. Names, as bound methods would keep a machine alive beyond its run."""


class Machine(Scheduler):
    """Runs plans; one per run.

    `hosts` are what the devices of a plan with host transfers exchange values with (see `exec.host`).
    """

    _is_watched = False
    """Whether `_begin` and `_end` do anything."""

    def __init__(self, topology: Topology, hosts: Sequence[Host] = (), transport: Transport = LOCAL) -> None:
        super().__init__(topology, transport)
        self._hosts = hosts

    @cached_property
    def _each_class(self) -> EachClass:
        """Runs kernels on values that differ between devices."""
        return EachClass()

    def run(self, plan: Plan, arguments: list[Any]) -> list[Any]:
        """The leaves of the plan's result on the leaves of its arguments; either may be split between devices.

        The list of arguments is emptied, so that values without other references can be freed as soon as they are dead.
        """
        devices = tuple(self._transport.devices(self._topology.count))
        code = self._due_code(plan, arguments) if devices else None
        results: list[Any] = []
        if code is not None:
            results = list(self._call(code, arguments, None))
        elif devices:
            results = self._results(self._first_task(devices, plan, arguments))
        if self._transport is not LOCAL:
            # The devices of other processes may need what these have sent.
            while self._wait(0):
                pass
            self._communicator.require_all_received()
        return results

    def _first_task(self, devices: tuple[int, ...], plan: Plan, arguments: list[Any]) -> Task:
        task = Task(devices, [], [])
        self._push(task, plan, arguments, None)
        return task

    def _run_alone(self, part: ClassOperands, outer: Frame, step: Step) -> list[Any]:
        """The results of one step of another machine's frame, for devices that need no others for it."""
        return self._results(Task(part.devices, [lone_frame(outer, step, part.operands)], []))

    def _go(self, task: Task | None) -> None:
        """Run a task until it ends or waits for others."""
        while task is not None:
            step = self._advance(task)
            if step is not None:
                task = getattr(self, _METHODS[type(step.flow)])(task, step)
                continue
            frame = task.frames[-1]
            results = [frame.slots[slot] for slot in frame.plan.results]
            self._finished(task, frame)
            task.frames.pop()
            if not task.frames:
                self._ended.append((task, results))
                return
            task = self._return(task, frame, results)

    def _push(self, task: Task, plan: Plan, arguments: list[Any], step: Step | None, loop: Loop | None = None) -> None:
        """Begin a plan, in which the task carries out `step`."""
        slots = plan.initial.copy()
        for slot, value in zip(plan.parameters, arguments, strict=True):
            slots[slot] = value
        arguments.clear()
        for slot in plan.dead_on_entry:
            slots[slot] = None
        context = None
        if task.frames and step is not None:
            context = Context(step, plan, None if loop is None else loop.iteration, task.frames[-1].context)
        task.frames.append(Frame(plan, slots, iter(plan.steps), context, loop))

    def _advance(self, task: Task) -> Step | None:
        """Run steps of the innermost frame until one needs more than a kernel, which is returned, or the plan ends."""
        frame, is_watched = task.frames[-1], self._is_watched
        slots = frame.slots
        step: Step | None = None
        try:
            for step in frame.remaining:
                if is_watched and self._begin(task, step):
                    continue
                function = step.function
                if function is None:
                    return step
                operands = step.fetch(slots)
                # No name may hold a result here: it would outlive its slot.
                if Varying in map(type, operands):
                    self._each_class.run(task.devices, step, operands, slots)
                elif step.reused != NO_SLOT and is_free(slots, step.reused):
                    store_result(step, function(*operands, out=slots[step.reused]), slots)
                elif step.result != NO_SLOT:
                    slots[step.result] = function(*operands)
                else:
                    store(step.results, function(*operands), slots)
                del operands
                if is_watched:
                    self._end(task, step)
                    continue
                for slot in step.dead:
                    slots[slot] = None
        except Exception as error:
            assert step is not None
            raise self._placed(error, task, step) from error
        return None

    # Plans as Python

    def _due_code(self, plan: Plan, arguments: Sequence[object]) -> Code | None:
        """The Python that a plan which is about to run has become, if it has run so often that it is worth that."""
        plan.runs += 1
        is_due = plan.runs > RUNS_BEFORE_CODE and can_be_code(plan, arguments)
        return code_of(plan) if is_due else None

    def _due_iterations(self, loop: Loop) -> int:
        """How many iterations a loop shall run as Python; -1 for as many as there are."""
        if not can_be_code(loop.flow, loop.state):
            return 0
        return (
            -1 if loop.iteration >= RUNS_BEFORE_CODE or (not loop.iteration and is_long(loop.flow, loop.state)) else 0
        )

    def _call(self, code: Code, arguments: list[Any], context: Context | None, *more: object) -> Any:
        """Call a plan or loop that has been made into Python; `context` is the way to it."""
        try:
            return code.function(arguments, *more)
        except Exception as error:
            from hloexec.engine.exec.code.compiling import place_of

            place = place_of(error, context)
            if place is None:
                raise
            raise with_place(error, *place) from error

    # Communication

    def _number_devices(self, task: Task, step: Step) -> Task | None:
        assert isinstance(step.flow, DeviceNumber)
        number = self._topology.replica_of if step.flow.is_replica else self._topology.partition_of
        return self._complete(
            task, step, [of_positions([np.array(number(device), np.uint32) for device in task.devices])]
        )

    def _meet(self, task: Task, step: Step) -> Task | None:
        """Bring a task to a collective or a recv-done, where it may have to wait."""
        arrive = self._communicator.exchange if isinstance(step.flow, Exchange) else self._communicator.receive
        try:
            waiting, over = arrive(task, step)
        except Exception as error:
            raise self._placed(error, task, step) from error
        return self._resume(waiting, over)

    def _send(self, task: Task, step: Step) -> Task | None:
        self._communicator.send(task, step)
        slots = task.frames[-1].slots
        data = [slots[slot] for slot in leaves(step.operand_trees[0])]
        for waiting in self._communicator.delivered():
            self._continue(waiting)
        return self._complete(task, step, [*data, CONTEXT, TOKEN])

    def _exchange_with_host(self, task: Task, step: Step) -> Task | None:
        """Take a value from each device's host, or hand one over."""
        try:
            results = exchanged(self._hosts, task.devices, step, task.frames[-1].slots)
        except Exception as error:
            raise self._placed(error, task, step) from error
        return self._complete(task, step, results)

    # Control flow

    def _enter(self, task: Task, step: Step) -> Task | None:
        """Begin the plan that carries out a step of control flow."""
        frame, flow = task.frames[-1], step.flow
        slots = frame.slots
        if isinstance(flow, Conditional):
            selector = slots[step.operands[0]]
            if type(selector) is Varying:
                chosen = [flow.branches.index(flow.select(value)) for value in selector.values]
                keys = [chosen[number] for number in selector.classes]
                self._diverge(task, step, keys, lambda part, positions, key: self._take(part, step, flow.branches[key]))
                return None
            return self._take(task, step, flow.select(selector))
        arguments = [slots[slot] for slot in step.operands]
        if isinstance(flow, Invocation):
            return self._run(task, step, flow.plan, arguments)
        assert isinstance(flow, While)
        if Varying in map(type, arguments) and self._may_run_loops_per_class():
            classes_and_parts = parts_of_loop(frame.plan, step, task.devices, arguments)
            if classes_and_parts is not None:
                arguments.clear()
                return self._run_per_class(task, step, *classes_and_parts)
        self._drop(task, step)
        return self._test_condition(task, step, Loop(flow, arguments))

    def _take(self, task: Task, step: Step, branch: Branch) -> Task | None:
        """Run a branch of the conditional that the task is at, or begin it."""
        slots = task.frames[-1].slots
        arguments = [slots[slot] for slot in step.operands[branch.start : branch.stop]]
        return self._run(task, step, branch.plan, arguments)

    def _run_per_class(self, task: Task, step: Step, classes: Classes, parts: Sequence[ClassOperands]) -> Task | None:
        """Let each class of devices run a loop by itself."""
        outer = task.frames[-1]
        for part in parts:
            self._hold(step.operands, part.operands, part.devices)
        self._drop(task, step)
        results: list[list[Any]] = [[] for _ in parts]

        def run(number: int) -> None:
            part = parts[number]
            results[number] = self._beside()._run_alone(part, outer, step)
            self._hold(step.results, results[number], part.devices)

        side_by_side(run, len(parts))
        combined_values = [combined(classes, values) for values in zip(*results, strict=True)]
        for part in parts:
            for value in results.pop(0):
                self._each_class.freed(value, part.devices)
            del value
        return self._complete(task, step, combined_values)

    def _hold(self, slots: Sequence[int], values: Sequence[object], devices: Sequence[int]) -> None:
        """Count the values that devices hold for these slots."""
        for value in dict(zip(slots, values, strict=True)).values():
            self._each_class.made(value, devices)

    def _may_run_loops_per_class(self) -> bool:
        """Whether classes of devices may run loops by themselves."""
        return True

    def _beside(self) -> Machine:
        """A machine for devices of this one that need no others for a while."""
        return Machine(self._topology, self._hosts)

    def _run(self, task: Task, step: Step, plan: Plan, arguments: list[Any]) -> Task | None:
        """Run a plan, or begin it, in which the task carries out `step`."""
        self._drop(task, step)
        code = self._due_code(plan, arguments)
        if code is None:
            self._push(task, plan, arguments, step)
            return task
        context = Context(step, plan, None, task.frames[-1].context)
        return self._complete(task, step, self._call(code, arguments, context))

    def _return(self, task: Task, frame: Frame, results: list[Any]) -> Task | None:
        """Go on after `frame` has ended with `results`."""
        assert frame.context is not None
        step, loop = frame.context.step, frame.loop
        if loop is None:
            return self._complete(task, step, results)
        if loop.in_body:
            loop.in_body = False
            loop.iteration += 1
            loop.state = results
            # What the frame holds is not the loop's alone.
            frame.slots.clear()
            return self._test_condition(task, step, loop)
        again = results[0]
        if type(again) is Varying:
            keys = [bool(of_position(again, position)) for position in range(len(task.devices))]
            self._diverge(
                task,
                step,
                keys,
                lambda part, positions, key: self._iterate(part, step, loop.restricted_to(positions), key),
            )
            return None
        return self._iterate(task, step, loop, again)

    def _test_condition(self, task: Task, step: Step, loop: Loop) -> Task | None:
        """Ask whether a loop has another iteration; what can run as Python does so first."""
        more = self._due_iterations(loop)
        code = loop_code_of(step) if more else None
        if code is not None:
            start = loop.iteration
            until = -1 if more < 0 else start + more
            state, loop.state = loop.state, []
            context = task.frames[-1].context
            loop.state, loop.iteration, is_over = self._call(code, state, context, start, until)
            self._iterated(loop, loop.iteration - start, is_over)
            if is_over:
                return self._leave(task, step, loop)
        self._push(task, loop.flow.condition, list(loop.state), step, loop)
        return task

    def _iterate(self, task: Task, step: Step, loop: Loop, again: object) -> Task | None:
        """Begin another iteration of a loop, or leave it."""
        if again:
            loop.in_body = True
            state, loop.state = loop.state, []
            self._push(task, loop.flow.body, state, step, loop)
            return task
        return self._leave(task, step, loop)

    def _leave(self, task: Task, step: Step, loop: Loop) -> Task | None:
        if step.instruction.backend_config:
            # Imported late: few texts state how often a loop runs.
            from hloexec.ops.costs import note_trip_count

            note_trip_count(step.instruction, loop.iteration)
        results, loop.state = loop.state, []
        return self._complete(task, step, results)

    def _placed(self, error: Exception, task: Task, step: Step) -> HloError:
        devices = self._each_class.running
        if not devices and self._transport is not LOCAL and step.function is not None:
            # What those of other processes do is not known here.
            devices = task.devices
        return with_place(error, step, task.frames[-1].context, devices)

    # What others may watch

    def _begin(self, task: Task, step: Step) -> bool:
        """A step is next; returns whether it has been carried out here."""
        return False

    def _end(self, task: Task, step: Step) -> None:
        """A kernel has run, and its results are in place."""
        self._drop(task, step)

    def _iterated(self, loop: Loop, times: int, is_over: bool) -> None:
        """A loop has run so many iterations as Python, and its condition as often, or once more where it is over."""

    def _finished(self, task: Task, frame: Frame) -> None:
        """The plan of a frame has ended, and its results are taken out."""


def store_result(step: Step, value: object, slots: list[Any]) -> None:
    """Put what a kernel returned into its slots."""
    if step.result != NO_SLOT:
        slots[step.result] = value
    else:
        store(step.results, value, slots)
