"""Collectives that send whole values from some devices to others: permutes, broadcasts; and the numbers of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from hloexec.core.ir import Shape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    Members,
    Results,
    RootedAttributes,
    collective,
    data_operands,
    one_or_all,
    require_distinct,
    roots_of,
    without_roots,
    zeros,
)
from hloexec.ops.common import array_shape, require
from hloexec.ops.intervals import always
from hloexec.ops.registry import Role, opcode
from hloexec.ops.relations import Relating, leafwise
from hloexec.ops.signatures import U32_SHAPE, element_of_operand, one_or_tuple, require_same_shape, require_tuple


@frozen
class CollectiveBroadcastAttributes(RootedAttributes):
    may_leave_out: ClassVar[bool] = True
    """Devices in no group take part, too: they get zeros."""


@frozen
class CollectivePermuteAttributes:
    may_leave_out: ClassVar[bool] = True
    """Devices in no pair take part, too: they get zeros."""
    channel_id: int | None = attribute(Grammar.INT, default=None)
    source_target_pairs: tuple[tuple[int, int], ...] = attribute(Grammar.INT_PAIRS)
    slice_sizes: tuple[tuple[int, ...], ...] = attribute(Grammar.INT_LIST_LIST, default=())


@collective(
    "collective-broadcast", attributes=CollectiveBroadcastAttributes, moves=(0,), fills=True, crosses_devices=True
)
class CollectiveBroadcast:
    """The value of each group's root; zeros on devices in no group. The root is the first device of the group, or, with
    `has_dynamic_root`, the one that the last operand names (XLA: CollectiveBroadcast)."""

    relate = staticmethod(leafwise)

    @staticmethod
    def infer(*operands: Shape, attributes: CollectiveBroadcastAttributes) -> Shape:
        require_distinct(attributes.replica_groups, "collective-broadcast")
        return one_or_tuple(data_operands(operands, attributes, "collective-broadcast"))

    @staticmethod
    def exchange(members: Members, *, attributes: CollectiveBroadcastAttributes) -> Results:
        explicit = attributes.replica_groups.expand()
        values = without_roots(members, attributes)
        first, *_ = members
        if explicit and not any(first in group for group in explicit):
            return {
                member: one_or_all([zeros(array.dtype, array.shape) for array in arrays])
                for member, arrays in values.items()
            }
        roots = roots_of(members, attributes, "collective-broadcast")
        return dict.fromkeys(members, one_or_all([values[root][number] for number, root in enumerate(roots)]))


@collective("collective-permute", attributes=CollectivePermuteAttributes, moves=(0,), fills=True, crosses_devices=True)
class CollectivePermute:
    """Sends each source's value to its target; zeros on devices that are not targets (XLA: CollectivePermute)."""

    @staticmethod
    def relate(use: Relating) -> None:
        if use.attributes.slice_sizes:
            use.keep_all("it is sent in slices of fixed sizes")
        else:
            leafwise(use)

    @staticmethod
    def infer(*operands: Shape, attributes: CollectivePermuteAttributes) -> Shape:
        return _permuted(operands, attributes, "collective-permute")

    @staticmethod
    def exchange(
        members: Members, *, attributes: CollectivePermuteAttributes, operand_shapes: tuple[Shape, ...]
    ) -> Results:
        sources = {target: source for source, target in attributes.source_target_pairs}
        results: Results = {}
        for member, operands in members.items():
            sent = members.get(sources.get(member, -1))
            if attributes.slice_sizes:
                results[member] = _with_slices(operands, sent, attributes.slice_sizes, operand_shapes)
            else:
                results[member] = one_or_all(sent or [zeros(array.dtype, array.shape) for array in operands])
        return results


@collective(
    "collective-permute-start", attributes=CollectivePermuteAttributes, begins=True, opens=True, owns_tuple=True
)
class CollectivePermuteStart:
    """Starts a collective-permute; the value is (operands, results, context...)."""

    @staticmethod
    def relate(use: Relating) -> None:
        if use.attributes.slice_sizes:
            use.keep_all("it is sent in slices of fixed sizes")
            return
        operands = [axes for operand in use.operands for axes in operand.leaves.values()]
        for part in use.result.parts[:2]:
            for ours, theirs in zip(operands, part.leaves.values(), strict=False):
                use.same(ours, theirs)

    @staticmethod
    def infer(*operands: Shape, attributes: CollectivePermuteAttributes, shape: Shape) -> Shape:
        result = _permuted(operands, attributes, "collective-permute-start")
        parts = require_tuple(shape, 2, "collective-permute-start")
        if attributes.slice_sizes:
            return shape
        require_same_shape(parts[0], one_or_tuple(operands), "element 0 of collective-permute-start, its operands,")
        require_same_shape(parts[1], result, "element 1 of collective-permute-start, its results,")
        return shape

    exchange = CollectivePermute.exchange


