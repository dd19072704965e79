"""A run over MPI: each process, a rank, holds a block of neighbouring devices.

A collective whose group has members on several ranks is computed on each of them, from what all members hold and in the
group's order, so that the bits are those of one process. Large arrays that are folded element by element are divided:
each rank folds a part of them, and hands it to the others. A rank sends an array to another rank once, whatever number
of its devices hold it.

Ranks agree without a master that nothing is left to do: a rank that cannot go on takes part in a round, a sum over all
ranks of how many messages they have sent and received. If two rounds in a row give the same, and as many were received
as sent, then no rank could go on in between.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

import hloexec.errors
from hloexec.core.dtypes import DType
from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.engine.devices.ranks import devices_of_rank, rank_of_device
from hloexec.engine.devices.topology import Group
from hloexec.engine.exec.lockstep.gathering import ranks_of_machine, require_same
from hloexec.engine.exec.lockstep.meetings import Leaves, Mail, Meeting, Waiting
from hloexec.engine.exec.lockstep.parcels import (
    LONGEST_SLEEP,
    SHORTEST_SLEEP,
    Arriving,
    Comm,
    Parcel,
    Placing,
    Post,
    Row,
    part_of,
    wait_until,
)
from hloexec.engine.exec.lockstep.transport import State, Transport
from hloexec.errors import DeadlockError, EvaluationError, HloError, InputError
from hloexec.ops.collective.groups import folds_each_element, joins_along, zeros
from hloexec.ops.collective.sending import needed_members, parts_along, received
from hloexec.ops.resources import empty, spans_of

_Prepared = TypeVar("_Prepared")

_LARGE_BYTES = 1 << 18
"""From here on ranks fold a part each of what is folded element by element."""
_BUSY_LOOKS = 200
"""So often a rank looks for messages before it sleeps in between."""
_LOOKS_IN_A_ROW = 64
"""While arrays come, so often before others may use the processor: MPI moves them on whenever it is asked."""
_FAREWELL_SECONDS = 1.0
"""How long a rank that fails tries to tell the others."""
_failed: list[Any] = []
"""What runs that failed have left under way: MPI may still read and write it."""


@define(eq=False)
class _Placed:
    """Large results, of which parts are received where they lie."""

    wholes: list[Array]
    parts: Mapping[int, Sequence[Array]]
    """Where what comes from each source lies, by operand."""
    is_placed: set[tuple[int, int]]
    """What is in its place, by source and operand."""

    def put(self, source: int, leaves: Leaves) -> None:
        """Put what comes from a source in its place."""
        for operand, leaf in enumerate(leaves):
            if (source, operand) not in self.is_placed:
                self.is_placed.add((source, operand))
                self.parts[source][operand][...] = leaf

    def placing(self, source: int, row: Row) -> Placing:
        """Where arrays are received that are on their way."""

        def place(number: int, sizes: Sequence[int], dtype: DType) -> Array:
            if number not in row:
                return empty(sizes, dtype)
            operand = row.index(number)
            self.is_placed.add((source, operand))
            return self.parts[source][operand]

        return place


@define(eq=False)
class _Folding:
    """Ranks fold a part each of large arrays."""

    spans: dict[int, tuple[tuple[int, int], ...]]
    """For each rank the range of the elements of each operand."""
    totals: _Placed | None = None
    """The results, by rank, once this one has folded its part."""


@define(eq=False)
class _Parting:
    """Each member gets parts of large arrays, of which ranks send one another no others."""

    dimension: int
    places: dict[int, int]
    """Of the members, in the group's order."""

    def part(self, device: int) -> tuple[int, ...]:
        """The part of each operand that is for a member."""
        return self.dimension, len(self.places), self.places[device]


class _ElsewhereError(Exception):
    """What is behind an error of another rank is a fault of hloexec's own."""


