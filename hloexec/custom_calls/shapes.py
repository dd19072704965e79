"""The shapes of a library call's operands and results, and results in the form that a call declares.

A call declares one array, or a tuple of its results and of scratch memory behind them, which holds zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hloexec.errors import ShapeError
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.common import array_shape, require
from hloexec.values import Array

__all__ = ["in_declared_form", "operand_shapes", "require_floating", "result_shapes", "with_scratch", "zeros"]


def operand_shapes(operands: Sequence[Shape], what: str, counts: Collection[int] = ()) -> list[ArrayShape]:
    """The arrays that a call takes; ShapeError where there are not as many as one of `counts`, if there are any."""
    if counts and len(operands) not in counts:
        raise ShapeError(f"{what} must have {' or '.join(map(str, counts))} operands, but has {len(operands)}")
    return [array_shape(operand, f"operand {number} of {what}") for number, operand in enumerate(operands)]


def require_floating(shapes: Iterable[ArrayShape], what: str) -> None:
    """ShapeError unless all of these arrays hold floating-point numbers."""
    for shape in shapes:
        require(shape.element_type.is_floating, f"the operands of {what} must be floating-point numbers, not {shape}")


def result_shapes(shape: Shape, what: str, count: int = 1) -> list[ArrayShape]:
    """The arrays that a call declares as its results, scratch memory included; ShapeError for fewer than `count`."""
    leaves = shape.elements if isinstance(shape, TupleShape) else (shape,)
    if len(leaves) < count:
        raise ShapeError(f"{what} has no room for {count} results in {shape}")
    return [array_shape(leaf, f"a result of {what}") for leaf in leaves]


def in_declared_form(results: Sequence[Shape], shape: Shape) -> Shape:
    """The declared shape with its first leaves replaced by the inferred results."""
    return TupleShape((*results, *shape.elements[len(results) :])) if isinstance(shape, TupleShape) else results[0]


def with_scratch(results: Sequence[Array], shape: Shape) -> Array | tuple[Array, ...]:
    """The results in the form of the declared shape, zeros for the scratch memory declared behind them."""
    if not isinstance(shape, TupleShape):
        return results[0]
    return (*results, *zeros([array_shape(leaf, "scratch memory") for leaf in shape.elements[len(results) :]]))


def zeros(shapes: Sequence[ArrayShape]) -> list[Array]:
    """What scratch memory holds."""
    return [np.zeros(shape.dimensions, shape.element_type.storage) for shape in shapes]