@opcode("collective-permute-done", operands=1, role=Role.PART, aliases=(((), (1,)),), owns_tuple=True)
class CollectivePermuteDone:
    """The results of a started collective-permute."""

    infer = element_of_operand("collective-permute-done", 1)


_MOST_DEVICES = 1 << 20


@opcode("partition-id", operands=0, role=Role.PARTITION_ID, bounds=always(0, _MOST_DEVICES))
class PartitionId:
    """The number of this device's partition, u32[]."""

    @staticmethod
    def infer() -> Shape:
        return U32_SHAPE


@opcode("replica-id", operands=0, role=Role.REPLICA_ID, bounds=always(0, _MOST_DEVICES))
class ReplicaId:
    """The number of this device's replica, u32[]."""

    infer = PartitionId.infer


def _permuted(operands: tuple[Shape, ...], attributes: CollectivePermuteAttributes, opcode_name: str) -> Shape:
    """The result: the operands, or with slice_sizes the second operand, updated in place."""
    if attributes.slice_sizes:
        require(
            len(operands) == 4,
            f"{opcode_name} with slice_sizes takes input, output and their start indices, not {len(operands)} operands",
        )
        _require_slices(operands, attributes.slice_sizes, opcode_name)
        return operands[1]
    pairs = attributes.source_target_pairs
    require(
        all(len(pair) == 2 for pair in pairs),
        f"the source_target_pairs of {opcode_name} must be pairs, but are {pairs}",
    )
    for end, devices in ("source", [source for source, _ in pairs]), ("target", [target for _, target in pairs]):
        require(
            len(set(devices)) == len(devices) and min(devices, default=0) >= 0,
            f"no device may be a {end} twice in the source_target_pairs of {opcode_name}",
        )
    return one_or_tuple(operands)


def _require_slices(operands: Sequence[Shape], sizes: Sequence[Sequence[int]], opcode_name: str) -> None:
    """Slices must lie within the arrays; one per array is checked against it."""
    ends = list(map(flat_shapes, operands[:2]))
    require(len(ends[0]) == len(ends[1]), f"{opcode_name} must have as many inputs as outputs")
    if len(sizes) != len(ends[0]):
        return
    for size, *arrays in zip(sizes, *ends, strict=True):
        for array in arrays:
            extents = array_shape(array, f"an operand of {opcode_name}").dimensions
            require(
                len(size) == len(extents) and all(map(int.__le__, size, extents)),
                f"the slice {list(size)} of {opcode_name} must lie within {array}",
            )
    for indices in operands[2:]:
        count = len(flat_shapes(indices))
        rank = sum(map(len, sizes))
        require(count == rank, f"{opcode_name} must have {rank} start indices at each end, but has {count}")


def _with_slices(
    own: Sequence[Array], sent: Sequence[Array] | None, sizes: Sequence[Sequence[int]], shapes: Sequence[Shape]
) -> Any:
    """The outputs of one member, with slices of another's inputs written into them.

    Operands are inputs, outputs, start indices in the inputs (the sender's) and in the outputs (the receiver's): per
    array one index for each of its dimensions.
    """
    count = len(flat_shapes(shapes[0]))
    if len(sizes) != count:
        raise UnsupportedError(
            f"collective-permute takes {len(sizes)} slices of {count} arrays, and it is not public which start indices "
            "belong to which; hloexec takes one slice of each array"
        )
    outputs = own[count : 2 * count]
    if sent is None:
        return one_or_all(outputs)
    results = [output.copy() for output in outputs]
    indices = (len(own) - 2 * count) // 2
    reads = iter([int(index) for index in sent[2 * count : 2 * count + indices]])
    writes = iter([int(index) for index in own[2 * count + indices :]])
    for place, slice_size in enumerate(sizes):
        source = sent[place][_window(reads, slice_size, sent[place].shape)]
        results[place][_window(writes, slice_size, results[place].shape)] = source
    return one_or_all(results)


def _window(starts: Iterator[int], sizes: Sequence[int], extents: Sequence[int]) -> tuple[slice, ...]:
    """The next window, moved back into the array as dynamic-slice does."""
    clamped = [max(0, min(next(starts), extent - size)) for size, extent in zip(sizes, extents, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(clamped, sizes, strict=True))
