"""Collectives: operations in which several devices take part.

Which devices act together is said by `replica_groups`, read according to whether there is a `channel_id` and whether
`use_global_device_ids` is set; what moves where is the machine's business. Here are attributes and shape rules.
"""

from __future__ import annotations

from typing import Any

import attrs

from hloexec.ir import ReplicaGroups
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, Role, opcode

__all__ = [
    "AllGatherAttributes",
    "AllReduceAttributes",
    "AllToAllAttributes",
    "CollectiveBroadcastAttributes",
    "CollectivePermuteAttributes",
    "RaggedAllToAllAttributes",
    "ReduceScatterAttributes",
]

_MODES = ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id")


def _channel_id() -> Any:
    return attribute(Grammar.INT, default=None)


def _replica_groups() -> Any:
    return attribute(Grammar.REPLICA_GROUPS, default=ReplicaGroups(), always_printed=True)


def _flag() -> Any:
    return attribute(Grammar.BOOL, default=False)


@attrs.frozen
class AllGatherAttributes:
    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()
    constrain_layout: bool = _flag()
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    use_global_device_ids: bool = _flag()


@attrs.frozen
class AllReduceAttributes:
    """`mode` stood in dumps for some weeks and has no effect."""

    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()
    constrain_layout: bool = _flag()
    use_global_device_ids: bool = _flag()
    mode: str | None = attribute(Grammar.ENUM, default=None, choices=_MODES)
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class ReduceScatterAttributes:
    """`mode` stood in dumps for some weeks and has no effect."""

    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()
    constrain_layout: bool = _flag()
    use_global_device_ids: bool = _flag()
    mode: str | None = attribute(Grammar.ENUM, default=None, choices=_MODES)
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class AllToAllAttributes:
    """With `dimensions` one array is split and concatenated along it; without, each operand goes to one device."""

    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()
    constrain_layout: bool = _flag()
    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@attrs.frozen
class RaggedAllToAllAttributes:
    """XLA reads `dimensions` and forgets it."""

    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()
    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@attrs.frozen
class CollectiveBroadcastAttributes:
    channel_id: int | None = _channel_id()
    replica_groups: ReplicaGroups = _replica_groups()


@attrs.frozen
class CollectivePermuteAttributes:
    channel_id: int | None = _channel_id()
    source_target_pairs: tuple[tuple[int, int], ...] = attribute(Grammar.INT_PAIRS)
    slice_sizes: tuple[tuple[int, ...], ...] = attribute(Grammar.INT_LIST_LIST, default=())


@opcode("all-gather", operands=(1, ANY), attributes=AllGatherAttributes, role=Role.MACHINE)
class AllGather:
    """Concatenates the operands of a group's devices along `dimensions` (XLA: AllGather)."""


@opcode("all-gather-start", operands=(1, ANY), attributes=AllGatherAttributes, role=Role.MACHINE)
class AllGatherStart:
    """Starts an all-gather; the value is (operands, results)."""


@opcode("all-gather-done", operands=1, role=Role.MACHINE)
class AllGatherDone:
    """The results of a started all-gather."""


@opcode("all-reduce", operands=(1, ANY), attributes=AllReduceAttributes, role=Role.MACHINE)
class AllReduce:
    """Folds the operands of a group's devices with `to_apply` (XLA: AllReduce)."""


@opcode("all-reduce-start", operands=(1, ANY), attributes=AllReduceAttributes, role=Role.MACHINE)
class AllReduceStart:
    """Starts an all-reduce; the value has the shape of the results."""


@opcode("all-reduce-done", operands=1, role=Role.MACHINE)
class AllReduceDone:
    """The results of a started all-reduce."""


@opcode("reduce-scatter", operands=(1, ANY), attributes=ReduceScatterAttributes, role=Role.MACHINE)
class ReduceScatter:
    """An all-reduce, of which each device keeps its part along `dimensions` (XLA: ReduceScatter)."""


@opcode("all-to-all", operands=(1, ANY), attributes=AllToAllAttributes, role=Role.MACHINE)
class AllToAll:
    """Device i's part j goes to device j's place i, within each group (XLA: AllToAll)."""


@opcode("ragged-all-to-all", operands=6, attributes=RaggedAllToAllAttributes, role=Role.MACHINE)
class RaggedAllToAll:
    """Rows input_offsets[j] … + send_sizes[j] of the input go to rows output_offsets[j] … of device j's output
    (XLA: RaggedAllToAll).
    """


@opcode("collective-broadcast", operands=(1, ANY), attributes=CollectiveBroadcastAttributes, role=Role.MACHINE)
class CollectiveBroadcast:
    """The value of each group's first device; zeros on devices in no group (XLA: CollectiveBroadcast)."""


@opcode("collective-permute", operands=(1, ANY), attributes=CollectivePermuteAttributes, role=Role.MACHINE)
class CollectivePermute:
    """Sends each source's value to its target; zeros on devices that are no target (XLA: CollectivePermute)."""


@opcode("collective-permute-start", operands=(1, ANY), attributes=CollectivePermuteAttributes, role=Role.MACHINE)
class CollectivePermuteStart:
    """Starts a collective-permute; the value is (operands, results, context...)."""


@opcode("collective-permute-done", operands=1, role=Role.MACHINE)
class CollectivePermuteDone:
    """The results of a started collective-permute."""


@opcode("partition-id", operands=0, role=Role.MACHINE)
class PartitionId:
    """The number of this device's partition, u32[]."""


@opcode("replica-id", operands=0, role=Role.MACHINE)
class ReplicaId:
    """The number of this device's replica, u32[]."""
