"""Moving a whole array (broadcast, reshape, transpose, slice, reverse, copy), and views as data.

Every element of the result is an element of the operand. Where strides can express the movement the result is a view of
the operand. Sizes come from the arrays themselves, not from declared shapes, so that a
bounded-dynamic operand (an array of its runtime extents) moves like any other. Source of the rules: XLA, "Operation
semantics".

Views as data: the index that makes one of an array, which passes of a plan compose and generated Python writes.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, ArrayShapes, Shape, SliceDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.core.wording import braced
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, require, require_distinct_dimensions, reshaped, row_major, shape_of
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.movement.columns import (
    in_order_columns,
    in_order_demand,
    repeated_columns,
    repeated_demand,
    reverse_demand,
    slice_demand,
    transpose_demand,
)
from hloexec.ops.movement.dynamic_shapes import part, reshaped_extents, reshaped_flags, reshapes_all_extents, with_zeros
from hloexec.ops.registry import MemoryOrder, opcode
from hloexec.ops.relations import Relating, Resizing, pointwise, relate_reshape, relate_slice, resized_start
from hloexec.ops.traits import Probe


@frozen
class Indexing:
    """The kernel operand[index], a view: of slices, integers where a dimension of one element goes, None where one
    comes."""

    index: tuple[Any, ...]

    def __call__(self, operand: Array) -> Array:
        result: Array = operand[self.index]
        return result


@frozen
class Spreading:
    """The kernel that repeats operand[fill] along dimensions of one element."""

    fill: tuple[Any, ...]
    """What makes the operand's dimensions those of the result, or of one element."""
    sizes: Dimensions
    is_copied: bool

    def __call__(self, operand: Array) -> Array:
        if not self.is_copied:
            return np.broadcast_to(operand[self.fill], self.sizes)
        result = np.empty(self.sizes, operand.dtype)
        result[...] = operand[self.fill]
        return result


def without_units(sizes: Dimensions, others: Dimensions) -> tuple[Any, ...]:
    """The index that gives an array of some sizes others that differ in dimensions of one element only."""
    index: list[Any] = []
    place = 0
    for size in others:
        while place < len(sizes) and sizes[place] == 1 and size != 1:
            index.append(0)
            place += 1
        if place < len(sizes) and sizes[place] == size:
            index.append(slice(None))
            place += 1
        else:
            index.append(None)
    index += [0] * (len(sizes) - place)
    # A last `...` keeps an array where all dimensions go.
    return tuple(index) if slice(None) in index or None in index else (*index, ...)


@frozen
class BroadcastAttributes:
    """Operand dimension i becomes result dimension `dimensions[i]`; a scalar's may be left out."""

    dimensions: Dimensions = attribute(default=(), always_printed=True)


