"""When two shapes count as the same."""

from __future__ import annotations

from hloexec.ir import UNBOUNDED, ArrayShape, BufferShape, Shape, TupleShape

__all__ = ["is_float", "same"]


def is_float(shape: ArrayShape) -> bool:
    return shape.element_type.is_floating


def same(first: Shape, second: Shape, any_width: bool = False) -> bool:
    """Whether two shapes agree but for layouts and dynamic flags and, where `any_width`, the width of floats."""
    pairs = [(first, second)]
    while pairs:
        mine, its = pairs.pop()
        if isinstance(mine, TupleShape) and isinstance(its, TupleShape):
            if len(mine.elements) != len(its.elements):
                return False
            pairs.extend(zip(mine.elements, its.elements, strict=True))
        elif isinstance(mine, BufferShape) and isinstance(its, BufferShape):
            pairs.append((mine.element, its.element))
        elif isinstance(mine, ArrayShape) and isinstance(its, ArrayShape):
            if not _same_array(mine, its, any_width):
                return False
        else:
            return False
    return True


def _same_array(first: ArrayShape, second: ArrayShape, any_width: bool) -> bool:
    if first.element_type is not second.element_type and not (any_width and is_float(first) and is_float(second)):
        return False
    return first.dimensions == second.dimensions or (
        first.rank == second.rank
        and all(
            mine == its or UNBOUNDED in (mine, its)
            for mine, its in zip(first.dimensions, second.dimensions, strict=True)
        )
    )
