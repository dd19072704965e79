"""Bounded-dynamic dimensions in shape rules and kernels.

A bounded-dynamic value is an array of its runtime extents; its declared shape is only an upper bound. Kernels that take
sizes from their arrays need nothing from here. The others cut static operands to the extents of dynamic ones, pad an
array with zeros to its bound, or compute the extents of the result of a reshape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.common import flags, require


def part(array: Array, slices: Iterable[slice]) -> Array:
    """The view of an array at one slice per dimension."""
    # The ellipsis keeps NumPy from turning an array of rank 0 into a scalar.
    index: tuple[Any, ...] = (*slices, ...)
    view: Array = array[index]
    return view


def with_zeros(array: Array, shape: ArrayShape) -> Array:
    """The array completed with zeros to the declared size of every static dimension of `shape`."""
    sizes = tuple(
        extent if dynamic else size
        for extent, size, dynamic in zip(array.shape, shape.dimensions, flags(shape), strict=True)
    )
    return completed(array, sizes)


def completed(array: Array, sizes: tuple[int, ...]) -> Array:
    """The array enlarged to `sizes` with zeros at the end of each dimension; the array itself where it has them."""
    if sizes == array.shape:
        return array
    result = np.zeros(sizes, array.dtype)
    result[tuple(map(slice, array.shape))] = array
    return result


def cut_to_common_extents(
    operands: Sequence[Array], shapes: Sequence[ArrayShape], apart: int | None = None
) -> Sequence[Array]:
    """Operands of one size: where a dimension is dynamic in some, static ones are cut to the extent of these.

    Operands without dimensions go with any others. Along the dimension `apart`, each operand has a size of its own.
    Source: XLA, DynamicDimensionInference.
    """
    if not any(shape.dynamic_dimensions for shape in shapes):
        return operands
    arrays = [(array, flags(shape)) for array, shape in zip(operands, shapes, strict=True) if array.ndim]
    slices = [
        slice(None)
        if axis == apart
        else slice(common_extent(axis, [(array.shape[axis], dynamic[axis]) for array, dynamic in arrays]))
        for axis in range(arrays[0][0].ndim if arrays else 0)
    ]
    return [part(array, slices) if array.ndim else array for array in operands]


def common_extent(axis: int, sizes: Sequence[tuple[int, bool]]) -> int:
    """The extent of dimensions that go together, given their sizes and which are dynamic: that of the dynamic ones.

    EvaluationError, about dimension `axis`, where these differ.
    """
    extents = {size for size, is_dynamic in sizes if is_dynamic} or {size for size, _ in sizes}
    if len(extents) > 1:
        raise EvaluationError(f"the operands have different extents along dimension {axis}: {sorted(extents)}")
    return extents.pop()


def reshaped_flags(source: ArrayShape, result: ArrayShape) -> tuple[bool, ...]:
    """Which dimensions of a reshape's result are dynamic: the declared ones, where they can be.

    Row-major order pairs runs of operand dimensions with runs of result dimensions of the same number of elements. A
    run that holds a dynamic operand dimension must have one dynamic result dimension, whose extent is what is left
    over; the declared result says which.
    """
    before, after = flags(source), flags(result)
    for inputs, outputs in _runs(source.dimensions, result.dimensions):
        dynamic = [axis for axis in outputs if after[axis]]
        if any(before[axis] for axis in inputs):
            require(
                len(dynamic) == 1 or all(source.dimensions[axis] <= 1 for axis in inputs),
                f"a reshape of a dynamic dimension must leave one dynamic dimension to take up its extent, but the "
                f"operand is {source} and the result {result}",
            )
        else:
            require(
                not dynamic,
                f"a reshape of static dimensions is static, but the operand is {source} and the result {result}",
            )
    return after


def reshaped_extents(extents: Sequence[int], source: ArrayShape, result: ArrayShape) -> tuple[int, ...]:
    """The runtime extents of a reshape's result; EvaluationError where the operand's do not allow any."""
    sizes = list(result.dimensions)
    after = flags(result)
    for inputs, outputs in _runs(source.dimensions, result.dimensions):
        count = prod(extents[axis] for axis in inputs)
        dynamic = [axis for axis in outputs if after[axis]]
        fixed = prod(sizes[axis] for axis in outputs if not after[axis])
        if len(dynamic) == 1 and fixed:
            sizes[dynamic[0]] = count // fixed
        if prod(sizes[axis] for axis in outputs) != count:
            raise EvaluationError(
                f"a reshape from {source} to {result} got an operand with extents {list(extents)}, whose elements do "
                "not fill any extents of the result"
            )
    return tuple(sizes)


def reshapes_all_extents(source: ArrayShape, result: ArrayShape) -> bool:
    """Whether a reshape's result has extents for all that the operand may have."""
    if not source.dynamic_dimensions:
        return True
    before, after = flags(source), flags(result)
    for inputs, outputs in _runs(source.dimensions, result.dimensions):
        if any(before[axis] for axis in inputs):
            kept = prod(source.dimensions[axis] for axis in inputs if not before[axis])
            fixed = prod(result.dimensions[axis] for axis in outputs if not after[axis])
            if sum(after[axis] for axis in outputs) != 1 or not fixed or kept % fixed:
                return False
    return True


def _runs(inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of dimensions on either side that hold equally many elements, in order."""
    ends, result_ends = _ends(inputs), _ends(outputs)
    shared = sorted(ends.keys() & result_ends.keys()) if 0 not in (*inputs, *outputs) else []
    i = j = 0
    for product in shared:
        yield range(i, ends[product]), range(j, result_ends[product])
        i, j = ends[product], result_ends[product]
    if i < len(inputs) or j < len(outputs):
        yield range(i, len(inputs)), range(j, len(outputs))


def _ends(sizes: Sequence[int]) -> dict[int, int]:
    """How many leading dimensions hold so many elements; where several do, the most."""
    return {prod(sizes[:count]): count for count in range(len(sizes) + 1)}
