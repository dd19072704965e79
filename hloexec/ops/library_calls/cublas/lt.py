"""cuBLASLt: products of eight-bit floats, scaled as a whole ($f8) or by blocks ($mx), and products of groups of rows.

Source: XLA, GemmRewriter, BlockScalingRewriter and GroupedGemmBackendConfig; cuBLAS, cublasLtMatmul (narrow precision
data types); hipBLASLt, grouped matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.contraction.dot import Dot, contraction_shape
from hloexec.ops.contraction.ragged_dot import RaggedDot, RaggedDotAttributes
from hloexec.ops.contraction.scaled_dot import ScaledDot
from hloexec.ops.library_calls.backend_config import Fields, backend_config_field, known_fields
from hloexec.ops.library_calls.cublas.config import GEMM_FIELDS, GemmConfig, gemm_config, read_gemm_config
from hloexec.ops.library_calls.cublas.epilogue import accumulation_type, apply_epilogue, check_addends
from hloexec.ops.library_calls.cublas.matmul import Gemm, Product, require_real, result_type_of
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
    operand_shapes,
    result_shapes,
    saturating,
    with_scratch,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call


def _config(instruction: Instruction, modes: Sequence[int]) -> GemmConfig:
    """The config of a call whose scale_mode is one of `modes`, or UnsupportedError."""
    config = gemm_config(instruction.backend_config)
    if config.scale_mode not in modes:
        raise UnsupportedError(f"its scale_mode is {config.scale_mode}, but must be {' or '.join(map(str, modes))}")
    require_real(config, instruction.shape)
    return config


def _scaled_config(instruction: Instruction) -> GemmConfig:
    config = _config(instruction, (0, 1))
    if config.epilogue.has_auxiliary:
        raise UnsupportedError("it has an auxiliary result, which XLA does not use in products of eight bits")
    return config


def _block_scaled_config(instruction: Instruction) -> GemmConfig:
    config = _config(instruction, (0, 2))
    if config.beta or config.epilogue.has_bias or config.epilogue.has_auxiliary or config.has_largest:
        raise UnsupportedError(
            "it has beta, a bias, an auxiliary result or damax_output, and so no place for the scales of blocks"
        )
    return config


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


@custom_call("__cublas$lt$matmul$f8", config=_scaled_config, is_reproducible=True)
class ScaledGemm(Product):
    """D = scale_d · activation(alpha · scale_a · scale_b · lhs · rhs + beta · scale_c · C + bias), rounded once

    Everything before the rounding is done in f32. An eight-bit D saturates at its largest number. Operands: lhs, rhs, C
    where beta is not 0, scale_a and scale_b (f32 scalars), then the bias where the epilogue has one and scale_d where
    there is one; older versions have scale_c and scale_d before the bias. Results: D, its largest magnitude before
    scale_d (f32[]) where `damax_output`, a workspace. Source: XLA, GemmRewriter; cuBLAS, cublasLtMatmul.
    """

    relate, resize = staticmethod(Gemm.relate), staticmethod(Gemm.resize)

    @staticmethod
    def infer(*operands: Shape, config: GemmConfig, shape: Shape) -> Shape:
        arrays = operand_shapes(operands, "the gemm")
        biases, _ = _biases_and_scales([array.rank for array in arrays], config)
        declared = result_shapes(shape, "the gemm", 1 + config.has_largest)[0]
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared.element_type)
        check_addends([*arrays[2 : 2 + (config.beta != 0)], *(arrays[number] for number in biases)], result, config)
        return in_declared_form([result, *[ArrayShape(element_type("f32"))] * config.has_largest], shape)

    @staticmethod
    def evaluate(*operands: Array, config: GemmConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
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


@custom_call("__cublas$lt$matmul$mx", config=_block_scaled_config, is_reproducible=True)
class BlockScaledGemm(Product):
    """D = activation(alpha · (lhs · lhs_scale) · (rhs · rhs_scale)), where a scale's element covers a block

    Operands: lhs, rhs and their scales (f8e8m0fnu), which are as long along the contracting dimension as there are
    blocks of 32 in it. Results: D and a workspace. Everything before the one rounding is done in f32, an eight-bit
    D saturates. Source: XLA, BlockScalingRewriter; hipBLASLt, scaled matrix products.
    """

    @staticmethod
    def infer(*operands: Shape, config: GemmConfig, shape: Shape) -> Shape:
        arrays = operand_shapes(operands, "the block-scaled gemm", (4,))
        numbers, declared = config.dimension_numbers, result_shapes(shape, "the gemm")[0]
        return in_declared_form([ScaledDot.infer(*arrays, attributes=numbers, shape=declared)], shape)

    @staticmethod
    def evaluate(*operands: Array, config: GemmConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        declared = result_shapes(shape, "the gemm")[0]
        wide = declared.with_element_type(element_type("f32"))
        product = ScaledDot.evaluate(*operands, attributes=config.dimension_numbers, shape=wide, numerics=numerics)
        value = apply_epilogue(product, config, None, None, numerics)[0]
        return with_scratch([saturating(value, declared.element_type)], shape)


def _grouped_config(instruction: Instruction) -> tuple[GemmConfig, RaggedDotAttributes]:
    parts = ("gemm_backend_config", "ragged_dot_dimension_numbers")
    whole = backend_config_field(instruction.backend_config, "grouped_gemm_backend_config")
    gemm, ragged = map(Fields(whole).object, parts)
    known_fields(whole, parts)
    # Both hold the dimension numbers; those of the ragged dot are the ones that it is made from.
    numbers = ragged.object("dot_dimension_numbers")
    config = read_gemm_config(known_fields({**gemm.values, "dot_dimension_numbers": numbers.values}, GEMM_FIELDS))
    if config.epilogue.has_bias or config.epilogue.has_auxiliary:
        raise UnsupportedError("it has a bias or an auxiliary result (epilogue), whose shape with groups is not public")
    if config.has_largest or config.scale_mode or config.dimension_numbers.algorithm != "unset":
        raise UnsupportedError("it has damax_output, scale_mode or an algorithm, which belong to plain products")
    require_real(config, instruction.shape)
    dot = config.dimension_numbers
    return config, RaggedDotAttributes(
        lhs_batch_dims=dot.lhs_batch_dims,
        lhs_contracting_dims=dot.lhs_contracting_dims,
        rhs_batch_dims=dot.rhs_batch_dims,
        rhs_contracting_dims=dot.rhs_contracting_dims,
        lhs_ragged_dims=ragged.whole_list("lhs_ragged_dimensions"),
        rhs_group_dims=ragged.whole_list("rhs_group_dimensions"),
        operand_precision=dot.operand_precision,
    )


@custom_call("__cublas$lt$groupedMatmul", config=_grouped_config, is_reproducible=True)
class GroupedGemm:
    """D = activation(alpha · ragged-dot(lhs, rhs, group_sizes) + beta · C), rounded once

    Operands: lhs, rhs, the group sizes, and C where beta is not 0. Results: D and a workspace. Rows after the last
    group give 0 before alpha. Source: XLA, GroupedGemmBackendConfig; the instruction ragged-dot.
    """

    @staticmethod
    def infer(*operands: Shape, config: tuple[GemmConfig, RaggedDotAttributes], shape: Shape) -> Shape:
        gemm, attributes = config
        arrays = operand_shapes(operands, "the grouped gemm of this backend_config", (3 + (gemm.beta != 0),))
        declared = result_shapes(shape, "the grouped gemm")[0]
        product = array_shape(RaggedDot.infer(*arrays[:3], attributes=attributes, shape=declared), "the product")
        check_addends(arrays[3:], product, gemm)
        return in_declared_form([product], shape)

    @staticmethod
    def evaluate(
        *operands: Array, config: tuple[GemmConfig, RaggedDotAttributes], shape: Shape, numerics: NumericsPolicy
    ) -> CallResult:
        gemm, attributes = config
        declared = result_shapes(shape, "the grouped gemm")[0]
        result_type = declared.element_type
        wide = result_type if gemm.is_plain else accumulation_type(operands, result_type, numerics)
        product = RaggedDot.evaluate(
            *operands[:3], attributes=attributes, shape=declared.with_element_type(wide), numerics=numerics
        )
        if not gemm.is_plain:
            addend = operands[3] if gemm.beta else None
            product = narrow(apply_epilogue(product, gemm, addend, None, numerics)[0], result_type)
        return with_scratch([product], shape)
