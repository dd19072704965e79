"""Communication between devices: groups, channels, and the check that all of them take part.

A task that reaches a collective contributes the operands of its devices. A group computes its results as soon as all of
its members have contributed; a task waits until all of its devices have their results. Sends never wait: their data are
queued until the receiver's recv-done, which waits for them. Instructions that meet at a collective must have the same
opcode, the same channel or none, and operands of the same shapes; they need not be the same instruction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from hloexec.core.ir import ReplicaGroups, TupleShape, flat_shapes, leaf_shapes
from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.core.values import TOKEN
from hloexec.core.wording import argument, listing
from hloexec.engine.devices.topology import FromDevice, Group, ToDevice, Topology, ends_of
from hloexec.engine.devices.varying import of_position, of_positions
from hloexec.engine.exec.limits import computation_text, instruction_text
from hloexec.engine.exec.tasks import Task
from hloexec.engine.plan.steps import Exchange, Plan, Step, groups_at
from hloexec.engine.plan.synthesis import zeros
from hloexec.errors import DeadlockError, EvaluationError, InputError, ShapeError, UnsupportedError
from hloexec.ops.registry import Callee, ProgramShape, find_opcode

Leaves: TypeAlias = "tuple[Any, ...]"

_LISTED = 12


@define(eq=False)
class Waiting:
    """A task at a step that needs other devices."""

    task: Task
    step: Step
    held: dict[int, Leaves]
    """Contributions of each device that have not been used yet."""
    results: dict[int, Leaves] = attrs.field(factory=dict)
    """What each device that need not wait any more has got."""

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self.task.devices)


class Communicator:
    """The meeting places and mailboxes of one run."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.waiting: list[Waiting] = []
        self._meetings: dict[Any, dict[int, Waiting]] = {}
        """Who has come to each meeting that is not complete, by device."""
        self._mailboxes: dict[tuple[int | None, int | None], deque[tuple[int, Step, Leaves]]] = {}
        """Values that were sent, by channel and receiver (None: any receiver on the channel), with sender and step."""

    # Collectives

    def exchange(self, task: Task, step: Step) -> tuple[Waiting, list[Waiting]]:
        """Bring a task to a collective; returns where it waits, and everyone who need not wait any more."""
        slots = task.frames[-1].slots
        operands = [slots[slot] for slot in step.operands]
        held = {
            device: tuple(of_position(operand, position) for operand in operands)
            for position, device in enumerate(task.devices)
        }
        del operands
        waiting = Waiting(task, step, held)
        over: list[Waiting] = []
        memo: dict[Any, list[Leaves]] = {}
        for group in groups_at(step, self.topology):
            members = dict.fromkeys((device for device in group.values() if device in held), waiting)
            if not members:
                continue
            if len(members) < len(group):
                key = (self._meeting_point(step, held), tuple(group.values()))
                meeting = self._meetings.setdefault(key, {})
                meeting.update(members)
                if len(meeting) < len(group):
                    continue
                members = self._meetings.pop(key)
            self._act(step, group, members, memo)
            for member in dict.fromkeys(members.values()):
                if member is not waiting and member.is_over:
                    self.waiting.remove(member)
                    over.append(member)
        if waiting.is_over:
            over.append(waiting)
        else:
            self.waiting.append(waiting)
        return waiting, over

    def _meeting_point(self, step: Step, held: dict[int, Leaves]) -> Any:
        """Equal for arrivals that may meet."""
        first = next(iter(held.values()))
        shapes = tuple((value.dtype.str, value.shape) if isinstance(value, np.ndarray) else None for value in first)
        opcode = step.instruction.opcode.removesuffix("-start")
        return getattr(step.instruction.attributes, "channel_id", None), opcode, shapes

    def _act(self, step: Step, group: Group, members: dict[int, Waiting], memo: dict[Any, list[Leaves]]) -> None:
        """Let a complete group exchange what its members hold."""
        assert isinstance(step.flow, Exchange)
        held = {number: members[device].held.pop(device) for number, device in group.items()}
        # Groups whose members hold the same arrays get the same results, unless it matters which devices they are.
        numbers_matter = step.flow.groups is not None or getattr(step.instruction.attributes, "may_leave_out", False)
        numbers = tuple(group) if numbers_matter else ()
        key = (numbers, tuple(tuple(map(id, leaves)) for leaves in held.values()))
        if key not in memo:
            results = step.flow.function(held)
            memo[key] = [tuple(flat(results[number])) for number in group]
        for device, result in zip(group.values(), memo[key], strict=True):
            members[device].results[device] = result

    # Channels

    def send(self, task: Task, step: Step) -> None:
        """Put what a task's devices send into mailboxes."""
        flow = step.flow
        assert isinstance(flow, ToDevice)
        slots = task.frames[-1].slots
        leaves = [slots[slot] for slot in step.operands]
        for position, device in enumerate(task.devices):
            data = tuple(of_position(leaf, position) for leaf in leaves)
            for receiver in self._ends(flow, device, 0):
                self._mailboxes.setdefault((flow.channel, receiver), deque()).append((device, step, data))

    def receive(self, task: Task, step: Step) -> tuple[Waiting, list[Waiting]]:
        """Bring a task to a recv-done; returns where it waits, and everyone who need not wait any more."""
        waiting = Waiting(task, step, dict.fromkeys(task.devices, ()))
        self.waiting.append(waiting)
        return waiting, self.delivered()

    def delivered(self) -> list[Waiting]:
        """Take from the mailboxes what tasks wait for; returns those that need not wait any more."""
        over = []
        for waiting in list(self.waiting):
            if isinstance(waiting.step.flow, FromDevice):
                for device in sorted(waiting.held):
                    leaves = self._received(waiting.step, device)
                    if leaves is not None:
                        del waiting.held[device]
                        waiting.results[device] = leaves
                if waiting.is_over:
                    self.waiting.remove(waiting)
                    over.append(waiting)
        return over

    def _received(self, step: Step, device: int) -> Leaves | None:
        """The leaves of (data, token) for a device; None while they have not been sent."""
        flow = step.flow
        assert isinstance(flow, FromDevice)
        shape = step.instruction.shape
        assert isinstance(shape, TupleShape)
        if flow.pairs is not None and not self._ends(flow, device, 1):
            return tuple(zeros(leaf) for leaf in flat_shapes(shape))
        mailbox = self._mailboxes.get((flow.channel, None if flow.pairs is None else device))
        if not mailbox:
            return None
        _, sent, data = mailbox.popleft()
        data = data[: len(step.results) - 1]
        for value, (_, leaf) in zip(data, leaf_shapes(shape.elements[0]), strict=True):
            if isinstance(value, np.ndarray) and value.shape != getattr(leaf, "dimensions", value.shape):
                raise EvaluationError(
                    f"%{sent.instruction.name} sends an array of shape {list(value.shape)}, where "
                    f"%{step.instruction.name} expects {leaf}"
                )
        return (*data, TOKEN)

    def _ends(self, flow: FromDevice | ToDevice, device: int, end: int) -> Sequence[int | None]:
        """The devices at the other end of transfers whose end number `end` (0: source) is `device`."""
        return (None,) if flow.pairs is None else ends_of(flow.pairs, self.topology)[end].get(device, ())

    # Deadlocks

    def split(self, waiting: Waiting, make: Callable[[Task, Step, list[list[int]]], list[Task]]) -> Waiting | None:
        """Separate the devices that have their results from those that must wait on; None where there are none."""
        positions = range(len(waiting.task.devices))
        ready = [position for position in positions if waiting.task.devices[position] in waiting.results]
        if not ready:
            return None
        rest = [position for position in positions if position not in ready]
        first, second = make(waiting.task, waiting.step, [ready, rest])
        over = Waiting(first, waiting.step, {}, waiting.results)
        waiting.task, waiting.results = second, {}
        return over

    def deadlock(self, done: Sequence[int]) -> DeadlockError:
        """The report of a run in which no device can make progress; `done` are the devices that have finished."""
        lines = ["no device can go on:"]
        for waiting in self.waiting[:_LISTED]:
            devices = [device for device in waiting.task.devices if device not in waiting.results]
            lines.append(f"  {_named(devices)} {_waits(devices)} {self._awaited(waiting)} at")
            lines.append(f"    {instruction_text(waiting.step.instruction, waiting.step)}")
            lines.append(f"    {computation_text(waiting.step, waiting.task.frames[-1].context)}")
        if len(self.waiting) > _LISTED:
            lines.append(f"  … and {len(self.waiting) - _LISTED} more groups of devices wait")
        if done:
            lines.append(f"  {_named(sorted(done))} {'has' if len(done) == 1 else 'have'} finished")
        return DeadlockError("\n".join(lines))

    def _awaited(self, waiting: Waiting) -> str:
        """Whom a task waits for, in words."""
        flow = waiting.step.flow
        if isinstance(flow, FromDevice):
            ends = (end for device in waiting.held for end in self._ends(flow, device, 1))
            senders = sorted({sender for sender in ends if sender is not None})
            channel = "" if flow.channel is None else f" on channel {flow.channel}"
            return f"for data{channel}" + (f" from {_named(senders)}" if senders else "")
        missing: set[int] = set()
        for group in groups_at(waiting.step, self.topology):
            if not waiting.held.keys().isdisjoint(group.values()):
                key = (self._meeting_point(waiting.step, waiting.held), tuple(group.values()))
                missing |= set(group.values()) - self._meetings.get(key, {}).keys()
        return f"for {_named(sorted(missing))}"

    def require_all_received(self) -> None:
        """Raise DeadlockError if a send was never received: its send-done would never finish."""
        for (channel, receiver), mailbox in self._mailboxes.items():
            if mailbox:
                sender, step, _ = mailbox[0]
                where = f"%{step.instruction.name} in computation {step.scope.computation.name}"
                to = "" if receiver is None else f" to device {receiver}"
                raise DeadlockError(
                    f"device {sender} sends{to} on channel {channel} ({where}), but nobody receives it, so that the "
                    "send would never be done"
                )


