"""cuDNN's layer normalization, and block-scaled products.

cuDNN's layer normalization, forward and backward.

XLA:GPU reshapes the operand to [n, d...]: each of the n parts is normalized over all of its elements, and scale and
bias are [1, d...]. Source: XLA, cudnn_norm_rewriter.h, CudnnNormBackendConfig.

Block-scaled products: `__op$block_scaled_dot`, as JAX writes it, and the cuDNN call that XLA makes of it.

Every 32 (scales of f8e8m0fnu) or 16 (f8e4m3fn) neighbours along the contracted dimension, the last one, share a scale.
Source: XLA, block_scaling_rewriter.h; JAX, scaled_matmul_stablehlo.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, operand_shapes, require, widen
from hloexec.ops.contraction.blocked_dot import ScaledDot
from hloexec.ops.contraction.dot import dot_of
from hloexec.ops.library_calls.configs import (
    CallResult,
    Fields,
    in_declared_form,
    json_object,
    known_fields,
    read_fields,
    require_floating,
    result_shapes,
    with_scratch,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_KINDS = ("LAYER_FWD_INFER", "LAYER_FWD_TRAIN", "LAYER_BWD")


@frozen
class _Config:
    is_backward: bool
    epsilon: float


def _config(instruction: Instruction) -> _Config:
    """Of the fields, `algorithm` chooses among kernels, which is rounding."""
    fields = read_fields(instruction, "cudnn_norm_backend_config", ("epsilon", "algorithm", "kind"))
    return _Config(fields.word("kind", _KINDS) == "LAYER_BWD", fields.number("epsilon"))


@custom_call("__cudnn$norm", config=_config, is_reproducible=True)
class Norm:
    """y = (x − μ) · r · scale + bias, where r = 1 / √(variance + ε), over all but the first dimension, or its gradients

    By the config's kind. Forward (LAYER_FWD_INFER, LAYER_FWD_TRAIN): x [n, d...], scale and bias [1, d...] give y and,
    for training, μ and r [n, 1...]; the variance is the mean squared deviation. Backward (LAYER_BWD): x, scale, dy, μ
    and r give dx = r · (g − mean g − z · mean(g · z)), where g = dy · scale and z = (x − μ) · r, then dscale = Σ dy · z
    and dbias = Σ dy over n. All is computed in f32 and each result rounded once. Scratch memory (u8, zeros) comes last.
    Source: XLA, cudnn_norm_rewriter.cc; cuDNN, normalization.
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        is_backward = config.is_backward
        arrays = operand_shapes(operands, "a normalization of this kind", (5 if is_backward else 3,))
        require_floating(arrays, "norm")
        x, *others = arrays
        require(x.rank > 0, f"what is normalized must have dimensions, but is {x}")
        per_part, once = (x.dimensions[0], *(1,) * (x.rank - 1)), (1, *x.dimensions[1:])
        wanted = {"scale": once, "bias": once}
        if is_backward:
            wanted = {"scale": once, "dy": x.dimensions, "expectation": per_part, "norm factor": per_part}
        for other, (name, dimensions) in zip(others, wanted.items(), strict=True):
            require(
                other.dimensions == dimensions,
                f"the {name} of the normalization of {x} must have dimensions {list(dimensions)}, but is {other}",
            )
        declared = result_shapes(shape, "norm")
        count = _result_count(is_backward, declared)
        if len(declared) < count or not isinstance(shape, TupleShape):
            raise ShapeError(f"the normalization has {count} results by its kind, but is declared as {shape}")
        sizes = (x.dimensions, once, once) if is_backward else (x.dimensions, per_part, per_part)
        results = zip(declared[:count], sizes, strict=False)
        return in_declared_form([ArrayShape(leaf.element_type, dimensions) for leaf, dimensions in results], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        dtype = np.dtype(np.float64) if numerics.is_exact else np.result_type(np.float32, widen(operands[0]).dtype)
        wide = [widen(operand).astype(dtype, copy=False) for operand in operands]
        results = _gradients(wide) if config.is_backward else _normalized(wide, dtype.type(config.epsilon))
        declared = result_shapes(shape, "norm")
        pairs = zip(results, declared[: _result_count(config.is_backward, declared)], strict=False)
        return with_scratch([narrow(np.asarray(value), leaf.element_type) for value, leaf in pairs], shape)


def _result_count(is_backward: bool, declared: Sequence[ArrayShape]) -> int:
    """How many results precede the scratch memory; μ and r are there where the call declares room for them.

    Older dumps have no kind, and tell training from inference by that alone.
    """
    return 3 if is_backward or len(declared) > 2 else 1


def _normalized(operands: Sequence[Array], epsilon: object) -> list[Array]:
    x, scale, bias = operands
    axes = tuple(range(1, x.ndim))
    expectation = x.mean(axes, keepdims=True)
    deviation = x - expectation
    factor = 1 / np.sqrt(np.square(deviation).mean(axes, keepdims=True) + epsilon)
    return [deviation * factor * scale + bias, expectation, factor]


def _gradients(operands: Sequence[Array]) -> list[Array]:
    x, scale, gradient, expectation, factor = operands
    axes = tuple(range(1, x.ndim))
    normalized = (x - expectation) * factor
    scaled = gradient * scale
    inner = scaled - scaled.mean(axes, keepdims=True) - normalized * (scaled * normalized).mean(axes, keepdims=True)
    return [factor * inner, (gradient * normalized).sum(0, keepdims=True), gradient.sum(0, keepdims=True)]


_BLOCKS = {"f8e8m0fnu": 32, "f8e4m3fn": 16}
"""How many elements share a scale of cuDNN's, by the scale's type."""
_ROWS, _COLUMNS = 128, 4
"""Rows and blocks of the tiles of cuDNN's scales."""


_DOTS = {2: dot_of("mk,nk->mn"), 3: dot_of("bmk,bnk->bmn")}
"""By the rank of the operands."""


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
            stated = fields.values[name]
            raise UnsupportedError(f"its {name} are {stated}, but must be {list(batch)} for a result of {result}")
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
    return ScaledDot.infer(lhs, rhs, *scales, attributes=_DOTS[lhs.rank], shape=ArrayShape(result))


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
        return ScaledDot.evaluate(lhs, rhs, *scales, attributes=_DOTS[lhs.ndim], shape=declared, numerics=numerics)


def _scale_dimensions(operand: ArrayShape, scale: ArrayShape) -> Dimensions:
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


def _unswizzled(scale: Array, sizes: Dimensions) -> Array:
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
        value = ScaledDot.evaluate(lhs, rhs, *plain, attributes=_DOTS[lhs.ndim], shape=declared, numerics=numerics)
        return with_scratch([value], shape)
