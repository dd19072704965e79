"""When two shapes are considered equal."""

from __future__ import annotations

from hloexec.ir import UNBOUNDED, ArrayShape, BufferShape, Shape, TupleShape

__all__ = ["same"]


def same(first: Shape, second: Shape, any_width: bool = False) -> bool:
    """Whether two shapes agree but for layouts and dynamic flags and, where `any_width`, the width of floats."""
    if isinstance(first, ArrayShape) and isinstance(second, ArrayShape):
        return _same_array(first, second, any_width)
    pairs = [(first, second)]
    while pairs:
        ours, theirs = pairs.pop()
        if isinstance(ours, TupleShape) and isinstance(theirs, TupleShape):
            if len(ours.elements) != len(theirs.elements):
                return False
            pairs.extend(zip(ours.elements, theirs.elements, strict=True))
        elif isinstance(ours, BufferShape) and isinstance(theirs, BufferShape):
            pairs.append((ours.element, theirs.element))
        elif isinstance(ours, ArrayShape) and isinstance(theirs, ArrayShape):
            if not _same_array(ours, theirs, any_width):
                return False
        else:
            return False
    return True


def _same_array(first: ArrayShape, second: ArrayShape, any_width: bool) -> bool:
    ours, theirs = first.element_type, second.element_type
    if ours is not theirs and not (any_width and ours.is_floating and theirs.is_floating):
        return False
    return first.dimensions == second.dimensions or (
        first.rank == second.rank
        and all(
            size == other or UNBOUNDED in (size, other)
            for size, other in zip(first.dimensions, second.dimensions, strict=True)
        )
    )