def results_of(waiting: Waiting) -> list[Any]:
    """The leaves of the step's value, for all devices of the task."""
    columns = zip(*(waiting.results[device] for device in waiting.task.devices), strict=True)
    return [of_positions(column) for column in columns]


def _named(devices: Sequence[int]) -> str:
    if len(devices) == 1:
        return f"device {devices[0]}"
    return f"devices {listing(devices, _LISTED)}"


def _waits(devices: Sequence[int]) -> str:
    return "waits" if len(devices) == 1 else "wait"


def require_devices(plan: Plan, topology: Topology) -> None:
    """InputError unless a plan's collectives and channels are for these devices; UnsupportedError for a single one.

    A single device can be a group by itself, but can only send to and receive from itself.
    """
    fitting = _fitting.setdefault(plan, set())
    if topology in fitting:
        return
    for step in plan.communication:
        try:
            if isinstance(step.flow, Exchange):
                groups = groups_at(step, topology)
                for size in sorted({len(group) for group in groups}):
                    _require_fitting_shapes(step, size)
            elif isinstance(step.flow, (FromDevice, ToDevice)):
                _require_ends(step, step.flow, topology)
        except InputError as error:
            if topology.count > 1:
                raise
            raise UnsupportedError(_needs_devices(step)) from error
    fitting.add(topology)


