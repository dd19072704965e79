"""Fast variants of bitcast and bitcast-convert: views."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.elementwise.fast.formulas import OfScalars
from hloexec.ops.movement.bitcast import bits_plan, is_row_major
from hloexec.ops.movement.copying import reshaped
from hloexec.ops.movement.fast.strided import FastReshape
from hloexec.ops.registry import fast
from hloexec.ops.rows import RowForm, prefixes


@fast("bitcast")
class FastBitcast:
    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[[Array], Array] | None:
        """A reshape between transposes, where all that changes is sizes and the order of dimensions."""
        (source,) = operand_shapes
        if source.element_type is not shape.element_type or shape.dynamic_dimensions or source.dynamic_dimensions:
            return None
        plan = bits_plan(source, shape)
        if not plan.is_whole or plan.tiling.splits or plan.result_tiling.splits:
            return None
        order, sizes, axes = plan.major_to_minor, plan.result_tiling.sizes, plan.result_axes
        if sizes == plan.tiling.sizes:
            return methodcaller("transpose", tuple(order[axis] for axis in axes))
        if all(map(is_row_major, (source, shape))):
            return FastReshape.bind(shape=shape, operand_shapes=operand_shapes)
        return lambda operand: reshaped(operand.transpose(order), sizes).transpose(axes)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> RowForm | None:
        (source,) = operand_shapes
        is_reshape = (
            source.element_type is shape.element_type
            and source.element_count == shape.element_count
            and all(map(is_row_major, (source, shape)))
        )
        return FastReshape.by_rows(shape=shape, operand_shapes=operand_shapes) if is_reshape else None


@fast("bitcast-convert")
class FastBitcastConvert:
    """A view, where both types have one width."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array] | None:
        view = _view(shape, operand_shapes[0])
        return view and OfScalars(view, view)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> RowForm | None:
        view = _view(shape, operand_shapes[0])
        return None if view is None else RowForm(prefixes(shape.dimensions), lambda _: view, is_view=True)


def _view(shape: ArrayShape, operand: ArrayShape) -> Callable[..., Array] | None:
    """The method that reads the bits of numbers, or of one, as another type of their width; None where there is more
    to it."""
    source, target = operand.element_type, shape.element_type
    is_plain = source.bits == target.bits and source.byte_size == target.byte_size
    if not is_plain or source is target or Kind.PRED in (source.kind, target.kind):
        return None
    return methodcaller("view", target.storage)
