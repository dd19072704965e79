"""Communication between devices: groups, channels, and the check that all of them take part.

A task that reaches a collective contributes the operands of its devices. A group computes its results as soon as all of
its members have contributed; a task waits until all of its devices have their results. Sends never wait: their data are
queued until the receiver's recv-done, which waits for them. Instructions that meet at a collective must have the same
opcode, the same channel or none, and operands of the same shapes; they need not be the same instruction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from hloexec.core.ir import ReplicaGroups, TupleShape, flat_shapes, leaf_shapes
from hloexec.core.tree import flat
from hloexec.core.values import TOKEN
from hloexec.core.wording import argument, listing
from hloexec.engine.devices.topology import FromDevice, Group, ToDevice, Topology, ends_of
from hloexec.engine.devices.varying import of_position, of_positions
from hloexec.engine.exec.limits import computation_text, instruction_text
from hloexec.engine.exec.lockstep.meetings import Leaves, Mail, Meeting, Waiting
from hloexec.engine.exec.lockstep.transport import LOCAL, Transport
from hloexec.engine.exec.tasks import Task
from hloexec.engine.plan.steps import Exchange, Plan, Step, groups_at
from hloexec.engine.plan.synthesis import zeros
from hloexec.errors import DeadlockError, EvaluationError, HloError, InputError, ShapeError, UnsupportedError
from hloexec.ops.registry import Callee, ProgramShape, find_opcode

Placing: TypeAlias = Callable[[Exception, Task, Step], HloError]
"""Gives the error of a task at a step with that place."""

_LISTED = 12


class Communicator:
    """The meeting places and mailboxes of one run."""

    def __init__(self, topology: Topology, transport: Transport = LOCAL) -> None:
        self.topology = topology
        self.transport = transport
        self.waiting: list[Waiting] = []
        self._groups: dict[Step, list[tuple[Group, int]]] = {}
        """The groups of a step that have members in this process, and how many."""
        self._meetings: dict[Any, Meeting] = {}
        """Those that are not complete."""
        self._mailboxes: dict[tuple[int | None, int | None], deque[Mail]] = {}
        """Values that were sent, by channel and receiver (None: any receiver on the channel)."""

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
        waiting = Waiting(task, step, held, {})
        point = self._meeting_point(step, held)
        meetings: list[Meeting] = []
        for group, expected in self._groups_here(step):
            members = dict.fromkeys((device for device in group.values() if device in held), waiting)
            if len(members) == len(group):
                meetings.append(Meeting(None, step, group, expected, members))
            elif members:
                key = self.transport.key(point, group)
                meeting = self._meetings.setdefault(key, Meeting(key, step, group, expected, {}))
                meeting.step = step
                meeting.members.update(members)
                meetings.append(meeting)
        self.transport.offer(waiting, meetings)
        over = self._completed(meetings, waiting)
        if waiting.is_over:
            over.append(waiting)
        else:
            self.waiting.append(waiting)
        return waiting, over

    def _groups_here(self, step: Step) -> list[tuple[Group, int]]:
        if step not in self._groups:
            here = self.transport.devices(self.topology.count)
            counted = ((group, sum(map(here.__contains__, group.values()))) for group in groups_at(step, self.topology))
            self._groups[step] = [entry for entry in counted if entry[1]]
        return self._groups[step]

    def _completed(
        self, meetings: Sequence[Meeting], arriving: Waiting | None = None, placed: Placing | None = None
    ) -> list[Waiting]:
        """Let the groups that are complete exchange what their members hold; returns who, but for those that are just
        arriving, need not wait any more."""
        over: list[Waiting] = []
        memo: dict[Any, list[Leaves]] = {}
        for meeting in meetings:
            others = self.transport.collect(meeting)
            if others is None or len(meeting.members) < meeting.expected:
                continue
            if meeting.key is not None:
                del self._meetings[meeting.key]
            with _placed_by(placed, next(iter(meeting.members.values()))):
                self._act(meeting, others, memo)
            for member in dict.fromkeys(meeting.members.values()):
                if member is not arriving and member.is_over:
                    self.waiting.remove(member)
                    over.append(member)
        return over

    def arrived(self, placed: Placing) -> list[Waiting]:
        """Take in what has come from other processes; returns everyone who need not wait any more."""
        keys, mails = self.transport.receive()
        over = self._completed([self._meetings[key] for key in keys if key in self._meetings], placed=placed)
        for mailbox, mail in mails:
            self._mailboxes.setdefault(mailbox, deque()).append(mail)
        return over + (self.delivered(placed) if mails else [])

    def _meeting_point(self, step: Step, held: dict[int, Leaves]) -> Any:
        """Equal for arrivals that may meet."""
        first = next(iter(held.values()))
        shapes = tuple((value.dtype.str, value.shape) if isinstance(value, np.ndarray) else None for value in first)
        instruction, attributes = step.instruction, step.instruction.attributes
        # Library calls are made by their configs.
        is_call = hasattr(attributes, "custom_call_target")
        opcode = instruction.backend_config if is_call else instruction.opcode.removesuffix("-start")
        return getattr(attributes, "channel_id", None), opcode, shapes

    def _act(self, meeting: Meeting, others: Mapping[int, Leaves], memo: dict[Any, list[Leaves]]) -> None:
        """Let a complete group exchange what its members hold; `others` are those elsewhere."""
        step, group, members = meeting.step, meeting.group, meeting.members
        assert isinstance(step.flow, Exchange)
        held = {
            number: members[device].held.pop(device) if device in members else others.get(device, ())
            for number, device in group.items()
        }
        if meeting.results is not None:
            for device, member in members.items():
                member.results[device] = meeting.results[device]
            return
        # Groups whose members hold the same arrays get the same results, unless it matters which devices they are.
        numbers_matter = step.flow.groups is not None or getattr(step.instruction.attributes, "may_leave_out", False)
        numbers = tuple(group) if numbers_matter else ()
        key = (numbers, tuple(tuple(map(id, leaves)) for leaves in held.values()))
        if key not in memo:
            results = step.flow.function(held)
            memo[key] = [tuple(flat(results[number])) for number in group]
        for device, result in zip(group.values(), memo[key], strict=True):
            if device in members:
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
            mail = Mail(device, step.instruction.name, step.scope.computation.name, data)
            for receiver in self._ends(flow, device, 0):
                if not self.transport.send(flow.channel, receiver, mail):
                    self._mailboxes.setdefault((flow.channel, receiver), deque()).append(mail)

    def receive(self, task: Task, step: Step) -> tuple[Waiting, list[Waiting]]:
        """Bring a task to a recv-done; returns where it waits, and everyone who need not wait any more."""
        waiting = Waiting(task, step, dict.fromkeys(task.devices, ()), {})
        self.waiting.append(waiting)
        return waiting, self.delivered()

    def delivered(self, placed: Placing | None = None) -> list[Waiting]:
        """Take from the mailboxes what tasks wait for; returns those that need not wait any more."""
        over = []
        for waiting in list(self.waiting):
            if isinstance(waiting.step.flow, FromDevice):
                for device in sorted(waiting.held):
                    with _placed_by(placed, waiting):
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
        is_own = flow.pairs is not None or self.transport.ask(flow.channel, device)
        mailbox = self._mailboxes.get((flow.channel, device if is_own else None))
        if not mailbox:
            return None
        mail = mailbox.popleft()
        data = mail.data[: len(step.results) - 1]
        for value, (_, leaf) in zip(data, leaf_shapes(shape.elements[0]), strict=True):
            if isinstance(value, np.ndarray) and value.shape != getattr(leaf, "dimensions", value.shape):
                raise EvaluationError(
                    f"%{mail.instruction} sends an array of shape {list(value.shape)}, where "
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
        """The report of a run in which no device can make progress; `done` are those here that have finished."""
        records = self.transport.gathered([[self._record(waiting) for waiting in self.waiting], list(done)])
        places: dict[Any, tuple[set[int], set[int]]] = {}
        for record in (record for waiting, _ in records for record in waiting):
            waiting_there, awaited_there = places.setdefault(tuple(record[2:]), (set(), set()))
            waiting_there.update(record[0])
            awaited_there.update(record[1])
        entries = sorted((sorted(waiting), sorted(others), key) for key, (waiting, others) in places.items())
        lines = ["no device can go on:"]
        for devices, others, (awaited, *place) in entries[:_LISTED]:
            whom = awaited if not others else f"{awaited} from {_named(others)}" if awaited else f"for {_named(others)}"
            lines.append(f"  {_named(devices)} {_waits(devices)} {whom} at")
            lines += [f"    {line}" for line in place]
        if len(entries) > _LISTED:
            lines.append(f"  … and {len(entries) - _LISTED} more groups of devices wait")
        finished = sorted(device for _, devices in records for device in devices)
        if finished:
            lines.append(f"  {_named(finished)} {_has(finished)} finished")
        return DeadlockError("\n".join(lines))

    def _record(self, waiting: Waiting) -> list[Any]:
        """Which devices of a task wait, for which others and for what, and the lines that say where."""
        devices = [device for device in waiting.task.devices if device not in waiting.results]
        others: set[int] = set()
        flow, awaited = waiting.step.flow, ""
        if isinstance(flow, FromDevice):
            ends = (end for device in waiting.held for end in self._ends(flow, device, 1))
            others = {sender for sender in ends if sender is not None}
            awaited = "for data" + ("" if flow.channel is None else f" on channel {flow.channel}")
        else:
            point = self._meeting_point(waiting.step, waiting.held)
            for group, _ in self._groups_here(waiting.step):
                if not waiting.held.keys().isdisjoint(group.values()):
                    key = self.transport.key(point, group)
                    others |= {*group.values()} - self._meetings[key].members.keys() - self.transport.present(key)
        place = computation_text(waiting.step, waiting.task.frames[-1].context)
        return [devices, sorted(others), awaited, instruction_text(waiting.step.instruction, waiting.step), place]

    @property
    def unread(self) -> int:
        """How many mailboxes have not been emptied."""
        return sum(map(bool, self._mailboxes.values()))

    def require_all_received(self) -> None:
        """Raise DeadlockError if a send was never received: its send-done would never finish."""
        unread = [
            (receiver, channel, mailbox[0]) for (channel, receiver), mailbox in self._mailboxes.items() if mailbox
        ]
        unread += [(None, channel, mail) for channel, mail in self.transport.unclaimed()]
        left = [
            [mail.sender, receiver, channel, mail.instruction, mail.computation] for receiver, channel, mail in unread
        ]
        if self.transport.may_have_unread:
            left = [record for records in self.transport.gathered(left) for record in records]
        if left:
            sender, receiver, channel, instruction, computation = min(left, key=lambda record: record[:1])
            to = "" if receiver is None else f" to device {receiver}"
            raise DeadlockError(
                f"device {sender} sends{to} on channel {channel} (%{instruction} in computation {computation}), but "
                "nobody receives it, so that the send would never be done"
            )


@contextmanager
def _placed_by(placed: Placing | None, waiting: Waiting) -> Iterator[None]:
    """What fails within comes out with the place where a task waits; as it is where the caller knows that."""
    try:
        yield
    except Exception as error:
        if placed is None:
            raise
        raise placed(error, waiting.task, waiting.step) from error


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


def _has(devices: Sequence[int]) -> str:
    return "has" if len(devices) == 1 else "have"


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
