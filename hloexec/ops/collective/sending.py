"""Collectives that send values, or parts of them, from some devices to others; and the numbers of devices."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hloexec.core.ir import ArrayShapes, Instruction, Shape, TupleShape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    CollectiveAttributes,
    Members,
    ReduceScatter,
    Results,
    RootedAttributes,
    collective,
    data_operands,
    extent_of,
    folded,
    folds_alike,
    group_size,
    is_handed_on,
    one_or_all,
    require_distinct,
    roots_of,
    without_roots,
    zeros,
)
from hloexec.ops.common import array_shape, require
from hloexec.ops.intervals import Demand, Demanded, Use, always
from hloexec.ops.registry import Role, opcode, traits_of
from hloexec.ops.relations import Relating, Requirement, Starts, Within, leafwise
from hloexec.ops.signatures import U32_SHAPE, element_of_operand, one_or_tuple, require_same_shape, require_tuple
from hloexec.ops.traits import Route


@frozen
class AllToAllAttributes(CollectiveAttributes):
    """With `dimensions` one array is split and concatenated along it; without, each operand goes to one device."""

    constrain_layout: bool = attribute(default=False)
    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@frozen
class RaggedAllToAllAttributes(CollectiveAttributes):
    """XLA reads `dimensions` and forgets it."""

    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@collective("all-to-all", route=Route.PARTED, attributes=AllToAllAttributes, moves=(0,), crosses_devices=True)
class AllToAll:
    """Device i's part j goes to device j's place i, within each group (XLA: AllToAll)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllToAllAttributes) -> int | None:
        return len(operands) if attributes.dimension is None else None

    @staticmethod
    def relate(use: Relating) -> None:
        leafwise(use)
        dimension, size = use.attributes.dimension, group_size(use.attributes.replica_groups, "all-to-all")
        for operand in use.operands:
            if dimension is None:
                use.same(use.operands[0].axes, operand.axes)
            elif not operand.axes:
                continue
            elif use.group is not None:
                divided = operand.axes[dimension]
                (part,) = use.relations.new((use.size(divided) // use.size(use.group),))
                use.shared(divided, part, use.group)
            elif size is None:
                use.keep(operand.axes[dimension : dimension + 1], "it is divided among all devices")
            else:
                use.whole(operand.axes[dimension], use.size(operand.axes[dimension]) // size)

    @staticmethod
    def infer(*operands: Shape, attributes: AllToAllAttributes, shape: Shape) -> Shape:
        size = group_size(attributes.replica_groups, "all-to-all")
        if attributes.dimension is None:
            for number, operand in enumerate(operands[1:], 1):
                require_same_shape(operand, operands[0], f"operand {number} of all-to-all")
            require(
                size in (None, len(operands)),
                f"all-to-all without dimensions needs one operand per device of a group, {size}, not {len(operands)}",
            )
            return TupleShape(operands) if isinstance(shape, TupleShape) else one_or_tuple(operands)
        for number, operand in enumerate(operands):
            if is_handed_on(number, operand, attributes):
                continue
            array = array_shape(operand, f"operand {number} of all-to-all")
            extent = extent_of(array, attributes.dimension, f"operand {number} of all-to-all")
            require(
                size is None or extent % size == 0,
                f"dimension {attributes.dimension} of operand {number} of all-to-all, {extent}, must be divisible by "
                f"the {size} devices of a group",
            )
        return one_or_tuple(operands)

    @staticmethod
    def exchange(members: Members, *, attributes: AllToAllAttributes, shape: Shape) -> Results:
        dimension = attributes.dimension
        if dimension is None:
            rows = list(members.values())
            results = {member: tuple(row[place] for row in rows) for place, member in enumerate(members)}
            return (
                results if isinstance(shape, TupleShape) else {member: result[0] for member, result in results.items()}
            )
        parts = [[np.split(array, len(members), dimension) for array in operands] for operands in members.values()]
        return {
            member: one_or_all(
                [np.concatenate([part[i][place] for part in parts], dimension) for i in range(len(parts[0]))]
            )
            for place, member in enumerate(members)
        }


def parts_along(exchange: Any, operands: Sequence[Any], members: int) -> int | None:
    """The dimension along which a bound exchange divides what members hold, or their fold, into a part for each of
    them, where what one gets follows from its parts alone (`received`); None for any other exchange."""
    if not all(isinstance(operand, np.ndarray) for operand in operands):
        return None
    function = getattr(exchange, "func", None)
    if function is ReduceScatter.exchange and folds_alike(exchange, operands):
        return int(exchange.keywords["attributes"].dimension)
    dimension: int | None = exchange.keywords["attributes"].dimension if function is AllToAll.exchange else None
    if dimension is None or any(operand.shape[dimension] % members for operand in operands):
        return None
    return dimension


def received(exchange: Any, parts: Sequence[Sequence[Array]]) -> list[Array]:
    """What a member gets whose parts are these, one of each member in the order of the group."""
    if exchange.func is AllToAll.exchange:
        return [
            np.concatenate(arrays, exchange.keywords["attributes"].dimension) for arrays in zip(*parts, strict=True)
        ]
    return folded(parts, exchange.keywords["computations"][0], exchange.keywords["numerics"])


def needed_members(instruction: Instruction, group: Mapping[int, int], takers: Container[int]) -> set[int] | None:
    """The members of a group, devices by number, whose values some of them need where each goes to one other alone, or
    comes from one; None for all."""
    attributes: Any = instruction.attributes
    route = traits_of(instruction).route
    if route in (Route.FROM_ROOT, Route.TO_ROOT) and not attributes.has_dynamic_root:
        root = next(iter(group.values()))
        if route is Route.FROM_ROOT:
            return {root}
        return None if root in takers else set()
    pairs = getattr(attributes, "source_target_pairs", None)
    if pairs is None or attributes.slice_sizes:
        return None
    return {group[source] for source, target in pairs if source in group and group.get(target) in takers}


@collective("ragged-all-to-all", route=Route.COMPUTED, operands=6, attributes=RaggedAllToAllAttributes)
class RaggedAllToAll:
    """Rows input_offsets[j] … + send_sizes[j] of the input go to rows output_offsets[j] … of device j's output
    (XLA: RaggedAllToAll).
    """

    @staticmethod
    def demands(use: Use) -> Demanded:
        """Parts of at most an equal share of the rows of input and output, wherever they fit; if sizes or offsets are
        known, what fits with them."""
        rows = [shape.dimensions[0] for shape in use.shapes[:2]]
        _, _, starts, sizes, targets, _ = use.bounds
        row_limits = [
            size - int(bounds.high)
            for size, bounds in zip(rows, (starts, targets), strict=True)
            if bounds.low >= 0 and bounds.high <= size
        ]
        share = max(1, min(rows) // max(1, use.shapes[2].element_count))
        most = min(rows + (row_limits or [share]))
        largest = int(sizes.high) if sizes.low >= 0 and sizes.high <= min(rows) else most
        yield 2, Demand(0, rows[0] - largest)
        yield 3, Demand(0, most)
        yield 4, Demand(0, rows[1] - largest)
        yield 5, Demand(0, most)

    @staticmethod
    def requires(*, operand_shapes: ArrayShapes) -> Iterator[Requirement]:
        """Each part lies in what it is read from and in what it is written to."""
        source, target = (shape.dimensions[0] for shape in operand_shapes[:2])
        count = operand_shapes[3].element_count
        yield Within(3, 0, min(source, target))
        for starts, room in ((2, source), (4, target)):
            yield Starts(starts, 3, are_sums=False, count=count, room=room, may_be_empty=False)

    @staticmethod
    def relate(use: Relating) -> None:
        use.same(use.operands[1].axes, use.result.axes)
        use.same(use.operands[0].axes[1:], use.operands[1].axes[1:])
        for offsets in use.operands[2:]:
            if use.group is not None and use.size(offsets.axes[0]) == use.size(use.group):
                use.relations.tie(offsets.axes[0], use.group)
            else:
                use.keep(offsets.axes, "it has one offset for each device")
        use.keep((use.operands[0].axes[0], use.operands[1].axes[0]), "its rows are sent in parts of computed sizes")

    @staticmethod
    def infer(operand: Shape, output: Shape, *offsets: Shape, attributes: RaggedAllToAllAttributes) -> Shape:
        size = group_size(attributes.replica_groups, "ragged-all-to-all")
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
            require(
                size is None or indices.dimensions[0] % size == 0,
                f"operand {number} of ragged-all-to-all must have one row for each of the {size} devices of a group, "
                f"but has shape {indices}",
            )
        return target

    @staticmethod
    def exchange(members: Members) -> Results:
        numbers = list(members)
        results = {member: operands[1].copy() for member, operands in members.items()}
        for operands in members.values():
            source = operands[0]
            # One row of offsets per receiver.
            starts, sizes, targets = (array.reshape(len(numbers), -1) for array in operands[2:5])
            for receiver, *row in zip(numbers, starts.tolist(), sizes.tolist(), targets.tolist(), strict=True):
                for start, size, target in zip(*row, strict=True):
                    _copy_rows(source, start, results[receiver], target, size)
        return results


def _copy_rows(source: Array, start: int, result: Array, target: int, size: int) -> None:
    """Rows start … of `source` become rows target … of `result`."""
    for array, first, verb in (source, start, "reads"), (result, target, "writes"):
        if size < 0 or not 0 <= first <= array.shape[0] - size:
            raise EvaluationError(
                f"ragged-all-to-all {verb} {size} rows from row {first} on, but the array has {array.shape[0]} rows"
            )
    result[target : target + size] = source[start : start + size]


@frozen
class CollectiveBroadcastAttributes(RootedAttributes):
    may_leave_out: ClassVar[bool] = True
    """Devices in no group take part, too: they get zeros."""


@frozen
class CollectivePermuteAttributes:
    may_leave_out: ClassVar[bool] = True
    """Devices in no pair take part, too: they get zeros."""
    channel_id: int | None = attribute(default=None)
    source_target_pairs: tuple[tuple[int, int], ...] = attribute(Grammar.INT_PAIRS)
    slice_sizes: tuple[Dimensions, ...] = attribute(Grammar.INT_LIST_LIST, default=())


@collective(
    "collective-broadcast",
    route=Route.FROM_ROOT,
    attributes=CollectiveBroadcastAttributes,
    moves=(0,),
    fills=True,
    crosses_devices=True,
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


@collective(
    "collective-permute",
    route=Route.PAIRED,
    attributes=CollectivePermuteAttributes,
    moves=(0,),
    fills=True,
    crosses_devices=True,
)
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
    "collective-permute-start",
    route=Route.PAIRED,
    attributes=CollectivePermuteAttributes,
    begins=True,
    opens=True,
    owns_tuple=True,
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