class RankTransport(Transport):
    """Between the ranks of a communicator, for one run."""

    def __init__(self, comm: Comm, count: int) -> None:
        self._comm = comm.Dup()
        self._rank, self._size = comm.rank, comm.size
        self._count = count
        self._devices = devices_of_rank(self._rank, self._size, count)
        self._post = Post(self._comm)
        self._keys: dict[Any, str] = {}
        self._offers: dict[str, dict[int, deque[tuple[Arriving, Row | None]]]] = {}
        """What members elsewhere have brought to meetings."""
        self._parts: dict[str, dict[int, Arriving]] = {}
        """What other ranks have folded for meetings, by rank."""
        self._touched: dict[str, None] = {}
        """The meetings for which something has come."""
        self._coming: list[Arriving] = []
        """What has been asked for and is on its way."""
        self._mail: deque[Arriving] = deque()
        self._unclaimed: dict[int | None, deque[Mail]] = {}
        """On rank 0: mail whose senders do not say whom it is for, by channel."""
        self._asking: dict[int | None, deque[int]] = {}
        """On rank 0: the devices that ask for such mail."""
        self._asked: set[tuple[int | None, int]] = set()
        self._records: defaultdict[int, deque[Any]] = defaultdict(deque)
        """What is gathered, by rank."""
        self._claimed: list[tuple[tuple[int | None, int | None], Mail]] = []
        self._round: Any = None
        self._sums = (np.zeros(4, np.int64), np.zeros(4, np.int64))
        self._last_sums: list[int] = []
        self._has_failed = False

    def devices(self, count: int) -> Sequence[int]:
        return self._devices

    def _rank_of(self, device: int) -> int:
        return rank_of_device(device, self._size, self._count)

    def key(self, point: Any, group: Group) -> str:
        plain = point, tuple(group.values())
        if plain not in self._keys:
            self._keys[plain] = hashlib.blake2b(repr(plain).encode(), digest_size=12).hexdigest()
        return self._keys[plain]

    # Collectives

    def offer(self, waiting: Waiting, meetings: Sequence[Meeting]) -> None:
        messages: dict[int, tuple[Parcel, list[Any]]] = {}
        for meeting in meetings:
            if meeting.expected == len(meeting.group):
                continue
            ranks = sorted({self._rank_of(device) for device in meeting.group.values()})
            if meeting.shared is None:
                meeting.shared = _sharing(meeting, waiting, ranks)
            held = {device: waiting.held[device] for device, member in meeting.members.items() if member is waiting}
            for rank in ranks:
                if rank != self._rank:
                    parcel, entries = messages.setdefault(rank, (Parcel(), []))
                    entries.append([meeting.key, *self._rows(meeting, held, rank, parcel)])
        for rank, (parcel, entries) in messages.items():
            self._post.send(rank, {"kind": "offer", "entries": entries}, parcel)
        for meeting in meetings:
            if isinstance(meeting.shared, _Placed):
                for device, member in meeting.members.items():
                    if member is waiting:
                        meeting.shared.put(device, waiting.held[device])

    def _rows(self, meeting: Meeting, held: Mapping[int, Leaves], rank: int, parcel: Parcel) -> list[Any]:
        """Devices, the rows of what they hold, and which row is whose: what a rank needs of it."""
        takers = [device for device in meeting.group.values() if self._rank_of(device) == rank]
        shared = meeting.shared
        parts: list[list[tuple[int, ...]]] = [[]]
        if isinstance(shared, _Folding):
            parts = [[*shared.spans[rank]]]
        elif isinstance(shared, _Parting):
            count = len(next(iter(held.values())))
            parts = [[shared.part(device)] * count for device in takers]
        needed = needed_members(meeting.step.instruction, meeting.group, takers)
        rows: dict[Any, int] = {}
        numbers = []
        for device, leaves in held.items():
            row = None
            if needed is None or device in needed:
                row = tuple(number for some in parts for number in parcel.row(leaves, some))
            numbers.append(rows.setdefault(row, len(rows)))
        return [list(held), list(rows), numbers]

    def present(self, key: Any) -> set[int]:
        return {device for device, queue in self._offers.get(key, {}).items() if queue}

    def collect(self, meeting: Meeting) -> Mapping[int, Leaves] | None:
        if meeting.expected == len(meeting.group):
            return {}
        shared = meeting.shared
        if isinstance(shared, _Folding) and shared.totals is not None:
            return self._collect_parts(meeting, shared.totals)
        queues = self._offers.get(meeting.key, {})
        elsewhere = [device for device in meeting.group.values() if device not in self._devices]
        entries = {device: queues[device][0] for device in elsewhere if queues.get(device)}
        is_here = True
        for device, (arriving, row) in entries.items():
            if row is not None and not arriving.is_here:
                self._ask(arriving, meeting.key, shared.placing(device, row) if isinstance(shared, _Placed) else None)
                is_here = False
        if not is_here or len(entries) < len(elsewhere) or len(meeting.members) < meeting.expected:
            return None
        for device in elsewhere:
            queues[device].popleft()
        if isinstance(shared, _Parting):
            parts = {device: arriving.leaves(row or []) for device, (arriving, row) in entries.items()}
            meeting.results = _put_together(meeting, shared, parts)
            return {}
        own = _leaves_here(meeting)
        absent = tuple(zeros(leaf.dtype, leaf.shape) if isinstance(leaf, np.ndarray) else leaf for leaf in own)
        held = {device: absent if row is None else arriving.leaves(row) for device, (arriving, row) in entries.items()}
        if isinstance(shared, _Folding):
            shared.totals = self._fold(meeting, shared.spans, held)
            return self._collect_parts(meeting, shared.totals)
        if isinstance(shared, _Placed):
            for device, leaves in held.items():
                shared.put(device, leaves)
            meeting.results = dict.fromkeys(meeting.members, tuple(shared.wholes))
        return held

    def _ask(self, arriving: Arriving, key: str, place: Placing | None = None) -> None:
        if key not in arriving.keys:
            arriving.keys.append(key)
        if arriving.ask(place):
            self._coming.append(arriving)

    def _fold(
        self, meeting: Meeting, spans: Mapping[int, Sequence[tuple[int, int]]], others: Mapping[int, Leaves]
    ) -> _Placed:
        """Fold this rank's part of what the members hold, and hand it to the other ranks."""
        held = {
            number: others[device]
            if device in others
            else tuple(map(part_of, meeting.members[device].held[device], spans[self._rank]))
            for number, device in meeting.group.items()
        }
        flow: Any = meeting.step.flow
        folded = flat(flow.function(held)[next(iter(held))])
        totals = [empty(leaf.shape, leaf.dtype) for leaf in _leaves_here(meeting)]
        parts = {
            rank: [total.reshape(-1)[slice(*span)] for total, span in zip(totals, of_rank, strict=True)]
            for rank, of_rank in spans.items()
        }
        placed = _Placed(totals, parts, set())
        placed.put(self._rank, tuple(folded))
        for rank in spans:
            if rank != self._rank:
                parcel = Parcel()
                self._post.send(rank, {"kind": "part", "key": meeting.key, "row": parcel.row(folded)}, parcel)
        return placed

    def _collect_parts(self, meeting: Meeting, totals: _Placed) -> Mapping[int, Leaves] | None:
        """Nothing, once the other ranks' parts are in their places; asks for those that have come."""
        arrived = self._parts.get(meeting.key, {})
        for rank, arriving in arrived.items():
            if not arriving.is_here:
                self._ask(arriving, meeting.key, totals.placing(rank, arriving.content["row"]))
        if len(arrived) < len(totals.parts) - 1 or not all(part.is_here for part in arrived.values()):
            return None
        for rank, arriving in self._parts.pop(meeting.key, {}).items():
            totals.put(rank, arriving.leaves(arriving.content["row"]))
        meeting.results = dict.fromkeys(meeting.members, tuple(totals.wholes))
        return {}

    # Channels

    def send(self, channel: int | None, receiver: int | None, mail: Mail) -> bool:
        if receiver in self._devices:
            return False
        rank = 0 if receiver is None else self._rank_of(receiver)
        if rank == self._rank:
            self._unclaimed.setdefault(channel, deque()).append(mail)
            self._match(channel)
            return True
        parcel = Parcel()
        names = [mail.sender, mail.instruction, mail.computation]
        content = {"kind": "mail", "mailbox": [channel, receiver], "names": names, "row": parcel.row(mail.data)}
        self._post.send(rank, content, parcel)
        return True

    def _deliver(self, channel: int | None, receiver: int | None, mail: Mail) -> None:
        if not self.send(channel, receiver, mail):
            self._claimed.append(((channel, receiver), mail))

    def ask(self, channel: int | None, receiver: int) -> bool:
        if (channel, receiver) not in self._asked:
            self._asked.add((channel, receiver))
            self._request(channel, receiver) if self._rank == 0 else self._post.send(
                0, {"kind": "ask", "channel": channel, "receiver": receiver}
            )
        return True

    def _request(self, channel: int | None, receiver: int) -> None:
        self._asking.setdefault(channel, deque()).append(receiver)
        self._match(channel)

    def _match(self, channel: int | None) -> None:
        """Hand mail that is for anyone to those who ask for it."""
        mails, receivers = self._unclaimed.get(channel), self._asking.get(channel)
        while mails and receivers:
            self._deliver(channel, receivers.popleft(), mails.popleft())

    # Waiting

    def wait(self, unfinished: int, unread: int) -> State:
        looks, pause = 0, SHORTEST_SLEEP
        while True:
            if self._look():
                return State.ARRIVED
            looks += 1
            if self._coming:
                if looks % _LOOKS_IN_A_ROW == 0:
                    time.sleep(0)
                continue
            state = self._agreed(unfinished, unread)
            if state is not None:
                return state
            time.sleep(0 if looks < _BUSY_LOOKS else pause)
            if looks >= _BUSY_LOOKS:
                pause = min(2 * pause, LONGEST_SLEEP)

    def _look(self) -> bool:
        """Take in what has come; whether tasks may be able to go on for it."""
        self._post.flush()
        while (arriving := self._post.take()) is not None:
            getattr(self, f"_take_{arriving.content['kind']}")(arriving)
        for arriving in self._coming:
            if arriving.test():
                self._touched.update(dict.fromkeys(arriving.keys))
        self._coming = [arriving for arriving in self._coming if not arriving.is_here]
        return bool(self._touched or self._claimed or (self._mail and self._mail[0].is_here))

    def _take_offer(self, arriving: Arriving) -> None:
        for key, devices, rows, numbers in arriving.content["entries"]:
            queues = self._offers.setdefault(key, {})
            for device, number in zip(devices, numbers, strict=True):
                queues.setdefault(device, deque()).append((arriving, rows[number]))
            self._touched[key] = None

    def _take_part(self, arriving: Arriving) -> None:
        key = arriving.content["key"]
        self._parts.setdefault(key, {})[arriving.source] = arriving
        self._touched[key] = None

    def _take_mail(self, arriving: Arriving) -> None:
        if arriving.ask():
            self._coming.append(arriving)
        self._mail.append(arriving)

    def _take_ask(self, arriving: Arriving) -> None:
        self._request(arriving.content["channel"], arriving.content["receiver"])

    def _take_record(self, arriving: Arriving) -> None:
        self._records[arriving.source].append(arriving.content["record"])

    def _take_error(self, arriving: Arriving) -> None:
        self._has_failed = True
        raise _error_of(arriving.content["error"], arriving.source)

    def receive(self) -> tuple[Sequence[Any], Sequence[tuple[tuple[int | None, int | None], Mail]]]:
        keys, self._touched = list(self._touched), {}
        while self._mail and self._mail[0].is_here:
            arriving = self._mail.popleft()
            channel, receiver = arriving.content["mailbox"]
            sender, instruction, computation = arriving.content["names"]
            mail = Mail(sender, instruction, computation, arriving.leaves(arriving.content["row"]))
            self._deliver(channel, receiver, mail)
        mails, self._claimed = self._claimed, []
        for (channel, receiver), _ in mails:
            self._asked.discard((channel, receiver or 0))
        return keys, mails

    def _agreed(self, unfinished: int, unread: int) -> State | None:
        """What all ranks have found to hold, this one being idle; None where they have not yet."""
        own, sums = self._sums
        if self._round is None:
            own[:] = self._post.sent, self._post.received, unfinished, unread + sum(map(bool, self._unclaimed.values()))
            self._round = self._comm.Iallreduce(own, sums)
            return None
        if not self._round.Test():
            return None
        self._round = None
        sent, received, total, unread = totals = sums.tolist()
        if sent == received and (not total or totals == self._last_sums):
            self._last_sums, self.may_have_unread = [], unread > 0
            return State.QUIET if total else State.OVER
        self._last_sums = totals
        return None

    def gathered(self, record: Any) -> list[Any]:
        if not self._rank:
            records = [record, *map(self._record_of, range(1, self._size))]
            for rank in range(1, self._size):
                self._post.send(rank, {"kind": "record", "record": records})
            return records
        self._post.send(0, {"kind": "record", "record": record})
        return list(self._record_of(0))

    def _record_of(self, rank: int) -> Any:
        """The next record that a rank has sent."""
        return wait_until(lambda: (self._look(), self._records[rank])[1]).popleft()

    def unclaimed(self) -> list[tuple[int | None, Mail]]:
        """Mail for anyone that nobody has asked for."""
        return [(channel, mails[0]) for channel, mails in self._unclaimed.items() if mails]

    def close(self, error: BaseException | None = None, record: Mapping[str, Any] | None = None) -> None:
        """End a run, or tell the other ranks, with its record, of an error that has ended it on this one."""
        if error is not None and not (self._has_failed or isinstance(error, DeadlockError)):
            for rank in range(self._size):
                if rank != self._rank:
                    self._post.send(rank, {"kind": "error", "error": record})
        end = time.monotonic() + _FAREWELL_SECONDS
        wait_until(lambda: self._post.flush() or (error is not None and time.monotonic() >= end))
        if error is None:
            self._comm.Free()
        else:
            self._post.may_help = False
            _failed.append(self)


