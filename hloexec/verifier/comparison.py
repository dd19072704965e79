"""When two shapes count as the same."""

from __future__ import annotations

from hloexec.ir import UNBOUNDED, ArrayShape, BufferShape, Shape, TupleShape

__all__ = ["same"]


def same(first: Shape, second: Shape, any_width: bool = False) -> bool:
    """Whether two shapes agree but for layouts and dynamic flags and, where `any_width`, the width of floats."""
    if isinstance(first, ArrayShape) and isinstance(second, ArrayShape):
        return _same_array(first, second, any_width)
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
    mine, its = first.element_type, second.element_type
    if mine is not its and not (any_width and mine.is_floating and its.is_floating):
        return False
    return first.dimensions == second.dimensions or (
        first.rank == second.rank
        and all(
            size == other or UNBOUNDED in (size, other)
            for size, other in zip(first.dimensions, second.dimensions, strict=True)
        )
    )
