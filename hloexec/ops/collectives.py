"""Collectives: operations in which several devices take part.

Which devices act together is said by `replica_groups`, read according to whether there is a `channel_id` and whether
`use_global_device_ids` is set; what moves where is the machine's business. Here are attributes and shape rules.
"""

from __future__ import annotations

from typing import Any

import attrs

from hloexec.ir import ArrayShape, ReplicaGroups, Shape, TupleShape
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, require
from hloexec.ops.registry import ANY, ProgramShape, Role, opcode
from hloexec.ops.signatures import (
    U32_SHAPE,
    one_or_tuple,
    require_reducer,
    require_same_shape,
    require_tuple,
    same_type,
)

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

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        return _gathered(operands, shape, attributes, "all-gather")


@opcode("all-gather-start", operands=(1, ANY), attributes=AllGatherAttributes, role=Role.MACHINE)
class AllGatherStart:
    """Starts an all-gather; the value is (operands, results)."""

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        parts = require_tuple(shape, 2, "all-gather-start")
        require_same_shape(parts[0], one_or_tuple(operands), "element 0 of all-gather-start, its operands,")
        return TupleShape((parts[0], _gathered(operands, parts[1], attributes, "all-gather-start"), *parts[2:]))


@opcode("all-gather-done", operands=1, role=Role.MACHINE)
class AllGatherDone:
    """The results of a started all-gather."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return require_tuple(operand, 2, "the operand of all-gather-done")[1]


@opcode("all-reduce", operands=(1, ANY), attributes=AllReduceAttributes, role=Role.MACHINE)
class AllReduce:
    """Folds the operands of a group's devices with `to_apply` (XLA: AllReduce)."""

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        _require_reduction(operands, attributes.replica_groups, computations[0], "all-reduce")
        return one_or_tuple(operands)


@opcode("all-reduce-start", operands=(1, ANY), attributes=AllReduceAttributes, role=Role.MACHINE)
class AllReduceStart:
    """Starts an all-reduce; the value has the shape of the results."""

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        _require_reduction(operands, attributes.replica_groups, computations[0], "all-reduce-start")
        return one_or_tuple(operands)