@contextmanager
def over_ranks(
    comm: Comm,
    count: int,
    facts: Mapping[str, str],
    prepare: Callable[[Transport], _Prepared],
    fault_of: Callable[[BaseException], BaseException | None],
) -> Iterator[tuple[Transport, _Prepared]]:
    """A transport for a run on `count` devices, and what each rank prepares for it. An error of one rank is that of
    all, who are told also whether it is for a fault of hloexec's own; InputError where the facts differ, which are by
    what they are about."""

    def record_of(error: BaseException) -> dict[str, Any]:
        return {"type": type(error).__name__, "text": str(error), "is_fault": fault_of(error) is not None}

    transport = RankTransport(comm, count)
    own: BaseException | None = None
    try:
        transport.sharing = ranks_of_machine(transport.gathered)
        try:
            prepared = prepare(transport)
        except BaseException as error:
            own = error
        records = transport.gathered([None if own is None else record_of(own), dict(facts)])
        error_of_all = _error_of_all(records, comm.rank, own)
        if error_of_all is None:
            yield transport, prepared
            # What has failed on one rank in the end is told to the others here.
            transport.gathered(None)
    except BaseException as error:
        transport.close(error, record_of(error))
        raise
    transport.close()
    if error_of_all is not None:
        raise error_of_all


