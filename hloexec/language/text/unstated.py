"""Shapes of results that a text leaves out: what XLA's shape inference gives them beyond what the rules of entries say.

The rules say nothing of layouts, which a declared shape states; where it is left out, later bitcasts depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.registry import Entry, Role, role_of

_WHOLE_BYTES = 8


def shape_as_operand(instruction: Instruction) -> Shape:
    """The shape that inference sees: XLA's constants keep neither dynamic dimensions nor `E(…)` of their layouts."""
    shape = instruction.shape
    if role_of(instruction) is not Role.CONSTANT or not isinstance(shape, ArrayShape):
        return shape
    layout = shape.layout and attrs.evolve(shape.layout, element_size_in_bits=0)
    return ArrayShape(shape.element_type, shape.dimensions, layout)


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


def with_operand_layout(entry: Entry, attributes: object, operands: Sequence[Shape], result: Shape) -> Shape:
    """The inferred result, or its first element, with the layout of the operand from which XLA's inference takes it."""
    if isinstance(result, TupleShape):
        if not result.elements or not entry.traits.layout_of:
            return result
        first, *others = result.elements
        return TupleShape((with_operand_layout(entry, attributes, operands, first), *others))
    numbers = entry.traits.layout_of or ((0,) if entry.is_elementwise else ())
    sources = [operands[number] for number in numbers]
    arrays = [source for source in sources if isinstance(source, ArrayShape)]
    if not arrays or not isinstance(result, ArrayShape):
        return result
    source = next((array for array in arrays if array.rank > 0), arrays[-1])
    if source.rank != result.rank:
        return result
    layout = source.layout
    if entry.memory_order is not None:
        layout = source.stated_layout
        order = tuple(reversed(layout.minor_to_major))
        order = entry.memory_order(order, attributes=attributes, shape=result, operand_shapes=(source,))
        layout = attrs.evolve(layout, minor_to_major=tuple(reversed(order)))
    size = _element_size(entry, arrays[-1], result)
    if layout is None and not size:
        return result
    layout = attrs.evolve(layout or source.stated_layout, dim_level_types=(), element_size_in_bits=size)
    return result if layout == result.stated_layout else attrs.evolve(result, layout=layout)


def _element_size(entry: Entry, source: ArrayShape, result: ArrayShape) -> int:
    """What `E(…)` says of the result: operations on two operands and changes of the type count the bits anew."""
    is_packed = result.element_type.bits < _WHOLE_BYTES and result.element_type.kind is not Kind.PRED
    if source.element_type is not result.element_type:
        return result.element_type.bits if is_packed else 0
    is_kept = is_packed or not entry.is_elementwise or entry.operands != 2
    return source.layout.element_size_in_bits if is_kept and source.layout is not None else 0
