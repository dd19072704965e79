"""The fast variant of reduce-window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array
from hloexec.ops.reduction.callees import (
    element_types,
    usual_operations,
)
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS
from hloexec.ops.reduction.reduce_window import ReduceWindowAttributes
from hloexec.ops.reduction.window_reductions import (
    rows_of_windows,
)
from hloexec.ops.registry import Callee, fast


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
