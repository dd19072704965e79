"""map: a computation of scalars, applied to the elements at each position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, in_type, require, same_dimensions
from hloexec.ops.movement.extents import cut_to_common_extents
from hloexec.ops.probes import REDUCER, Probe
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.relations import pointwise
from hloexec.ops.rounding import Rounding
from hloexec.ops.signatures import as_parameters, require_parameters


@frozen
class MapAttributes:
    """All dimensions in order (the text may leave them out), and the computation."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("map", operands=(0, ANY), attributes=MapAttributes, rounding=Rounding.NONE)
class Map:
    """out[i...] = computation(operand 0[i...], operand 1[i...], …)   (XLA: Map)"""

    probe = Probe("T[2] map(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[2]"), REDUCER)

    relate = staticmethod(pointwise)

    @staticmethod
    def infer(*operands: Shape, attributes: MapAttributes, computations: Sequence[ProgramShape]) -> Shape:
        require(len(operands) > 0, "map must have at least one operand")
        arrays = [array_shape(operand, f"operand {number} of map") for number, operand in enumerate(operands)]
        (program,) = computations
        require_parameters(program, [ArrayShape(array.element_type) for array in arrays], "the computation of map")
        result = arrays[0]
        for array in arrays:
            result = same_dimensions(result, array, "the operands of map")
        require(
            attributes.dimensions in ((), tuple(range(result.rank))),
            f"map must name all {result.rank} dimensions in order, but names {list(attributes.dimensions)}",
        )
        value = array_shape(program.result, "the result of the computation of map")
        require(value.rank == 0, f"the computation of map must return a scalar, but returns {value}")
        return result.with_element_type(value.element_type)

    @staticmethod
    def evaluate(
        *operands: Array, shape: ArrayShape, operand_shapes: Sequence[ArrayShape], computations: Sequence[Callee]
    ) -> Array:
        (callee,) = computations
        operands = tuple(cut_to_common_extents(operands, operand_shapes))
        if operands[0].size == 0:
            return np.empty(operands[0].shape, shape.element_type.storage)
        return in_type(callee(*as_parameters(operands, callee.computation)), shape.element_type)
