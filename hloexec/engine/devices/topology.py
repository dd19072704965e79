"""The devices of a run, their groups in collectives, and their transfers.

Transfers between a device and its host or another device: their instructions and channels. An infeed receives the
host's next value, an outfeed sends one. A send or recv with `is_host_transfer` does the same on a channel; any other
exchanges data with another device. The data of a send leave at the send; those of a recv arrive at the recv-done. Until
then, a recv's handle holds nothing, so it may be part of tuples and loop states. Source: XLA, Infeed, Outfeed, Send,
Recv.

A device is one partition of one replica; its number is replica · partitions + partition. A collective's groups list
replicas, partitions or devices, depending on its attributes (XLA: AllReduce, AllToAll, CollectivePermute).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.core.ir import Computation, Instruction, Module, ReplicaGroups
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.wording import argument, counted, natural_number
from hloexec.errors import InputError, ParseError
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.registry import traits_of


@frozen
class FromHost:
    """The value is (data, token), the data being what the host gives next."""

    channel: int | None
    """None for the infeed."""


@frozen
class ToHost:
    """The first operand is sent to the host."""

    channel: int | None
    """None for the outfeed."""


@frozen
class FromDevice:
    """The value is (data, token), the data being what another device sent; zeros where none should."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None
    """The sender and receiver; if the text does not say, the sender and the receiver on the channel."""


@frozen
class ToDevice:
    """The first operand is sent to another device."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None


HostTransfer: TypeAlias = FromHost | ToHost
Transfer: TypeAlias = HostTransfer | FromDevice | ToDevice

_INCOMING = ("infeed", "recv-done")
_OUTGOING = ("outfeed", "send")
_FEEDS = ("infeed", "outfeed")

TRANSFERS = frozenset({*_INCOMING, *_OUTGOING, "recv", "send-done"})
"""The opcodes of transfers."""


def transfer_of(computation: Computation, instruction: Instruction) -> Transfer | None:
    """What an instruction transfers; None where no data move."""
    opcode = instruction.opcode
    if opcode not in _INCOMING and opcode not in _OUTGOING:
        return None
    is_incoming = opcode in _INCOMING
    channel = channel_of(computation, instruction)
    if opcode in _FEEDS or _said(computation, instruction, "is_host_transfer"):
        return FromHost(channel) if is_incoming else ToHost(channel)
    pairs = source_target_pairs(computation, instruction)
    return FromDevice(channel, pairs) if is_incoming else ToDevice(channel, pairs)


def channel_of(computation: Computation, instruction: Instruction) -> int | None:
    """The channel of a send, recv or one of their dones; None for feeds."""
    channel = _said(computation, instruction, "channel_id")
    return channel if isinstance(channel, int) else None


def reason_against(computation: Computation, instruction: Instruction) -> str | None:
    """Why a transfer cannot be made, as a clause; None where it can."""
    if instruction.opcode in _FEEDS or not _said(computation, instruction, "is_host_transfer"):
        return None
    if channel_of(computation, instruction) is None:
        return "it has no channel_id, so the host cannot tell which transfer it is"
    return None


def _said(computation: Computation, instruction: Instruction, name: str) -> bool | int | None:
    """An attribute of a transfer; a done that lacks it has that of its start, where that is its operand."""
    own: bool | int | None = getattr(instruction.attributes, name, None)
    start, _, suffix = instruction.opcode.rpartition("-")
    if suffix != "done" or (own is not None and own is not False) or not instruction.operands:
        return own
    before = computation.by_name.get(instruction.operands[0])
    if before is None or before.opcode != start:
        return own
    theirs: bool | int | None = getattr(before.attributes, name, None)
    return theirs


Group: TypeAlias = "dict[int, int]"
"""The devices that act together, in their order, by the numbers that the instruction's attributes use for them."""


@frozen
class Topology:
    """How many devices there are."""

    replicas: int = 1
    partitions: int = 1
    count: int = attrs.field(init=False, default=attrs.Factory(lambda self: self.replicas * self.partitions, True))

    def device(self, replica: int, partition: int) -> int:
        return replica * self.partitions + partition

    def replica_of(self, device: int) -> int:
        return device // self.partitions

    def partition_of(self, device: int) -> int:
        return device % self.partitions

    def __str__(self) -> str:
        return f"{counted(self.replicas, 'replica')} × {counted(self.partitions, 'partition')}"


ONE_DEVICE = Topology()
MOST_DEVICES = 1 << 16
"""Maximum number of devices of a run."""