def _error_of_all(records: Sequence[Any], rank: int, own: BaseException | None) -> BaseException | None:
    """What ends a run before it begins, which all ranks see in their records; this one's `own` error as it is."""
    for other, (record, _) in enumerate(records):
        if record is not None:
            return own if other == rank else _error_of(record, other)
    try:
        require_same([facts for _, facts in records])
    except InputError as error:
        return error
    return None


def _put_together(meeting: Meeting, parting: _Parting, others: Mapping[int, Leaves]) -> dict[int, Leaves]:
    """What the members here get, of the parts that are for them."""
    flow: Any = meeting.step.flow
    own = [device for device in parting.places if device in meeting.members]
    count = len(_leaves_here(meeting))
    results = {}
    for number, device in enumerate(own):
        parts = []
        for member in parting.places:
            if member in others:
                parts.append(others[member][number * count : (number + 1) * count])
            else:
                leaves = meeting.members[member].held[member]
                parts.append(tuple(part_of(leaf, parting.part(device)) for leaf in leaves))
        results[device] = tuple(received(flow.function, parts))
    return results


def _leaves_here(meeting: Meeting) -> Leaves:
    """What some member of this rank holds."""
    device, waiting = next(iter(meeting.members.items()))
    return waiting.held[device]


def _sharing(meeting: Meeting, waiting: Waiting, ranks: list[int]) -> _Folding | _Placed | _Parting | None:
    """How ranks share the work on large arrays, which all of them find alike; None where each does all of it."""
    flow: Any = meeting.step.flow
    leaves = next(iter(waiting.held.values()))
    if sum(getattr(leaf, "nbytes", 0) for leaf in leaves) < _LARGE_BYTES:
        return None
    if folds_each_element(flow.function, leaves):
        spans = zip(*(spans_of(leaf.size, len(ranks)) for leaf in leaves), strict=True)
        return _Folding(dict(zip(ranks, spans, strict=True)))
    places = {device: place for place, device in enumerate(meeting.group.values())}
    dimension = parts_along(flow.function, leaves, len(places))
    if dimension is not None:
        return _Parting(dimension, places)
    dimension = joins_along(flow.function, leaves)
    if dimension is None:
        return None
    sizes = [list(leaf.shape) for leaf in leaves]
    for leaf_sizes in sizes:
        leaf_sizes[dimension] *= len(places)
    wholes = [empty(whole, leaf.dtype) for whole, leaf in zip(sizes, leaves, strict=True)]
    parts = zip(*(np.split(whole, len(places), dimension) for whole in wholes), strict=True)
    return _Placed(wholes, dict(zip(places, parts, strict=True)), set())


def _error_of(record: Mapping[str, Any], rank: int) -> BaseException:
    """The error of another rank."""
    name, text = record["type"], record["text"]
    kind = getattr(hloexec.errors, name, None)
    error: BaseException = EvaluationError(f"rank {rank} failed: {name}: {text}".rstrip(": "))
    if name == "KeyboardInterrupt":
        error = KeyboardInterrupt()
    elif name == "SystemExit" and text.isdecimal():
        error = SystemExit(int(text))
    elif isinstance(kind, type) and issubclass(kind, HloError) and kind is not hloexec.errors.ParseError:
        error = kind(text)
    error.__cause__ = _ElsewhereError() if record["is_fault"] else None
    return error
