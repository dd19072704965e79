"""Fast variants of scatter, for operands of the element types that results are declared to have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, Shape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import array_shape
from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.scatter import ScatterAttributes, Scattering, window_sizes
from hloexec.ops.reduction.reducers import recognise_components
from hloexec.ops.registry import Callee, fast


@frozen
class OneWindow:
    """Writes or adds a single window."""

    window: tuple[int, ...]
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
        *,
        attributes: ScatterAttributes,
        shape: Shape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: tuple[Callee, ...],
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