def groups_of(instruction: Instruction, topology: Topology) -> list[Group]:
    """The groups in which devices take part in a collective; every device is in exactly one.

    Without a channel groups list replicas, and devices of one partition act together. With one they list partitions,
    for opcodes that know no `use_global_device_ids`; replicas with all their partitions, for those that do; and devices
    where it is true. No groups at all mean everyone. Devices that a permute or a broadcast leaves out act alone; for
    others InputError says that they are missing, and for all that a number is out of range.
    """
    spaces = _spaces(instruction, topology)
    listed = _listed(instruction, topology, spaces[0])
    groups: list[Group] = []
    for space in spaces:
        for group in listed:
            devices = [device for number in group for device in space[number]]
            is_one_to_one = len(devices) == len(group)
            groups.append(dict(zip(group if is_one_to_one else range(len(devices)), devices, strict=True)))
    return groups


def all_devices(instruction: Instruction, count: int, topology: Topology) -> list[Group]:
    """One group of all devices, which reach one another by their numbers; InputError for one device where the module
    is for `count`."""
    if topology.count == 1 < count:
        raise InputError(f"%{instruction.name} reaches other devices, as the module is for {count}")
    return [{device: device for device in range(topology.count)}]


def _spaces(instruction: Instruction, topology: Topology) -> list[dict[int, list[int]]]:
    """The devices by the numbers that name them, for each set of devices that acts apart from the others."""
    attributes = instruction.attributes
    has_channel = getattr(attributes, "channel_id", None) is not None
    replicas, partitions = range(topology.replicas), range(topology.partitions)
    kind = _kind_named(instruction)
    if kind == "device":
        if not has_channel:
            raise InputError(
                f"%{instruction.name} has use_global_device_ids=true, which means nothing without channel_id"
            )
        if attributes.replica_groups == ReplicaGroups():
            raise InputError(f"%{instruction.name} has use_global_device_ids=true, which needs replica_groups")
        return [{device: [device] for device in range(topology.count)}]
    if kind == "partition":
        return [{p: [topology.device(r, p)] for p in partitions} for r in replicas]
    if has_channel:
        return [{r: [topology.device(r, p) for p in partitions] for r in replicas}]
    return [{r: [topology.device(r, p)] for r in replicas} for p in partitions]


def _listed(instruction: Instruction, topology: Topology, numbers: Collection[int]) -> list[list[int]]:
    """The groups of `numbers`, each of which is in one; InputError where the attributes do not fit them."""
    attributes, kind = instruction.attributes, _kind_named(instruction)
    there_are = (
        f"but there are {len(numbers)} ({topology}); give {argument('replicas', '…')} and {argument('partitions', '…')}"
    )
    pairs = getattr(attributes, "source_target_pairs", None)
    groups = attributes.replica_groups if pairs is None else ReplicaGroups()
    if not groups.groups and groups.device_count > len(numbers):  # far more, perhaps, than can be listed
        raise InputError(f"%{instruction.name} names {groups.device_count} {kind}s, {there_are}")
    listed = _connected(pairs) if pairs is not None else list(map(list, groups.expand()))
    named = dict.fromkeys(number for group in listed for number in group)
    for number in named:
        if number not in numbers:
            raise InputError(f"%{instruction.name} names {kind} {number}, {there_are}")
    left_out = [number for number in numbers if number not in named] if listed or pairs is not None else []
    if left_out and not getattr(attributes, "may_leave_out", False):
        raise InputError(
            f"the groups of %{instruction.name} leave out {kind} {left_out[0]} of {len(numbers)} ({topology})"
        )
    return [*listed, *([number] for number in left_out)] or [list(numbers)]


def _kind_named(instruction: Instruction) -> str:
    """What the numbers in a collective's groups name: `replica`, `partition` or `device`."""
    attributes = instruction.attributes
    if getattr(attributes, "use_global_device_ids", False):
        return "device"
    has_channel = getattr(attributes, "channel_id", None) is not None
    return (
        "partition" if has_channel and "use_global_device_ids" not in attribute_fields(type(attributes)) else "replica"
    )


