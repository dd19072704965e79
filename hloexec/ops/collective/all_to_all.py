"""Collectives in which every device sends a part of its operand to every other one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.ir import Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    CollectiveAttributes,
    Members,
    Results,
    collective,
    extent_of,
    group_size,
    is_handed_on,
    one_or_all,
)
from hloexec.ops.common import array_shape, require
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.relations import Relating, leafwise
from hloexec.ops.signatures import one_or_tuple, require_same_shape


@frozen
class AllToAllAttributes(CollectiveAttributes):
    """With `dimensions` one array is split and concatenated along it; without, each operand goes to one device."""

    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@frozen
class RaggedAllToAllAttributes(CollectiveAttributes):
    """XLA reads `dimensions` and forgets it."""

    dimension: int | None = attribute(Grammar.INT_IN_LIST, name="dimensions", default=None)


@collective("all-to-all", attributes=AllToAllAttributes, moves=(0,), crosses_devices=True)
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
            found = {member: tuple(row[place] for row in rows) for place, member in enumerate(members)}
            return found if isinstance(shape, TupleShape) else {member: result[0] for member, result in found.items()}
        parts = [[np.split(array, len(members), dimension) for array in operands] for operands in members.values()]
        return {
            member: one_or_all(
                [np.concatenate([given[i][place] for given in parts], dimension) for i in range(len(parts[0]))]
            )
            for place, member in enumerate(members)
        }


@collective("ragged-all-to-all", operands=6, attributes=RaggedAllToAllAttributes)
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
        known = [
            size - int(bounds.high)
            for size, bounds in zip(rows, (starts, targets), strict=True)
            if bounds.low >= 0 and bounds.high <= size
        ]
        share = max(1, min(rows) // max(1, use.shapes[2].element_count))
        most = min(rows + (known or [share]))
        largest = int(sizes.high) if sizes.low >= 0 and sizes.high <= min(rows) else most
        yield 2, Demand(0, rows[0] - largest)
        yield 3, Demand(0, most)
        yield 4, Demand(0, rows[1] - largest)
        yield 5, Demand(0, most)

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
    for array, first, what in (source, start, "reads"), (result, target, "writes"):
        if size < 0 or not 0 <= first <= array.shape[0] - size:
            raise EvaluationError(
                f"ragged-all-to-all {what} {size} rows from row {first} on, but the array has {array.shape[0]} rows"
            )
    result[target : target + size] = source[start : start + size]
