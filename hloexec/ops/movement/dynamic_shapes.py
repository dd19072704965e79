"""Dimensions whose size is known only at run time, in shape rules and in kernels.

A bounded-dynamic value is an array of its runtime extents; its declared shape is only an upper bound. Kernels that take
sizes from their arrays need nothing from here. The others cut static operands to the extents of dynamic ones, pad an
array with zeros to its bound, or compute the extents of the result of a reshape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, require, shape_of
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.registry import ANY, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.traits import Probe


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


def completed(array: Array, sizes: Dimensions) -> Array:
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


def reshaped_extents(extents: Sequence[int], source: ArrayShape, result: ArrayShape) -> Dimensions:
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


_S32 = ELEMENT_TYPES["s32"]


@frozen
class DimensionSizeAttributes:
    """The dimension that is asked for or set."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")


@opcode("get-dimension-size", operands=1, attributes=DimensionSizeAttributes, any_order=True)
class GetDimensionSize:
    """out = the runtime extent of `dimension`, as an s32 scalar   (XLA: GetDimensionSize)"""

    probe = Probe("s32[] get-dimension-size(a0), dimensions={0}", ("T[2]",))

    @staticmethod
    def relate(use: Relating) -> None:
        """The result is the size itself, which follows."""

    @staticmethod
    def infer(operand: Shape, *, attributes: DimensionSizeAttributes) -> ArrayShape:
        _require_dimension("get-dimension-size", array_shape(operand, "the operand of get-dimension-size"), attributes)
        return ArrayShape(_S32)

    @staticmethod
    def evaluate(operand: Array, *, attributes: DimensionSizeAttributes) -> Array:
        return np.array(operand.shape[attributes.dimension], np.int32)


@opcode(
    "set-dimension-size",
    operands=2,
    attributes=DimensionSizeAttributes,
    any_order=True,
    moves=(0,),
    fills=True,
    in_place=True,
)
class SetDimensionSize:
    """out = the operand with `dimension` cut to an s32 size, or enlarged to it with zeros   (XLA: SetDimensionSize)"""

    layout_of = (0,)
    probe = Probe("T[<=2] set-dimension-size(a0, a1), dimensions={0}", ("T[2]", "s32[]"))

    @staticmethod
    def demands(use: Use) -> Demanded:
        bound = use.shapes[0].dimensions[use.attributes.dimension]
        is_dynamic = flags(use.shape)[use.attributes.dimension]
        yield 1, Demand(0 if is_dynamic else bound, bound)

    @staticmethod
    def demands_for(use: Use, demand: Demand) -> Demanded:
        """A size that is to be the largest is the bound."""
        if demand.is_whole:
            bound = use.shapes[0].dimensions[use.attributes.dimension]
            yield 1, Demand(bound, bound)

    @staticmethod
    def relate(use: Relating) -> None:
        use.same(use.operands[0].axes, use.result.axes)
        use.keep([use.result.axes[use.attributes.dimension]], "its runtime extent is computed")

    @staticmethod
    def infer(operand: Shape, size: Shape, *, attributes: DimensionSizeAttributes, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of set-dimension-size")
        _require_dimension("set-dimension-size", source, attributes)
        _require_size("set-dimension-size", size)
        dynamic = list(flags(source))
        # A size that is known to be the bound leaves the dimension static: the declared shape says so.
        declared = array_shape(shape, "the result of set-dimension-size")
        dynamic[attributes.dimension] = declared.rank != source.rank or flags(declared)[attributes.dimension]
        return shape_of(source.element_type, source.dimensions, tuple(dynamic))

    @staticmethod
    def evaluate(
        operand: Array,
        size: Array,
        *,
        attributes: DimensionSizeAttributes,
        operand_shapes: ArrayShapes,
        shape: ArrayShape,
    ) -> Array:
        axis, extent = attributes.dimension, int(size)
        bound = operand_shapes[0].dimensions[axis]
        if not 0 <= extent <= bound:
            raise EvaluationError(
                f"set-dimension-size sets dimension {axis} to {extent}, but it must lie between 0 and the bound {bound}"
            )
        if extent != bound and not flags(shape)[axis]:
            raise EvaluationError(
                f"set-dimension-size sets dimension {axis} to {extent}, but in its shape {shape} that is not "
                f"dynamic, as <={bound} would be"
            )
        sizes = (*operand.shape[:axis], extent, *operand.shape[axis + 1 :])
        return completed(part(operand, map(slice, sizes)), sizes)


@opcode("dynamic-reshape", operands=(1, ANY), any_order=True, moves=(0,))
class DynamicReshape:
    """The operand's elements in row-major order, in dimensions of the given s32 sizes   (XLA: DynamicReshape)"""

    states_shape = True
    probe = Probe("T[2] dynamic-reshape(a0, a1)", ("T[2]", "s32[]"))

    @staticmethod
    def demands(use: Use) -> Demanded:
        """With the bounds for sizes, there are as many elements as there can be. The operand must have them all, unless
        its own sizes are used."""
        if any(bounds.is_parameter for bounds in use.bounds[1:]):
            yield 0, Demand(is_whole=True)
        for number, bound in enumerate(use.shape.dimensions, 1):
            yield number, Demand(bound, bound)

    @staticmethod
    def relate(use: Relating) -> None:
        use.keep_all("its runtime extents are computed")

    @staticmethod
    def infer(operand: Shape, *sizes: Shape, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of dynamic-reshape")
        result = array_shape(shape, "the result of dynamic-reshape")
        for size in sizes:
            _require_size("dynamic-reshape", size)
        require(
            len(sizes) == result.rank,
            f"dynamic-reshape must have one size per dimension of its result {result}, but has {len(sizes)}",
        )
        require(
            source.element_count == result.element_count,
            f"dynamic-reshape must keep the number of elements, but the operand {source} has {source.element_count} "
            f"and the result {result} has {result.element_count}",
        )
        return shape_of(source.element_type, result.dimensions, flags(result))

    @staticmethod
    def evaluate(operand: Array, *sizes: Array, shape: ArrayShape) -> Array:
        extents = [
            int(size) if dynamic else bound
            for size, bound, dynamic in zip(sizes, shape.dimensions, flags(shape), strict=True)
        ]
        if any(not 0 <= extent <= bound for extent, bound in zip(extents, shape.dimensions, strict=True)):
            raise EvaluationError(f"dynamic-reshape got the sizes {extents}, which exceed the bounds of {shape}")
        if prod(extents) != operand.size:
            raise EvaluationError(
                f"dynamic-reshape got the sizes {extents} for an operand with extents {list(operand.shape)}: the "
                "number of elements must agree"
            )
        return operand.reshape(extents)


def _require_dimension(name: str, operand: ArrayShape, attributes: DimensionSizeAttributes) -> None:
    dimension = attributes.dimension
    require(0 <= dimension < operand.rank, f"{name}'s dimension {dimension} is not one of its operand {operand}")
    require(
        operand.dimensions[dimension] <= np.iinfo(np.int32).max,
        f"{name} counts in s32, but dimension {dimension} of its operand {operand} is larger",
    )


def _require_size(name: str, size: Shape) -> None:
    size_shape = array_shape(size, f"a size operand of {name}")
    require(
        size_shape.element_type is _S32 and size_shape.rank == 0,
        f"a size operand of {name} must be an s32 scalar, but is {size_shape}",
    )