@opcode("all-reduce-done", operands=1, role=Role.MACHINE)
class AllReduceDone:
    """The results of a started all-reduce."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand


@opcode("reduce-scatter", operands=(1, ANY), attributes=ReduceScatterAttributes, role=Role.MACHINE)
class ReduceScatter:
    """An all-reduce, of which each device keeps its part along `dimensions` (XLA: ReduceScatter)."""

    @staticmethod
    def infer(
        *operands: Shape, attributes: ReduceScatterAttributes, shape: Shape, computations: tuple[ProgramShape, ...]
    ) -> Shape:
        _require_reduction(operands, attributes.replica_groups, computations[0], "reduce-scatter")
        results = _results(shape, len(operands), "reduce-scatter")
        for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
            _require_parts(result, operand, attributes, f"result {number} of reduce-scatter", "a part of its operand")
        return shape


@opcode("all-to-all", operands=(1, ANY), attributes=AllToAllAttributes, role=Role.MACHINE)
class AllToAll:
    """Device i's part j goes to device j's place i, within each group (XLA: AllToAll)."""

    @staticmethod
    def infer(*operands: Shape, attributes: AllToAllAttributes, shape: Shape) -> Shape:
        groups = attributes.replica_groups
        size = _group_size(groups, "all-to-all")
        if attributes.dimension is None:
            for number, operand in enumerate(operands[1:], 1):
                require_same_shape(operand, operands[0], f"operand {number} of all-to-all")
            require(
                size in (None, len(operands)),
                f"all-to-all without dimensions needs one operand per device of a group, {size}, not {len(operands)}",
            )
            return TupleShape(operands) if isinstance(shape, TupleShape) else one_or_tuple(operands)
        for number, operand in enumerate(operands):
            array = array_shape(operand, f"operand {number} of all-to-all")
            extent = _extent(array, attributes.dimension, f"operand {number} of all-to-all")
            require(
                size is None or extent % size == 0,
                f"dimension {attributes.dimension} of operand {number} of all-to-all, {extent}, must be divisible by "
                f"the {size} devices of a group",
            )
        return one_or_tuple(operands)


@opcode("ragged-all-to-all", operands=6, attributes=RaggedAllToAllAttributes, role=Role.MACHINE)
class RaggedAllToAll:
    """Rows input_offsets[j] … + send_sizes[j] of the input go to rows output_offsets[j] … of device j's output
    (XLA: RaggedAllToAll).
    """

    @staticmethod
    def infer(operand: Shape, output: Shape, *offsets: Shape) -> Shape:
        source = array_shape(operand, "operand 0 of ragged-all-to-all")
        target = array_shape(output, "operand 1 of ragged-all-to-all")
        require(
            source.rank > 0 and source.dimensions[1:] == target.dimensions[1:] and target.rank > 0,
            "operands 0 and 1 of ragged-all-to-all must have the same dimensions but for the first, but have shapes "
            f"{source} and {target}",
        )
        require(
            source.element_type is target.element_type,
            f"operands 0 and 1 of ragged-all-to-all must have one element type, but have shapes {source} and {target}",
        )
        for number, shape in enumerate(offsets, 2):
            indices = array_shape(shape, f"operand {number} of ragged-all-to-all")
            require(
                indices.rank in (1, 2) and indices.element_type.is_integral and indices.element_type.bits >= 32,
                f"operand {number} of ragged-all-to-all must hold 32- or 64-bit integers in one dimension, "
                f"but has shape {indices}",
            )
            require_same_shape(indices, offsets[0], f"operand {number} of ragged-all-to-all")
        return target


@opcode("collective-broadcast", operands=(1, ANY), attributes=CollectiveBroadcastAttributes, role=Role.MACHINE)
class CollectiveBroadcast:
    """The value of each group's first device; zeros on devices in no group (XLA: CollectiveBroadcast)."""

    @staticmethod
    def infer(*operands: Shape, attributes: CollectiveBroadcastAttributes) -> Shape:
        _require_distinct(attributes.replica_groups, "collective-broadcast")
        return one_or_tuple(operands)


@opcode("collective-permute", operands=(1, ANY), attributes=CollectivePermuteAttributes, role=Role.MACHINE)
class CollectivePermute:
    """Sends each source's value to its target; zeros on devices that are no target (XLA: CollectivePermute)."""

    @staticmethod
    def infer(*operands: Shape, attributes: CollectivePermuteAttributes) -> Shape:
        return _permuted(operands, attributes, "collective-permute")


@opcode("collective-permute-start", operands=(1, ANY), attributes=CollectivePermuteAttributes, role=Role.MACHINE)
class CollectivePermuteStart:
    """Starts a collective-permute; the value is (operands, results, context...)."""

    @staticmethod
    def infer(*operands: Shape, attributes: CollectivePermuteAttributes, shape: Shape) -> Shape:
        result = _permuted(operands, attributes, "collective-permute-start")
        parts = require_tuple(shape, 2, "collective-permute-start")
        if attributes.slice_sizes:
            return shape
        require_same_shape(parts[0], one_or_tuple(operands), "element 0 of collective-permute-start, its operands,")
        require_same_shape(parts[1], result, "element 1 of collective-permute-start, its results,")
        return shape


@opcode("collective-permute-done", operands=1, role=Role.MACHINE)
class CollectivePermuteDone:
    """The results of a started collective-permute."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return require_tuple(operand, 2, "the operand of collective-permute-done")[1]


@opcode("partition-id", operands=0, role=Role.MACHINE, runs_alone=True)
class PartitionId:
    """The number of this device's partition, u32[]."""

    @staticmethod
    def infer() -> Shape:
        return U32_SHAPE


