"""Block-scaled products: `__op$block_scaled_dot`, as JAX writes it, and the cuDNN call that XLA makes of it.

Every 32 (scales of f8e8m0fnu) or 16 (f8e4m3fn) neighbours along the contracted dimension, the last one, share a scale.
Source: XLA, block_scaling_rewriter.h; JAX, scaled_matmul_stablehlo.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.contraction.dot import DotAttributes
from hloexec.ops.contraction.scaled_dot import ScaledDot
from hloexec.ops.library_calls.backend_config import Fields, json_object, known_fields
from hloexec.ops.library_calls.shapes import CallResult, in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_BLOCKS = {"f8e8m0fnu": 32, "f8e4m3fn": 16}
"""How many elements share a scale of cuDNN's, by the scale's type."""
_ROWS, _COLUMNS = 128, 4
"""Rows and blocks of the tiles of cuDNN's scales."""


def _dimension_numbers(rank: int) -> DotAttributes:
    batch, last = tuple(range(rank - 2)), (rank - 1,)
    return DotAttributes(
        lhs_batch_dims=batch, lhs_contracting_dims=last, rhs_batch_dims=batch, rhs_contracting_dims=last
    )


def _check(instruction: Instruction) -> None:
    """The config only restates what shapes say; UnsupportedError where it says something else."""
    whole = Fields(json_object(instruction.backend_config or "{}"))
    names = ("lhs_batch_dimensions", "rhs_batch_dimensions")
    fields = whole.object("scaled_dot_backend_config", {})
    known_fields(fields.values, (*names, "dequantize_type"), "scaled_dot_backend_config")
    result = result_shapes(instruction.shape, "block_scaled_dot")[0]
    batch = tuple(range(result.rank - 2))
    for name in names:
        if name in fields.values and fields.whole_list(name) != batch:
            found = fields.values[name]
            raise UnsupportedError(f"its {name} are {found}, but must be {list(batch)} for a result of {result}")
    own = result.element_type
    if str(fields.values.get("dequantize_type", own.name)).lower() != own.name:
        raise UnsupportedError(f"its dequantize_type is {fields.values['dequantize_type']}, but its result has {own}")


def _product_shape(lhs: ArrayShape, rhs: ArrayShape, scales: Sequence[ArrayShape], result: ElementType) -> Shape:
    """The shape of the product, or ShapeError."""
    require(
        lhs.rank == rhs.rank and lhs.rank in (2, 3),
        f"the operands of a block-scaled product must have two or three dimensions, but are {lhs} and {rhs}",
    )
    for operand, scale in zip((lhs, rhs), scales, strict=True):
        require(
            scale.rank == operand.rank and scale.dimensions[:-1] == operand.dimensions[:-1],
            f"the scales {scale} of a block-scaled product must have the dimensions of {operand}, but for the last one",
        )
    return ScaledDot.infer(lhs, rhs, *scales, attributes=_dimension_numbers(lhs.rank), shape=ArrayShape(result))


@custom_call("__op$block_scaled_dot", config=_check)
class BlockScaledDot:
    """out[b, m, n] = sum over k of lhs[b, m, k] · lhs_scale[b, m, k/block] · rhs[b, n, k] · rhs_scale[b, n, k/block]

    Operands: lhs, rhs, lhs_scale and perhaps rhs_scale; b may be missing. The block is as long as the operand's last
    dimension over the scale's. Products add up in f32 and are rounded once. Source: XLA, block_scaling_rewriter.h.
    """

    @staticmethod
    def infer(*operands: Shape, shape: Shape) -> Shape:
        lhs, rhs, *scales = operand_shapes(operands, "block_scaled_dot", (3, 4))
        if len(scales) == 1:
            scales.append(ArrayShape(ELEMENT_TYPES["f32"], (*rhs.dimensions[:-1], 1)))
        return _product_shape(lhs, rhs, scales, array_shape(shape, "the result of block_scaled_dot").element_type)

    @staticmethod
    def evaluate(*operands: Array, shape: Shape, numerics: NumericsPolicy) -> Array:
        lhs, rhs, *scales = operands
        if len(scales) == 1:
            scales.append(np.ones((1,) * rhs.ndim, np.float32))
        declared = array_shape(shape, "the result of block_scaled_dot")
        return ScaledDot.evaluate(
            lhs, rhs, *scales, attributes=_dimension_numbers(lhs.ndim), shape=declared, numerics=numerics
        )


