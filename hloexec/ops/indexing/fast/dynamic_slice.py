"""Fast variants of dynamic-slice and dynamic-update-slice: an index of which mostly one dimension moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes, clamped_window, writeable
from hloexec.ops.registry import fast


@fast("dynamic-slice")
class FastDynamicSlice:
    """One index."""

    @staticmethod
    def bind(*, attributes: DynamicSliceAttributes, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array]:
        operand, *starts = operand_shapes
        index = _bound_window(operand.dimensions, starts, attributes.dynamic_slice_sizes)
        return WindowReader(index)


@fast("dynamic-update-slice")
class FastDynamicUpdateSlice:
    """One assignment, for an operand and an update of one type."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array] | None:
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
    sizes: tuple[int, ...], starts: Sequence[ArrayShape], window: tuple[int, ...]
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