@opcode("replica-id", operands=0, role=Role.MACHINE, runs_alone=True)
class ReplicaId:
    """The number of this device's replica, u32[]."""

    @staticmethod
    def infer() -> Shape:
        return U32_SHAPE


def _group_size(groups: ReplicaGroups, opcode_name: str) -> int | None:
    """How many devices a group has, or None where the text leaves it to the module; groups must be of one size."""
    if groups.iota is not None:
        return groups.iota.dimensions[-1]
    _require_distinct(groups, opcode_name)
    sizes = {len(group) for group in groups.groups}
    require(
        len(sizes) <= 1,
        f"the replica groups of {opcode_name} must be of one size, but have {sorted(sizes)} devices",
    )
    return next(iter(sizes), None)


def _require_distinct(groups: ReplicaGroups, opcode_name: str) -> None:
    """No device may be in two groups, or twice in one."""
    devices = [device for group in groups.groups for device in group]
    require(
        len(set(devices)) == len(devices) and all(device >= 0 for device in devices),
        f"the replica groups of {opcode_name} must name each device at most once, but are {groups.groups}",
    )


def _extent(shape: ArrayShape, dimension: int, what: str) -> int:
    require(
        0 <= dimension < shape.rank,
        f"dimension {dimension} is out of range for {what}, which has shape {shape}",
    )
    return shape.dimensions[dimension]


def _results(shape: Shape, count: int, opcode_name: str) -> tuple[Shape, ...]:
    """The results as declared: one array, or a tuple of as many as there are operands."""
    results = shape.elements if isinstance(shape, TupleShape) else (shape,)
    require(len(results) == count, f"{opcode_name} has {count} operands, but {len(results)} results: {shape}")
    return results


def _require_parts(
    part: Shape, whole: Shape, attributes: AllGatherAttributes | ReduceScatterAttributes, what: str, expected: str
) -> None:
    """`whole` must be a group's `part`s one after the other along the dimension."""
    opcode_name = what.rpartition(" ")[2]
    small, large = array_shape(part, what), array_shape(whole, what)
    dimension, size = attributes.dimension, _group_size(attributes.replica_groups, opcode_name)
    extent = _extent(small, dimension, what)
    others = [number for number in range(small.rank) if number != dimension]
    same = small.rank == large.rank and all(small.dimensions[i] == large.dimensions[i] for i in others)
    total = large.dimensions[dimension] if same else -1
    fits = total == (extent * size if size is not None else total - total % max(extent, 1))
    require(
        same and fits and same_type(small.element_type, large.element_type),
        f"{what} must be {expected} along dimension {dimension} with {size or 'some number of'} devices in a group, "
        f"but the shapes are {part} and {whole}",
    )


def _gathered(operands: tuple[Shape, ...], shape: Shape, attributes: AllGatherAttributes, opcode_name: str) -> Shape:
    results = _results(shape, len(operands), opcode_name)
    for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
        _require_parts(operand, result, attributes, f"operand {number} of {opcode_name}", "a part of its result")
    return shape


def _require_reduction(
    operands: tuple[Shape, ...], groups: ReplicaGroups, program: ProgramShape, opcode_name: str
) -> None:
    """Operands must be arrays, and the computation must combine two scalars of their type.

    One computation of two scalars serves all operands, even where they differ in type.
    """
    arrays = [array_shape(operand, f"operand {number} of {opcode_name}") for number, operand in enumerate(operands)]
    _require_distinct(groups, opcode_name)
    reduced = arrays if len(program.parameters) == 2 * len(arrays) else arrays[:1]
    require_reducer(program, reduced, f"to_apply of {opcode_name}")


def _permuted(operands: tuple[Shape, ...], attributes: CollectivePermuteAttributes, opcode_name: str) -> Shape:
    """The result: the operands, or with slice_sizes the second operand, updated in place."""
    if attributes.slice_sizes:
        require(
            len(operands) == 4,
            f"{opcode_name} with slice_sizes takes input, output and their start indices, not {len(operands)} operands",
        )
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
