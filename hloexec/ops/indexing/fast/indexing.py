"""Fast variants of dynamic slices, gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import array_shape
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes, clamped_window, writeable
from hloexec.ops.indexing.gather import GatherAttributes, gathering_of
from hloexec.ops.indexing.scatter import ScatterAttributes, Scattering, window_sizes
from hloexec.ops.reduction.reducers import recognise_components
from hloexec.ops.registry import Callees, fast


@fast("dynamic-slice")
class FastDynamicSlice:
    """One index."""

    @staticmethod
    def bind(*, attributes: DynamicSliceAttributes, operand_shapes: ArrayShapes) -> Callable[..., Array]:
        operand, *starts = operand_shapes
        index = _bound_window(operand.dimensions, starts, attributes.dynamic_slice_sizes)
        return WindowReader(index)


@fast("dynamic-update-slice")
class FastDynamicUpdateSlice:
    """One assignment, for an operand and an update of one type."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[..., Array] | None:
        operand, update, *starts = operand_shapes
        if not operand.element_type is update.element_type is shape.element_type:
            return None
        if update.dimensions == operand.dimensions:
            return lambda operand, update, *start_indices, out=None: update
        return WindowWriter(_bound_window(operand.dimensions, starts, update.dimensions))


@frozen
class WindowReader:
    """The kernel of dynamic-slice."""

    index: Callable[[Sequence[Any]], Any]

    def __call__(self, operand: Array, *start_indices: Any) -> Array:
        result: Array = operand[self.index(start_indices)]
        return result


@frozen
class WindowWriter:
    """The kernel of dynamic-update-slice."""

    index: Callable[[Sequence[Any]], Any]

    def __call__(self, operand: Array, update: Array, *start_indices: Any, out: Array | None = None) -> Array:
        result = writeable(operand) if out is None else out
        result[self.index(start_indices)] = update
        return result


def _bound_window(
    sizes: Dimensions, starts: Sequence[ArrayShape], window: Dimensions
) -> Callable[[Sequence[Any]], Any]:
    """From start indices to what `clamped_window` gives for arrays of these sizes; mostly one dimension moves."""
    is_vector = len(starts) == 1 and starts[0].rank == 1
    moving = [axis for axis, size in enumerate(sizes) if window[axis] != size]
    if is_vector or len(moving) != 1:
        return lambda start_indices: (*clamped_window(sizes, start_indices, window), ...)
    (axis,) = moving
    return Moving(axis, window[axis], sizes[axis] - window[axis])


@frozen
class Moving:
    """The index of a window that moves along one dimension: from start indices to what that takes."""

    axis: int
    extent: int
    last: int
    """The highest index at which it may begin."""
    drops: bool = False
    """Whether a window of extent 1 is read without that dimension."""

    def __call__(self, start_indices: Sequence[Any]) -> Any:
        first = int(start_indices[self.axis])
        first = 0 if first < 0 else self.last if first > self.last else first
        if self.drops:
            return (*(slice(None),) * self.axis, first, ...)
        where = slice(first, first + self.extent)
        return (*(slice(None),) * self.axis, where) if self.axis else where


@fast("gather")
class FastGather:
    """For start indices and an operand of known sizes."""

    @staticmethod
    def bind(*, attributes: GatherAttributes, operand_shapes: ArrayShapes) -> Callable[..., Array]:
        operand, indices = operand_shapes
        return gathering_of(attributes, operand.dimensions, attributes.slice_sizes, indices.dimensions)


@frozen
class OneWindow:
    """Writes or adds a single window."""

    window: Dimensions
    """Its sizes by operand dimension."""
    moving: tuple[tuple[int, int], ...]
    """For each component of the index vector, the operand dimension and the highest index at which it may begin."""
    combine: np.ufunc | None
    """What is done with elements that are there and elements of the update; None where the latter replace them."""

    def __call__(self, operand: Array, indices: Array, updates: Array, out: Array | None = None) -> Array:
        where = [slice(0, size) for size in self.window]
        for (axis, last), start in zip(self.moving, indices.reshape(-1).tolist(), strict=True):
            if not 0 <= start <= last:
                return operand
            where[axis] = slice(start, start + self.window[axis])
        result = writeable(operand) if out is None else out
        target, update = result[tuple(where)], updates.reshape(self.window)
        if self.combine is None:
            target[...] = update
        else:
            self.combine(target, update, target)
        return result


@fast("scatter")
class FastScatter:
    """A single window that replaces elements, or is added to them, needs no rows."""

    @staticmethod
    def bind(
        *, attributes: ScatterAttributes, shape: Shape, operand_shapes: ArrayShapes, computations: Callees
    ) -> Callable[..., Any] | None:
        count, types = (
            len(operand_shapes) // 2,
            [array_shape(part, "a result").element_type for part in parts_of(shape)],
        )
        operand, indices, updates = operand_shapes[0], operand_shapes[count], operand_shapes[-1]
        if [each.element_type for each in (*operand_shapes[:count], *operand_shapes[count + 1 :])] != types * 2:
            return None
        if not indices.element_count or not updates.element_count:
            return None
        axes, element_type = attributes.scatter_dims_to_operand_dims, types[0]
        names = recognise_components(computations[0].computation)
        is_sum = (
            names == ("add",) and element_type.storage == element_type.compute and element_type.kind is not Kind.PRED
        )
        window = window_sizes(attributes, operand.rank, updates.dimensions)
        is_single = indices.element_count == len(axes) and not attributes.input_batching_dims
        if is_single and (is_sum or names == ("second",)):
            moving = tuple((axis, operand.dimensions[axis] - window[axis]) for axis in axes)
            return OneWindow(window, moving, np.add if is_sum else None)
        sizes = operand.dimensions, indices.dimensions, updates.dimensions
        return Scattering.of(attributes, *sizes, computations[0])
