"""cuBLASLt: products of eight-bit floats, scaled as a whole ($f8) or block by block ($mx).

Source: XLA, GemmRewriter and BlockScalingRewriter; cuBLAS, cublasLtMatmul (narrow precision data types).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.custom_calls.backend_config import refused_by
from hloexec.custom_calls.cublas.matmul import (
    GemmConfig,
    Product,
    apply_epilogue,
    check_addends,
    gemm_config,
    require_real,
    result_type_of,
)
from hloexec.custom_calls.registry import custom_call
from hloexec.custom_calls.rounding import saturating
from hloexec.custom_calls.shapes import in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.dtypes import element_type
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape
from hloexec.ops.common import widen
from hloexec.ops.contraction.dot import Dot, ScaledDot, contraction_shape
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__ = ["BlockScaledGemm", "ScaledGemm"]


def _config(instruction: Instruction, modes: Sequence[int]) -> GemmConfig:
    """The config of a call whose scale_mode is one of `modes`, or UnsupportedError."""
    config = gemm_config(instruction.backend_config)
    if config.scale_mode not in modes:
        raise UnsupportedError(f"its scale_mode is {config.scale_mode}, but must be {' or '.join(map(str, modes))}")
    require_real(config, instruction.shape)
    return config


def _check_scaled(instruction: Instruction) -> None:
    if _config(instruction, (0, 1)).epilogue.has_auxiliary:
        raise UnsupportedError("it has an auxiliary result, which XLA does not use in products of eight bits")


def _check_block_scaled(instruction: Instruction) -> None:
    config = _config(instruction, (0, 2))
    if config.beta or config.epilogue.has_bias or config.epilogue.has_auxiliary or config.has_largest:
        raise UnsupportedError(
            "it has beta, a bias, an auxiliary result or damax_output, and so no place for the scales of blocks"
        )


def _biases_and_scales(ranks: Sequence[int], config: GemmConfig) -> tuple[list[int], list[int]]:
    """Which operands are the bias, if there is one, and the scales, which are scalars; ShapeError for others.

    Those of lhs and rhs come first, and that of the result last. Older versions have that of the addend before it, and
    the bias behind all four of them, newer ones before the result's.
    """
    first = 2 + (config.beta != 0)
    biases = [number for number in range(first, len(ranks)) if ranks[number] > 0]
    scales = [number for number in range(first, len(ranks)) if ranks[number] == 0]
    if len(ranks) < first or len(biases) != config.epilogue.has_bias or not 2 <= len(scales) <= 4:
        raise ShapeError(
            f"the gemm must have {first} matrices, two to four scales (scalars) and "
            f"{'a' if config.epilogue.has_bias else 'no'} bias by its backend_config, but has operands of ranks "
            f"{list(ranks)}"
        )
    return biases, scales


@custom_call("__cublas$lt$matmul$f8", is_reproducible=True)
class ScaledGemm(Product):
    """D = scale_d · activation(alpha · scale_a · scale_b · lhs · rhs + beta · scale_c · C + bias), rounded once

    Everything before the rounding is done in f32. An eight-bit D saturates at its largest number. Operands: lhs, rhs, C
    where beta is not 0, scale_a and scale_b (f32 scalars), then the bias where the epilogue has one and scale_d where
    there is one; older versions have scale_c and scale_d before the bias. Results: D, its largest magnitude before
    scale_d (f32[]) where `damax_output`, a workspace. Source: XLA, GemmRewriter; cuBLAS, cublasLtMatmul.
    """

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config = gemm_config(backend_config)
        arrays = operand_shapes(operands, "the gemm")
        biases, _ = _biases_and_scales([array.rank for array in arrays], config)
        declared = result_shapes(shape, "the gemm", 1 + config.has_largest)[0]
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared.element_type)
        check_addends([*arrays[2 : 2 + (config.beta != 0)], *(arrays[number] for number in biases)], result, config)
        return in_declared_form([result, *[ArrayShape(element_type("f32"))] * config.has_largest], shape)

    supports = refused_by(_check_scaled)

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config = gemm_config(backend_config)
        biases, scales = _biases_and_scales([operand.ndim for operand in operands], config)
        lhs_scale, rhs_scale, *others = (widen(operands[number]) for number in scales)
        numbers, f32 = config.dimension_numbers, ArrayShape(element_type("f32"))
        product = Dot.evaluate(*operands[:2], attributes=numbers, shape=f32, numerics=numerics)
        with np.errstate(all="ignore"):
            product = product * (lhs_scale * rhs_scale)
            addend = widen(operands[2]) if config.beta else None
            if addend is not None and len(others) == 2:
                addend = addend * others[0]
            bias = operands[biases[0]] if biases else None
            value = apply_epilogue(np.asarray(product, np.float32), config, addend, bias, numerics)[0]
            largest = np.abs(value).max(initial=0)
            if others:
                value = value * others[-1]
        results = [saturating(np.asarray(value, np.float32), result_type_of(shape))]
        results += [np.asarray(largest, np.float32)] * config.has_largest
        return with_scratch(results, shape)


@custom_call("__cublas$lt$matmul$mx", is_reproducible=True)
class BlockScaledGemm(Product):
    """D = activation(alpha · (lhs · lhs_scale) · (rhs · rhs_scale)), where a scale's element covers a block

    Operands: lhs, rhs and their scales (f8e8m0fnu), which are as long along the contracting dimension as there are
    blocks of 32 in it. Results: D and a workspace. Everything before the one rounding is done in f32, an eight-bit
    D saturates. Source: XLA, BlockScalingRewriter; hipBLASLt, scaled matrix products.
    """

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        arrays = operand_shapes(operands, "the block-scaled gemm", (4,))
        numbers, declared = gemm_config(backend_config).dimension_numbers, result_shapes(shape, "the gemm")[0]
        return in_declared_form([ScaledDot.infer(*arrays, attributes=numbers, shape=declared)], shape)

    supports = refused_by(_check_block_scaled)

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config, declared = gemm_config(backend_config), result_shapes(shape, "the gemm")[0]
        wide = declared.with_element_type(element_type("f32"))
        product = ScaledDot.evaluate(*operands, attributes=config.dimension_numbers, shape=wide, numerics=numerics)
        value = apply_epilogue(product, config, None, None, numerics)[0]
        return with_scratch([saturating(value, declared.element_type)], shape)
