"""The shapes of a library call's operands and results, and results in the form that a call declares.

A call declares one array, or a tuple of its results followed by scratch memory, which is zero here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Shape, TupleShape, parts_of
from hloexec.core.precision import largest_number
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.common import array_shape, narrow, require

CallResult: TypeAlias = Array | tuple[Array, ...]


def operand_shapes(operands: Sequence[Shape], what: str, counts: Collection[int] = ()) -> list[ArrayShape]:
    """The arrays that a call takes; ShapeError where there are not as many as one of `counts`, if there are any."""
    if counts and len(operands) not in counts:
        raise ShapeError(f"{what} must have {' or '.join(map(str, counts))} operands, but has {len(operands)}")
    return [array_shape(operand, f"operand {number} of {what}") for number, operand in enumerate(operands)]


def require_floating(shapes: Iterable[ArrayShape], what: str) -> None:
    """ShapeError unless all of these arrays hold floating-point numbers."""
    for shape in shapes:
        require(shape.element_type.is_floating, f"the operands of {what} must be floating-point numbers, not {shape}")


def shapes_of(arrays: Iterable[Array]) -> list[ArrayShape]:
    """The shapes of values, for checking a call that is given arrays alone."""
    return [ArrayShape(element_type_of(array.dtype), array.shape) for array in arrays]


def result_shapes(shape: Shape, what: str, count: int = 1) -> list[ArrayShape]:
    """The arrays that a call declares as its results, scratch memory included; ShapeError for fewer than `count`."""
    leaves = parts_of(shape)
    if len(leaves) < count:
        raise ShapeError(f"{what} has {count} results, which do not fit into {shape}")
    return [array_shape(leaf, f"a result of {what}") for leaf in leaves]


def in_declared_form(results: Sequence[Shape], shape: Shape) -> Shape:
    """The declared shape with its first leaves replaced by the inferred results."""
    return TupleShape((*results, *shape.elements[len(results) :])) if isinstance(shape, TupleShape) else results[0]


def with_scratch(results: Sequence[Array], shape: Shape) -> CallResult:
    """The results in the form of the declared shape, zeros for the scratch memory declared behind them."""
    if not isinstance(shape, TupleShape):
        return results[0]
    return (*results, *zeros(shape.elements[len(results) :]))


@frozen(eq=False)
class WithScratch:
    """A kernel of the first result, and zeros for the scratch memory declared behind it."""

    first: Callable[..., Any]
    scratch: Sequence[Shape]

    @property
    def overwrites(self) -> int | None:
        return getattr(self.first, "overwrites", None)

    def __call__(self, *operands: Array, **out: Array) -> CallResult:
        return (self.first(*operands, **out), *zeros(self.scratch))


def zeros(shapes: Iterable[Shape]) -> list[Array]:
    """What several arrays of scratch memory hold."""
    return list(map(zeros_of, shapes))


def zeros_of(shape: Shape) -> Array:
    """What scratch memory holds."""
    array = array_shape(shape, "scratch memory")
    return np.zeros(array.dimensions, array.element_type.storage)


def saturating(array: Array, element_type: ElementType) -> Array:
    """The array rounded once to `element_type`, integers to the nearest; these and 8-bit floats saturate, NaN aside.

    So libraries for GPUs round. HLO's convert truncates towards an integer, and lets 8-bit floats overflow.
    """
    with np.errstate(all="ignore"):
        if element_type.is_integral:
            limits = np.iinfo(element_type.compute)
            wide = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0)
            return narrow(np.clip(wide, limits.min, limits.max).astype(np.int64), element_type)
        if element_type.is_floating and element_type.bits == 8:
            largest = array.dtype.type(largest_number(element_type))
            array = np.clip(array, -largest, largest)
        return narrow(array, element_type)
