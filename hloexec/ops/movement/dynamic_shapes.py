"""Dimensions whose size is known only at run time: get-dimension-size, set-dimension-size, dynamic-reshape.

A bounded-dynamic value is an array of its runtime extents; its declared shape gives the bounds.
"""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, require, shape_of
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.movement.extents import completed, part
from hloexec.ops.probes import Probe
from hloexec.ops.registry import ANY, opcode
from hloexec.ops.relations import Relating

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
        operand_shapes: tuple[ArrayShape, ...],
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
    found = array_shape(size, f"a size operand of {name}")
    require(
        found.element_type is _S32 and found.rank == 0,
        f"a size operand of {name} must be an s32 scalar, but is {found}",
    )
