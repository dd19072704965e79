"""Shapes of results that a text leaves out: what XLA's shape inference gives them beyond what the rules of entries say.

The rules say nothing of layouts, which a declared shape states; where it is left out, later bitcasts depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.dtypes import ElementType, Kind
from hloexec.ir import ArrayShape, Layout, Shape, TupleShape
from hloexec.ops.registry import Opcode

__all__ = ["implicitly_broadcast", "with_operand_layout"]

_WHOLE_BYTES = 8


def implicitly_broadcast(shapes: Sequence[Shape]) -> list[Shape]:
    """The two operands of an elementwise operation, a scalar or a dimension of size 1 in the size of the other one."""
    first, second = shapes
    if not isinstance(first, ArrayShape) or not isinstance(second, ArrayShape):
        return list(shapes)
    if 0 in (first.rank, second.rank) and first.rank != second.rank:
        whole = max(first, second, key=lambda shape: shape.rank)
        sizes, dynamic = whole.dimensions, whole.dynamic_dimensions
        return [ArrayShape(shape.element_type, sizes, dynamic_dimensions=dynamic) for shape in (first, second)]
    is_degenerate = first.rank == second.rank and any(
        ours != theirs and 1 in (ours, theirs) for ours, theirs in zip(first.dimensions, second.dimensions, strict=True)
    )
    if not is_degenerate:
        return list(shapes)
    return [_enlarged(first, second), _enlarged(second, first)]


def _enlarged(shape: ArrayShape, other: ArrayShape) -> ArrayShape:
    """The shape with the other's dimensions in the place of those of size 1."""
    static = (False,) * shape.rank
    ours, theirs = (
        list(zip(each.dimensions, each.dynamic_dimensions or static, strict=True)) for each in (shape, other)
    )
    chosen = [there if here[0] == 1 != there[0] else here for here, there in zip(ours, theirs, strict=True)]
    dynamic = tuple(flag for _, flag in chosen)
    return ArrayShape(
        shape.element_type, tuple(size for size, _ in chosen), dynamic_dimensions=dynamic if any(dynamic) else ()
    )


def with_operand_layout(entry: Opcode, attributes: object, operands: Sequence[Shape], result: Shape) -> Shape:
    """The inferred result, or its first element, with the layout of the operand from which XLA's inference takes it."""
    number = entry.traits.layout_of
    if number is None:
        number = 0 if entry.is_elementwise else None
    if number is None or number >= len(operands):
        return result
    if isinstance(result, TupleShape):
        if not result.elements:
            return result
        return TupleShape((_with_layout(entry, attributes, operands[number], result.elements[0]), *result.elements[1:]))
    # The predicate of a select may be a scalar; the operand behind it then has the layout.
    sources = [shape for shape in operands[number:] if isinstance(shape, ArrayShape) and _same_rank(shape, result)]
    return _with_layout(entry, attributes, sources[0], result) if sources else result


def _same_rank(shape: ArrayShape, result: Shape) -> bool:
    return isinstance(result, ArrayShape) and shape.rank == result.rank


def _with_layout(entry: Opcode, attributes: object, source: Shape, result: Shape) -> Shape:
    if not isinstance(source, ArrayShape) or not isinstance(result, ArrayShape) or source.rank != result.rank:
        return result
    layout = source.layout
    if entry.memory_order is not None:
        layout = source.stated_layout
        order = entry.memory_order(
            tuple(reversed(layout.minor_to_major)), attributes=attributes, shape=result, operand_shapes=(source,)
        )
        layout = attrs.evolve(layout, minor_to_major=tuple(reversed(order)))
    if layout is None:
        return result
    layout = attrs.evolve(layout, dim_level_types=(), element_size_in_bits=_element_size(layout, source, result))
    return attrs.evolve(
        result, layout=None if layout == ArrayShape(result.element_type, result.dimensions).stated_layout else layout
    )


def _element_size(layout: Layout, source: ArrayShape, result: ArrayShape) -> int:
    """What `E(…)` says of the result: the width of a type of less than a byte, where the element type changes."""
    if source.element_type is result.element_type:
        return layout.element_size_in_bits
    return result.element_type.bits if _is_packed(result.element_type) else 0


def _is_packed(element_type: ElementType) -> bool:
    return element_type.bits < _WHOLE_BYTES and element_type.kind is not Kind.PRED
