"""scaled-dot: a dot of operands in blocks, each block with a scale of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, higher_precision, require, widen
from hloexec.ops.contraction.dot import DotAttributes, contract, contraction_shape, relate_contraction
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating


@opcode("scaled-dot", operands=4, attributes=DotAttributes, flushes_denormals=True)
class ScaledDot:
    """dot(lhs · lhs_scale, rhs · rhs_scale), each scale's element covering a block of its operand.

    Along every dimension the size of a scale divides that of its operand, and the quotient is the length of a block.
    The scaled operands are f32, exactly so for the 4- and 8-bit types with power-of-two scales. XLA: ScaledDot.
    """

    probe = Probe(
        "f32[2,2] scaled-dot(a0, a1, a2, a3), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ("T[2,4]", "T[4,2]", "f8e8m0fnu[2,2]", "f8e8m0fnu[2,2]"),
    )

    @staticmethod
    def unstated(lhs: Shape, rhs: Shape, lhs_scale: Shape, rhs_scale: Shape, *, attributes: DotAttributes) -> Shape:
        """XLA's parser takes the third operand for the right one."""
        first, third = array_shape(lhs, "lhs of scaled-dot"), array_shape(lhs_scale, "the scale of lhs of scaled-dot")
        return contraction_shape(first, third, attributes, higher_precision(first.element_type, third.element_type))

    @staticmethod
    def relate(use: Relating) -> None:
        lhs, rhs, *scales = (operand.axes for operand in use.operands)
        relate_contraction(use, use.attributes, lhs, rhs, use.result.axes)
        for operand, scale in zip((lhs, rhs), scales, strict=True):
            for whole, blocks in zip(operand, scale, strict=True):
                use.multiple(whole, blocks)

    @staticmethod
    def infer(
        lhs: Shape, rhs: Shape, lhs_scale: Shape, rhs_scale: Shape, *, attributes: DotAttributes, shape: Shape
    ) -> Shape:
        result = array_shape(shape, "the result of scaled-dot")
        operands = array_shape(lhs, "lhs of scaled-dot"), array_shape(rhs, "rhs of scaled-dot")
        for name, operand, scale in zip(("lhs", "rhs"), operands, (lhs_scale, rhs_scale), strict=True):
            block = array_shape(scale, f"the scale of {name} of scaled-dot")
            require(
                operand.element_type.is_floating and block.element_type.is_floating,
                f"scaled-dot takes floating-point operands and scales, but {name} is {operand}, its scale {block}",
            )
            require(
                block.rank == operand.rank
                and all(
                    size == length or (length > 0 and size % length == 0)
                    for size, length in zip(operand.dimensions, block.dimensions, strict=True)
                ),
                f"the dimensions of the scale {block} must divide those of {name}, which is {operand}",
            )
        return contraction_shape(*operands, attributes, result.element_type)

    @staticmethod
    def evaluate(
        lhs: Array,
        rhs: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        *,
        attributes: DotAttributes,
        shape: ArrayShape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        dtype = np.float64 if numerics.is_exact else np.float32
        operands = _scaled(lhs, lhs_scale, dtype), _scaled(rhs, rhs_scale, dtype)
        return contract(*operands, attributes, shape.element_type, numerics=numerics)


def _scaled(operand: Array, scale: Array, dtype: type[np.floating[Any]]) -> Array:
    """The operand times its scale, each element of which covers a block, in f32 or (exactly) in f64."""
    wide = widen(scale)
    for dimension, (size, length) in enumerate(zip(operand.shape, scale.shape, strict=True)):
        if length not in (1, size):
            wide = np.repeat(wide, size // length, dimension)
    with np.errstate(all="ignore"):
        return np.multiply(widen(operand), wide, dtype=dtype)
