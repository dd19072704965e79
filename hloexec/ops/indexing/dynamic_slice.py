"""dynamic-slice and dynamic-update-slice: reading and writing one window at computed positions.

A window that would leave the operand is moved back until it fits. Starts may be of any integer type.
Source: XLA, "Operation semantics".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import attribute
from hloexec.ops.common import array_shape, flags, in_type, require, row_major, same_type_ignoring_float_width, shape_of
from hloexec.ops.intervals import Demanded, Use
from hloexec.ops.movement.columns import start_demand, updated_demand, window_demand
from hloexec.ops.movement.dynamic_shapes import completed, part
from hloexec.ops.registry import ANY, MemoryOrder, opcode
from hloexec.ops.relations import Axes, Relating, Resizing, relate_window_of
from hloexec.ops.resources import empty
from hloexec.ops.traits import Probe


@frozen
class DynamicSliceAttributes:
    """The size of the slice in each dimension."""

    dynamic_slice_sizes: Dimensions = attribute()


@opcode(
    "dynamic-slice",
    operands=(1, ANY),
    attributes=DynamicSliceAttributes,
    may_be_view=True,
    moves=(0,),
    numbers_from=1,
    fast_in="hloexec.ops.indexing.fast.indexing",
)
class DynamicSlice:
    """out[i...] = operand[clamp(0, start, size - dynamic_slice_size) + i...]   (XLA: DynamicSlice)

    The starts are one scalar per dimension, or one array of rank 1 that holds them all. A dynamic operand is treated as
    having its bound, with zeros beyond its extents.
    """

    states_shape = True
    probe = Probe("T[1] dynamic-slice(a0, a1), dynamic_slice_sizes={1}", ("T[2]", "s32[]"))
    demand_on = staticmethod(window_demand)

    @staticmethod
    def demands(use: Use) -> Demanded:
        return _start_demands(use, 1, use.attributes.dynamic_slice_sizes)

    @staticmethod
    def relate(use: Relating) -> None:
        _relate_windows(use, use.operands[0].axes, use.result.axes, 1)

    @staticmethod
    def resize(change: Resizing) -> object:
        return attrs.evolve(change.attributes, dynamic_slice_sizes=change.result_sizes[1])

    @staticmethod
    def infer(operand: Shape, *start_indices: Shape, attributes: DynamicSliceAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of dynamic-slice")
        _require_starts("dynamic-slice", source, start_indices)
        sizes = attributes.dynamic_slice_sizes
        require(
            len(sizes) == source.rank and all(0 <= a <= b for a, b in zip(sizes, source.dimensions, strict=True)),
            f"dynamic_slice_sizes {list(sizes)} must give each dimension of the operand {source} a size within it",
        )
        return shape_of(source.element_type, sizes)

    @staticmethod
    def evaluate(
        operand: Array, *start_indices: Array, attributes: DynamicSliceAttributes, operand_shapes: ArrayShapes
    ) -> Array:
        operand = completed(operand, operand_shapes[0].dimensions)
        return part(operand, clamped_window(operand.shape, start_indices, attributes.dynamic_slice_sizes))

    @staticmethod
    def memory_order(order: MemoryOrder) -> MemoryOrder:
        return order


@opcode(
    "dynamic-update-slice",
    operands=(2, ANY),
    any_order=True,
    overwrites=0,
    moves=(0, 1),
    in_place=True,
    numbers_from=2,
    fast_in="hloexec.ops.indexing.fast.indexing",
)
class DynamicUpdateSlice:
    """out = operand, but out[clamp(0, start, size - update_size) + i...] = update[i...]   (XLA: DynamicUpdateSlice)"""

    states_shape = True
    probe = Probe("T[2] dynamic-update-slice(a0, a1, a2)", ("T[2]", "T[1]", "s32[]"))
    demand_on = staticmethod(updated_demand)

    @staticmethod
    def demands(use: Use) -> Demanded:
        return _start_demands(use, 2, use.shapes[1].dimensions)

    @staticmethod
    def relate(use: Relating) -> None:
        use.same(use.operands[0].axes, use.result.axes)
        _relate_windows(use, use.operands[0].axes, use.operands[1].axes, 2)

    @staticmethod
    def infer(operand: Shape, update: Shape, *start_indices: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of dynamic-update-slice")
        window = array_shape(update, "the update of dynamic-update-slice")
        same_type_ignoring_float_width(source, window, "the operand and the update of dynamic-update-slice")
        _require_starts("dynamic-update-slice", source, start_indices)
        require(
            window.rank == source.rank
            and all(a <= b for a, b in zip(window.dimensions, source.dimensions, strict=True)),
            f"the update of dynamic-update-slice must fit into the operand, but is {window} and the operand {source}",
        )
        dynamic = tuple(
            ours or (theirs and window.dimensions[axis] == source.dimensions[axis])
            for axis, (ours, theirs) in enumerate(zip(flags(source), flags(window), strict=True))
        )
        return shape_of(source.element_type, source.dimensions, dynamic)

    @staticmethod
    def evaluate(
        operand: Array,
        update: Array,
        *start_indices: Array,
        shape: ArrayShape,
        operand_shapes: ArrayShapes,
        out: Array | None = None,
    ) -> Array:
        bound, update_bound = operand_shapes[0].dimensions, operand_shapes[1].dimensions
        operand, update = in_type(operand, shape.element_type), in_type(update, shape.element_type)
        if update.shape == bound:
            return update
        start = [part.start for part in clamped_window(bound, start_indices, update_bound)]
        if operand.shape != bound:
            result = completed(operand, bound)
        else:
            result = operand if operand is out else writeable(operand)
        result[tuple(slice(first, first + size) for first, size in zip(start, update.shape, strict=True))] = update
        if not shape.dynamic_dimensions:
            return result
        # An update of a whole dimension brings its own extent along.
        extents = (
            update.shape[axis] if update_bound[axis] == size else operand.shape[axis] for axis, size in enumerate(bound)
        )
        return part(result, map(slice, extents))

    @staticmethod
    def window(sizes: Dimensions, update_sizes: Dimensions, *start_indices: Array) -> tuple[slice, ...]:
        return clamped_window(sizes, start_indices, update_sizes)


def writeable(operand: Array) -> Array:
    """A copy in the order in which the operand lies, if it does not repeat elements."""
    if operand.flags.c_contiguous:
        result = empty(operand.shape, operand.dtype)
        result[...] = operand
        return result
    return operand.copy(order="K") if any(operand.strides) else row_major(operand)


def _start_demands(use: Use, first: int, sizes: Sequence[int]) -> Demanded:
    """The demands on the starts of a slice, which are the operands from `first` on."""
    room = [size - taken for size, taken in zip(use.shapes[0].dimensions, sizes, strict=False)]
    if len(use.shapes) == first + 1 and use.shapes[first].rank == 1:
        yield first, start_demand(room, stride=1)
    else:
        yield from ((first + number, start_demand([free], stride=1)) for number, free in enumerate(room))


def _require_starts(opcode_name: str, operand: ArrayShape, start_indices: tuple[Shape, ...]) -> None:
    """Raise ShapeError unless the starts are integer scalars, one per dimension, or one array that holds them all."""
    starts = [array_shape(start, f"a start index of {opcode_name}") for start in start_indices]
    for start in starts:
        require(
            start.element_type.is_integral, f"the start indices of {opcode_name} must be integers, but one is {start}"
        )
    if len(starts) == 1 and starts[0].rank == 1:
        require(
            starts[0].dimensions == (operand.rank,),
            f"the start indices of {opcode_name} must have one element per dimension of the operand {operand}, but are "
            f"{starts[0]}",
        )
        return
    require(
        len(starts) == operand.rank,
        f"{opcode_name} must have one start index per dimension of its operand {operand}, but has {len(starts)}",
    )
    for start in starts:
        require(start.rank == 0, f"the start indices of {opcode_name} must be scalars, but one is {start}")
        require(
            start.element_type is starts[0].element_type,
            f"the start indices of {opcode_name} must have one element type, but have {starts[0]} and {start}",
        )


def clamped_window(sizes: Dimensions, start_indices: Sequence[Any], window: Dimensions) -> tuple[slice, ...]:
    """Where a window of an array lies after clamping."""
    is_vector = len(start_indices) == 1 and np.ndim(start_indices[0]) == 1
    starts = start_indices[0] if is_vector else start_indices
    slices = []
    for start, size, extent in zip(starts, sizes, window, strict=True):
        first = 0 if extent == size else min(max(int(start), 0), size - extent)
        slices.append(slice(first, first + extent))
    return tuple(slices)


def _relate_windows(use: Relating, whole: Axes, window: Axes, first: int) -> None:
    """The start indices are the operands from the `first` on: one for each dimension, or a vector of them."""
    for number, (ours, theirs) in enumerate(zip(whole, window, strict=True), first):
        relate_window_of(use, ours, theirs, use.starts.get(number))
    starts = use.operands[first:]
    if len(starts) == 1 and starts[0].axes:
        use.keep(starts[0].axes, "it has one start index for each dimension")
        use.positions(first, whole)
        return
    for number in range(len(starts)):
        use.starts_of(first + number, whole[number], window[number])