_fitting: WeakKeyDictionary[Plan, set[Topology]] = WeakKeyDictionary()
"""The devices that plans have been found to be for: small modules are run many times."""


def _require_fitting_shapes(step: Step, size: int) -> None:
    """Ask the opcode's shape rule with groups of this size, which the text may leave open."""
    instruction, computation = step.instruction, step.scope.computation
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.infer is None or not hasattr(instruction.attributes, "replica_groups"):
        return
    groups = ReplicaGroups((tuple(range(size)),))
    attributes = attrs.evolve(instruction.attributes, replica_groups=groups, channel_id=None)
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    assert isinstance(step.flow, Exchange)
    callees: Sequence[Callee] = step.flow.callees
    programs = tuple(
        ProgramShape(
            tuple(parameter.shape for parameter in callee.computation.parameters), callee.computation.result_shape
        )
        for callee in callees
    )
    try:
        entry.infer(*shapes, attributes=attributes, shape=instruction.shape, computations=programs)
    except ShapeError as error:
        raise InputError(
            f"%{instruction.name} in computation {computation.name} does not fit groups of {size} devices: "
            f"{error.message}"
        ) from error


def _require_ends(step: Step, flow: FromDevice | ToDevice, topology: Topology) -> None:
    """The pairs of a channel must name devices that are there, none of them twice at one end."""
    name = step.instruction.name
    if flow.pairs is None:
        if topology.count == 1:
            raise InputError(f"%{name} exchanges data with another device")
        return
    kind, count = ("partition", topology.partitions) if topology.partitions > 1 else ("replica", topology.replicas)
    for end, role in enumerate(("source", "target")):
        numbers = [pair[end] for pair in flow.pairs]
        for number in numbers:
            if number >= count:
                raise InputError(f"%{name} names {kind} {number} as a {role}, but there are {count} ({topology})")
            if numbers.count(number) > 1:
                raise InputError(f"%{name} names {kind} {number} as a {role} twice")


def _needs_devices(step: Step) -> str:
    return (
        f"%{step.instruction.name} in computation {step.scope.computation.name} ({step.instruction.opcode}) exchanges "
        "values with other devices, and a single one has none; run the module on all of its devices "
        f"({argument('run_devices')})"
    )