def _connected(pairs: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """The numbers that pairs connect, directly or through others."""
    neighbours: dict[int, list[int]] = {}
    for source, target in pairs:
        neighbours.setdefault(source, []).append(target)
        neighbours.setdefault(target, []).append(source)
    groups: list[list[int]] = []
    seen: set[int] = set()
    for first in neighbours:
        if first not in seen:
            seen.add(first)
            group = [first]
            for number in group:
                others = [other for other in dict.fromkeys(neighbours[number]) if other not in seen]
                seen.update(others)
                group += others
            groups.append(sorted(group))
    return groups


def source_target_pairs(computation: Computation, instruction: Instruction) -> tuple[tuple[int, int], ...] | None:
    """The pairs (source, target) between which a send or recv transfers; None where the text does not say.

    They are in the frontend attribute `_xla_send_recv_source_target_pairs` of the instruction or, for a done, of its
    start.
    """
    before = computation.by_name.get(instruction.operands[0]) if instruction.operands else None
    for place in (instruction, before):
        for name, text in (place.frontend_attributes or ()) if place is not None else ():
            if name == "_xla_send_recv_source_target_pairs":
                return _pairs(text, instruction)
    return None


Ends: TypeAlias = "dict[int, list[int]]"
"""The devices at the other end of transfers, by the device at one end."""


@lru_cache(maxsize=1024)
def ends_of(pairs: tuple[tuple[int, int], ...], topology: Topology) -> tuple[Ends, Ends]:
    """The targets of each source, and the sources of each target, of such pairs.

    Pairs name partitions where there are several, and replicas otherwise.
    """
    targets: Ends = {}
    sources: Ends = {}
    for replica in range(topology.replicas if topology.partitions > 1 else 1):
        for pair in pairs:
            source, target = (topology.device(replica, end) for end in pair) if topology.partitions > 1 else pair
            targets.setdefault(source, []).append(target)
            sources.setdefault(target, []).append(source)
    return targets, sources


def _pairs(text: str, instruction: Instruction) -> tuple[tuple[int, int], ...]:
    numbers = [natural_number(word) for word in text.translate(str.maketrans("{},", "   ")).split()]
    values = [number for number in numbers if number is not None]
    if len(numbers) % 2 or len(values) < len(numbers):
        raise InputError(f"%{instruction.name} should transfer between pairs like {{{{0,1}}}}, but says {text!r}")
    return tuple(zip(values[::2], values[1::2], strict=True))


@remembered
def device_counts(module: Module) -> tuple[int, int]:
    """Replicas and partitions: what the header says or, where it says nothing, what the module is sharded among.

    Meshes and shardings name partitions; collectives name replicas or partitions, as `groups_of` says, and devices are
    taken for partitions of one replica. Where a collective names none, all take part, and its shapes may say how many.
    """
    counts = [module.replica_count, module.num_partitions]
    if counts != [1, 1]:
        return counts[0], counts[1]
    if module.frontend_attributes:
        from hloexec.language.text.attributes.annotations import meshes_of

        # A mesh that cannot be read is an error where it is needed.
        with suppress(ParseError):
            counts[1] = max((mesh.device_count for mesh in meshes_of(module).values()), default=1)
    for computation in module:
        for instruction in computation:
            if instruction.sharding is not None:
                from hloexec.engine.devices.manual_regions import partitions_named

                counts[1] = max(counts[1], partitions_named(instruction.sharding) or 1)
            named = _devices_named(instruction) or _members(computation, instruction)
            if named:
                axis = 0 if _kind_named(instruction) == "replica" else 1
                counts[axis] = max(counts[axis], named)
    return counts[0], counts[1]


def topology_of(module: Module, replicas: int | None = None, partitions: int | None = None) -> Topology:
    """The devices of a module, as many as `device_counts` finds or the caller says; InputError for bad numbers."""
    if replicas is None or partitions is None:
        module_counts = device_counts(module)
        replicas = module_counts[0] if replicas is None else replicas
        partitions = module_counts[1] if partitions is None else partitions
    counts = (replicas, partitions)
    for name, count in zip(("replicas", "partitions"), counts, strict=True):
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or not 1 <= count <= MOST_DEVICES:
            raise InputError(f"{name} must be a number from 1 to {MOST_DEVICES}, but is {count!r}")
    return Topology(*map(int, counts))


def _devices_named(instruction: Instruction) -> int:
    """One more than the largest device number that an instruction names."""
    groups = getattr(instruction.attributes, "replica_groups", None)
    pairs = getattr(instruction.attributes, "source_target_pairs", None) or ()
    largest = [max(pair) + 1 for pair in pairs]
    if isinstance(groups, ReplicaGroups):
        largest += [max(group) + 1 for group in groups.groups if group]
        if groups.iota is not None:
            largest.append(math.prod(groups.iota.dimensions))
        if groups.mesh is not None:
            largest.append(groups.mesh.mesh.device_count)
    return max(largest, default=0)


def _members(computation: Computation, instruction: Instruction) -> int:
    """How many devices take part in a collective without groups, by its shapes; 0 where they do not say."""
    if getattr(instruction.attributes, "replica_groups", None) != ReplicaGroups():
        return 0
    rule = traits_of(instruction).group_members
    if rule is None or not all(name in computation.by_name for name in instruction.operands):
        return 0
    operands = [computation.by_name[name].shape for name in instruction.operands]
    return rule(operands, instruction.shape, instruction.attributes) or 0
