"""Constants of other sizes: along a dimension in which all elements are the same, or count, there may be fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hloexec.core.ir import ArrayShape, FirstElement, Literal, Shape, TupleShape
from hloexec.core.values import Array


def fixed_axes(literal: Literal, devices: int) -> Iterator[tuple[int, str]]:
    """The dimensions of a constant array that must stay, and why."""
    shape = literal.shape
    if not isinstance(shape, ArrayShape) or isinstance(literal.held, FirstElement):
        return
    if literal.value is None:
        for axis, size in enumerate(shape.dimensions):
            if shape.element_type.is_integral and size == devices > 1:
                yield axis, "it is one of an unknown table with a row for each device"
        return
    assert isinstance(literal.value, np.ndarray)
    for axis in range(shape.rank):
        if not (_is_repeated(literal.value, axis) or is_counting(literal.value, axis)):
            yield axis, "a constant lists its elements"


def is_counting(array: Array, axis: int) -> bool:
    """Whether the elements of an array of integers are 0, 1, … along a dimension."""
    if array.dtype.kind not in "iu" or array.shape[axis] < 2:
        return False
    numbers = np.arange(array.shape[axis]).reshape((-1,) + (1,) * (array.ndim - 1 - axis))
    return bool((array == numbers).all())


def _is_repeated(array: Array, axis: int) -> bool:
    if array.shape[axis] < 2 or not array.size:
        return True
    bits = array.view(f"u{array.dtype.itemsize}") if array.dtype.itemsize in (1, 2, 4, 8) else array
    first = bits.take([0], axis)
    return bool((bits == first).all())


def resized_literal(literal: Literal, shape: Shape) -> Literal:
    """The first elements of a constant along every dimension."""
    if isinstance(literal.held, FirstElement) and isinstance(shape, ArrayShape):
        return Literal(shape, FirstElement(literal.held.element, shape))
    if isinstance(literal.value, tuple):
        assert isinstance(shape, TupleShape)
        return Literal(shape, tuple(map(resized_literal, literal.value, shape.elements)))
    if literal.value is None or not isinstance(shape, ArrayShape):
        return Literal(shape, None)
    return Literal.from_array(_first(literal.value, shape.dimensions), shape)


def _first(array: Array, sizes: Sequence[int]) -> Array:
    if array.shape == tuple(sizes):
        return array
    return np.ascontiguousarray(array[tuple(map(slice, sizes))])