@opcode(
    "broadcast",
    operands=1,
    attributes=BroadcastAttributes,
    may_be_view=True,
    moves=(0,),
    keeps_all=True,
    repeats=True,
    fast_in="hloexec.ops.movement.fast.movement",
)
class Broadcast:
    """out[i...] = operand[i[dimensions[0]], i[dimensions[1]], ...]   (XLA: Broadcast, the in-dimensions form)

    Dimensions of the result that `dimensions` does not name are new, and have any size. If `dimensions` is not sorted,
    the operand is transposed accordingly, as in XLA's evaluator.
    """

    probe = Probe("T[3,2] broadcast(a0), dimensions={1}", ("T[2]",))
    columns = staticmethod(repeated_columns)
    demand_on = staticmethod(repeated_demand)

    @staticmethod
    def unstated(operand: Shape, *, attributes: BroadcastAttributes) -> ArrayShape:
        """XLA takes `dimensions` for the sizes of new dimensions before the operand's."""
        source = array_shape(operand, "the operand of broadcast")
        sizes = attributes.dimensions
        require(min(sizes, default=0) >= 0, f"broadcast's dimensions {braced(sizes)} must not be negative")
        return shape_of(source.element_type, sizes + source.dimensions, (*(False for _ in sizes), *flags(source)))

    @staticmethod
    def relate(use: Relating) -> None:
        axes = use.result.axes
        use.same(use.operands[0].axes, [axes[dimension] for dimension in use.attributes.dimensions])

    @staticmethod
    def infer(operand: Shape, *, attributes: BroadcastAttributes, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of broadcast")
        result = array_shape(shape, "the result of broadcast")
        dimensions = attributes.dimensions
        require(
            len(dimensions) == source.rank,
            f"broadcast's dimensions {braced(dimensions)} must name one result dimension for each of the "
            f"{source.rank} dimensions of its operand {source}",
        )
        require_distinct_dimensions(dimensions, result.rank, "broadcast's dimensions")
        for axis, dimension in enumerate(dimensions):
            require(
                source.dimensions[axis] == result.dimensions[dimension],
                f"broadcast maps operand dimension {axis} to result dimension {dimension}, so they must be of one "
                f"size, but the operand is {source} and the result {result}",
            )
            require(
                flags(source)[axis] == flags(result)[dimension],
                f"broadcast maps operand dimension {axis} to result dimension {dimension}, so both must be dynamic or "
                f"neither, but the operand is {source} and the result {result}",
            )
        return shape_of(source.element_type, result.dimensions, flags(result))

    @staticmethod
    def evaluate(operand: Array, *, attributes: BroadcastAttributes, shape: ArrayShape) -> Array:
        dimensions = attributes.dimensions
        if not dimensions:
            return np.broadcast_to(operand, shape.dimensions)
        sizes = list(shape.dimensions)
        for axis, dimension in enumerate(dimensions):
            sizes[dimension] = operand.shape[axis]
        aligned = operand.transpose(sorted(range(operand.ndim), key=dimensions.__getitem__))
        fill = tuple(slice(None) if dimension in dimensions else None for dimension in range(len(sizes)))
        return np.broadcast_to(aligned[fill], sizes)


@frozen
class ReshapeAttributes:
    """`inferred_dimension` says which result dimension is dynamic where a dynamic operand dimension is split."""

    inferred_dimension: int | None = attribute(default=None)


@opcode(
    "reshape",
    operands=1,
    attributes=ReshapeAttributes,
    may_be_view=True,
    moves=(0,),
    keeps_all=True,
    keeps_order=True,
    fast_in="hloexec.ops.movement.fast.movement",
)
class Reshape:
    """The same elements in the same row-major order, in other dimensions   (XLA: Reshape)"""

    states_shape = True
    probe = Probe("T[2,1] reshape(a0)", ("T[2]",))
    columns = staticmethod(in_order_columns)
    demand_on = staticmethod(in_order_demand)

    @staticmethod
    def demands(use: Use) -> Demanded:
        if not reshapes_all_extents(use.shapes[0], use.shape):
            yield 0, Demand(is_whole=True)

    @staticmethod
    def relate(use: Relating) -> None:
        relate_reshape(use, use.operands[0].axes, use.result.axes)

    @staticmethod
    def infer(operand: Shape, *, attributes: ReshapeAttributes, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of reshape")
        result = array_shape(shape, "the result of reshape")
        require(
            source.element_count == result.element_count,
            f"reshape must keep the number of elements, but the operand {source} has {source.element_count} and the "
            f"result {result} has {result.element_count}",
        )
        inferred = attributes.inferred_dimension
        require(
            inferred is None or 0 <= inferred < result.rank,
            f"reshape's inferred_dimension {inferred} is not a dimension of its result {result}",
        )
        return shape_of(source.element_type, result.dimensions, reshaped_flags(source, result))

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, operand_shapes: ArrayShapes) -> Array:
        if shape.dynamic_dimensions or operand_shapes[0].dynamic_dimensions:
            return reshaped(operand, reshaped_extents(operand.shape, operand_shapes[0], shape))
        return reshaped(operand, shape.dimensions)


@frozen
class TransposeAttributes:
    """Result dimension i is operand dimension `dimensions[i]`."""

    dimensions: Dimensions = attribute()


@opcode("transpose", operands=1, attributes=TransposeAttributes, may_be_view=True, moves=(0,), keeps_all=True)
class Transpose:
    """out[i[dimensions[0]], i[dimensions[1]], ...] = operand[i...]   (XLA: Transpose)"""

    layout_of = (0,)
    probe = Probe("T[3,2] transpose(a0), dimensions={1,0}", ("T[2,3]",))
    demand_on = staticmethod(transpose_demand)

    @staticmethod
    def relate(use: Relating) -> None:
        axes = use.operands[0].axes
        use.same(use.result.axes, [axes[dimension] for dimension in use.attributes.dimensions])

    @staticmethod
    def infer(operand: Shape, *, attributes: TransposeAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of transpose")
        dimensions = attributes.dimensions
        require(
            sorted(dimensions) == list(range(source.rank)),
            f"transpose's dimensions {braced(dimensions)} must be a permutation of the dimensions of its operand "
            f"{source}",
        )
        sizes = tuple(source.dimensions[dimension] for dimension in dimensions)
        dynamic = tuple(flags(source)[dimension] for dimension in dimensions)
        return shape_of(source.element_type, sizes, dynamic)

    @staticmethod
    def evaluate(operand: Array, *, attributes: TransposeAttributes) -> Array:
        return operand.transpose(attributes.dimensions)

    @staticmethod
    def memory_order(order: MemoryOrder, *, attributes: TransposeAttributes) -> MemoryOrder:
        return tuple(map(attributes.dimensions.index, order))


@frozen
class SliceAttributes:
    """One range `[start:limit:stride]` per dimension."""

    slice: tuple[SliceDimension, ...] = attribute(Grammar.SLICE)


@opcode(
    "slice",
    operands=1,
    attributes=SliceAttributes,
    may_be_view=True,
    moves=(0,),
    fast_in="hloexec.ops.movement.fast.movement",
)
class Slice:
    """out[i...] = operand[start + i * stride...]   (XLA: Slice)

    For a dynamic dimension, the result keeps the elements within the runtime extent; a slice of one element is static,
    and zero if that element is beyond it.
    """

    states_shape = True
    probe = Probe("T[1] slice(a0), slice={[0:1]}", ("T[2]",))
    demand_on = staticmethod(slice_demand)

    @staticmethod
    def relate(use: Relating) -> None:
        for whole, part_, entry in zip(use.operands[0].axes, use.result.axes, use.attributes.slice, strict=True):
            if entry.stride == 1:
                relate_slice(use, whole, part_, entry.start)
            else:
                use.equation({whole: 1, part_: -entry.stride})

    @staticmethod
    def resize(change: Resizing) -> object:
        (before, after), (_, sizes) = change.sizes(0), change.result_sizes
        entries = []
        for axis, (old, new, size, entry) in enumerate(zip(before, after, sizes, change.attributes.slice, strict=True)):
            if entry.stride == 1:
                start = change.starts.get(axis)
                if start is None:
                    start = resized_start(old, entry.start, entry.limit - entry.start, new, size)
                entries.append(SliceDimension(start, start + size))
            else:
                entries.append(attrs.evolve(entry, limit=new - (old - entry.limit)))
        return attrs.evolve(change.attributes, slice=tuple(entries))

    @staticmethod
    def infer(operand: Shape, *, attributes: SliceAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of slice")
        require(
            len(attributes.slice) == source.rank,
            f"slice must give one range per dimension of its operand {source}, but gives {len(attributes.slice)}",
        )
        for dimension, entry in enumerate(attributes.slice):
            where = f"slice's range [{entry.start}:{entry.limit}:{entry.stride}] of dimension {dimension}"
            require(entry.stride > 0, f"{where} must have a positive stride")
            require(
                0 <= entry.start <= entry.limit <= source.dimensions[dimension],
                f"{where} must satisfy 0 <= start <= limit <= {source.dimensions[dimension]}, the size in {source}",
            )
        sizes = tuple(len(range(entry.start, entry.limit, entry.stride)) for entry in attributes.slice)
        dynamic = tuple(flag and size != 1 for flag, size in zip(flags(source), sizes, strict=True))
        return shape_of(source.element_type, sizes, dynamic)

    @staticmethod
    def evaluate(operand: Array, *, attributes: SliceAttributes, shape: ArrayShape) -> Array:
        result = part(operand, (slice(entry.start, entry.limit, entry.stride) for entry in attributes.slice))
        return result if result.shape == shape.dimensions else with_zeros(result, shape)

    @staticmethod
    def memory_order(order: MemoryOrder) -> MemoryOrder:
        return order


@frozen
class ReverseAttributes:
    """The dimensions that are reversed."""

    dimensions: Dimensions = attribute()


@opcode("reverse", operands=1, attributes=ReverseAttributes, any_order=True, moves=(0,), keeps_all=True)
class Reverse:
    """out[..., i, ...] = operand[..., size - 1 - i, ...] for each of `dimensions`   (XLA: Rev)"""

    layout_of = (0,)
    probe = Probe("T[2] reverse(a0), dimensions={0}", ("T[2]",))
    demand_on = staticmethod(reverse_demand)

    relate = staticmethod(pointwise)

    @staticmethod
    def infer(operand: Shape, *, attributes: ReverseAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of reverse")
        require_distinct_dimensions(attributes.dimensions, source.rank, "reverse's dimensions")
        return shape_of(source.element_type, source.dimensions, flags(source))

    @staticmethod
    def evaluate(operand: Array, *, attributes: ReverseAttributes) -> Array:
        axes = set(attributes.dimensions)
        # A view with negative strides would send NumPy's functions down other paths, which round otherwise.
        return row_major(
            part(operand, (slice(None, None, -1 if axis in axes else None) for axis in range(operand.ndim)))
        )


@opcode("copy", operands=1, may_be_view=True, moves=(0,), keeps_all=True, keeps_order=True)
class Copy:
    """out = operand, possibly in another layout; layouts are not part of values   (XLA: Copy)"""

    probe = Probe("T[2] copy(a0)", ("T[2]",))
    columns = staticmethod(in_order_columns)
    demand_on = staticmethod(in_order_demand)

    relate = staticmethod(pointwise)

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand

    @staticmethod
    def evaluate(operand: Array) -> Array:
        return operand

    memory_order = Slice.memory_order