def _scale_dimensions(operand: ArrayShape, scale: ArrayShape) -> tuple[int, ...]:
    """Those of cuDNN's scales without padding, or ShapeError where the padded ones do not fit the operand."""
    block = _BLOCKS.get(scale.element_type.name)
    if block is None:
        raise ShapeError(f"the scales of __cudnn$blockScaledDot must be of {' or '.join(_BLOCKS)}, but are {scale}")
    require(
        operand.rank in (2, 3) and operand.dimensions[-1] % block == 0,
        f"an operand of __cudnn$blockScaledDot must have two or three dimensions, the last a multiple of {block} by "
        f"its scales' type, but is {operand}",
    )
    *batch, rows, depth = operand.dimensions
    plain = (*batch, rows, depth // block)
    padded = (*batch, -(-rows // _ROWS) * _ROWS, -(-plain[-1] // _COLUMNS) * _COLUMNS)
    require(
        scale.dimensions == padded,
        f"the scales of {operand} must be padded to {list(padded)}, tiles of {_ROWS} × {_COLUMNS}, but are {scale}",
    )
    return plain


def _unswizzled(scale: Array, sizes: tuple[int, ...]) -> Array:
    """The scales in order: a tile of 128 rows × 4 blocks lies as 32 × 4 × 4, of row = 32 · second + first."""
    *batch, rows, columns = scale.shape
    tiles = scale.reshape(-1, rows // _ROWS, columns // _COLUMNS, 32, 4, 4)
    plain = tiles.transpose(0, 1, 4, 3, 2, 5).reshape(*batch, rows, columns)
    return plain[(..., slice(sizes[-2]), slice(sizes[-1]))]


@custom_call("__cudnn$blockScaledDot", config=_check)
class CudnnBlockScaledDot:
    """The product that `__op$block_scaled_dot` is, of scales padded and shuffled for the tensor cores

    Scales of f8e8m0fnu cover 32 elements, those of f8e4m3fn 16. They are padded to tiles of 128 rows × 4 blocks, a tile
    of which lies in memory as [row mod 32, row / 32, block]. Results: the product and scratch memory (u8, zeros).
    Source: XLA, block_scaling_rewriter.cc (PrepareScalingOperand).
    """

    @staticmethod
    def infer(*operands: Shape, shape: Shape) -> Shape:
        lhs, rhs, *scales = operand_shapes(operands, "__cudnn$blockScaledDot", (4,))
        plain = [
            ArrayShape(scale.element_type, _scale_dimensions(operand, scale))
            for operand, scale in zip((lhs, rhs), scales, strict=True)
        ]
        result = result_shapes(shape, "blockScaledDot")[0].element_type
        return in_declared_form([_product_shape(lhs, rhs, plain, result)], shape)

    @staticmethod
    def evaluate(
        *operands: Array, shape: Shape, operand_shapes: Sequence[Shape], numerics: NumericsPolicy
    ) -> CallResult:
        lhs, rhs, *scales = operands
        shapes = [array_shape(operand, "an operand of blockScaledDot") for operand in operand_shapes]
        plain = [
            _unswizzled(scale, _scale_dimensions(operand, of_scale))
            for scale, operand, of_scale in zip(scales, shapes[:2], shapes[2:], strict=True)
        ]
        declared = result_shapes(shape, "blockScaledDot")[0]
        value = ScaledDot.evaluate(
            lhs, rhs, *plain, attributes=_dimension_numbers(lhs.ndim), shape=declared, numerics=numerics
        )
        return with_scratch([value], shape)
