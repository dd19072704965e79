"""The fast variant of reduce-window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape, Window
from hloexec.core.values import Array
from hloexec.ops.movement.copying import in_order
from hloexec.ops.reduction.callees import element_types, usual_operations
from hloexec.ops.reduction.fast.reduce import bound_reduction
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, KnownReducer, accumulation_dtype
from hloexec.ops.reduction.reduce_window import ReduceWindowAttributes
from hloexec.ops.reduction.window_reductions import BLOCK_BYTES, are_apart
from hloexec.ops.registry import Callee, fast
from hloexec.ops.windows import output_size


@fast("reduce-window")
class FastReduceWindow:
    """Windows along rows, of a reducer that is a usual operation."""

    @staticmethod
    def bind(
        *,
        attributes: ReduceWindowAttributes,
        shape: Shape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: Sequence[Callee],
    ) -> Callable[..., Array] | None:
        names = usual_operations(computations[0], element_types(shape), is_exact=False)
        if names is None or len(operand_shapes) != 2 or not isinstance(shape, ArrayShape):
            return None
        sizes, reducer = operand_shapes[0].dimensions, KNOWN_REDUCERS[names[0]]
        return rows_of_windows(sizes, attributes.window, reducer, shape.element_type)


def rows_of_windows(
    sizes: tuple[int, ...], window: Window, reducer: KnownReducer, element_type: ElementType
) -> Callable[[Array, Array], Array] | None:
    """`reduce_windows_known` for arrays of these sizes, where windows become rows; None where they do not.

    XLA:CPU makes such windows of most reductions.
    """
    dtype = element_type.storage
    is_shared = reducer.ufunc is not np.add and prod(sizes) * dtype.itemsize > BLOCK_BYTES
    is_plain = accumulation_dtype(element_type, element_type) == dtype
    if is_shared or not is_plain or not prod(sizes) or not are_apart(sizes, window):
        return None
    rows: list[int] = []
    whole, kept, placed = [], [], []
    for extent, one in zip(sizes, window.dimensions, strict=True):
        rows += [output_size(extent, one), one.size]
        whole.append(prod(rows[-2:]))
        count = min(extent, whole[-1] - one.padding_low)
        kept.append(slice(count))
        placed.append(slice(one.padding_low, one.padding_low + count))
    source, target = tuple(kept), tuple(placed)
    is_crop = all(part == slice(0, reach) for part, reach in zip(target, whole, strict=True))
    neutral = reducer.identity(dtype)
    function = bound_reduction(tuple(rows), range(1, len(rows), 2), reducer, element_type)

    def reduced(array: Array, init_value: Array) -> Array:
        block = in_order(array)[source]
        if not is_crop:
            layout = np.full(whole, neutral, dtype)
            layout[target] = block
            block = layout
        return function(block.reshape(rows), init_value)

    return reduced
