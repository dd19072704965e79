"""cuBLAS and cuBLASLt: matrix products with a scaled addend, a bias and an activation.

XLA:GPU's gemm rewriter replaces a dot and surrounding instructions by these calls; on ROCm, rocBLAS and hipBLASLt have
the same targets. Operands and results are logical arrays here, so neither their layouts nor strides between batches
matter. Source: XLA, GemmBackendConfig; cuBLAS, cublasLtMatmul and cublasLtEpilogue_t.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, HloError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow
from hloexec.ops.contraction.dot import Dot, contraction_shape, product_size, relate_contraction
from hloexec.ops.library_calls.backend_config import backend_config_field
from hloexec.ops.library_calls.cublas.config import GemmConfig, gemm_config
from hloexec.ops.library_calls.cublas.epilogue import accumulation_type, apply_epilogue, check_addends
from hloexec.ops.library_calls.shapes import CallResult, in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, Resizing
from hloexec.ops.traits import ContractionSize


class Product:
    """What the entries of products have in common."""

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        """How much a call multiplies, where its config says over which dimensions."""
        try:
            numbers = backend_config_field(instruction.backend_config, "gemm_backend_config")["dot_dimension_numbers"]
            dimensions = [int(dimension) for dimension in numbers["lhs_contracting_dimensions"]]
        except (UnsupportedError, KeyError, TypeError, ValueError):
            return None
        return product_size(lhs, dimensions, result)


def _config(instruction: Instruction) -> GemmConfig:
    config = gemm_config(instruction.backend_config)
    if config.has_largest or config.scale_mode:
        raise UnsupportedError("it has damax_output or scale_mode, which belong to products of eight bits")
    return config


@custom_call(
    "__cublas$gemm",
    "__cublas$lt$matmul",
    config=_config,
    is_reproducible=True,
    fast_in="hloexec.ops.library_calls.cublas.fast.matmul",
)
class Gemm(Product):
    """D = activation(alpha · lhs · rhs + beta · C + bias), rounded once

    Operands: lhs, rhs, C where beta is not 0 (of the result's shape), the bias where the epilogue has one (of the shape
    of the result's last dimensions). Result: D, or a tuple of D, what the activation was applied to where the epilogue
    ends in _AUX, and a workspace (s8, zeros). Everything up to the rounding is done in the accumulation type: f32 for
    f32 and narrower, f64 under `exact`. Dimensions are those of a dot: batch, free of lhs, free of rhs. Source: XLA,
    GemmBackendConfig.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        """As a dot; what is added has the last dimensions of the product, and a workspace any size."""
        config: GemmConfig = use.config
        lhs, rhs, *others = (operand.axes for operand in use.operands)
        results = use.result.parts
        relate_contraction(use, config.dimension_numbers, lhs, rhs, results[0].axes)
        for axes in (*others, *(value.axes for value in results[1 : 1 + config.epilogue.has_auxiliary])):
            if axes:
                use.same(axes, results[0].axes[-len(axes) :])

    @staticmethod
    def resize(change: Resizing) -> str | None:
        """The config with the numbers of elements of one matrix of lhs and rhs as they are now."""
        config = change.backend_config
        if config is None:
            return None
        for name, number in (("lhs_stride", 0), ("rhs_stride", 1)):
            found = re.search(rf'"{name}":"?(\d+)', config)
            if found:
                stride = _resized_stride(int(found[1]), *change.sizes(number))
                config = f"{config[: found.start(1)]}{stride}{config[found.end(1) :]}"
        return config

    @staticmethod
    def infer(*operands: Shape, config: GemmConfig, shape: Shape) -> Shape:
        _require_count(operands, config, ShapeError)
        arrays = operand_shapes(operands, "the gemm")
        count = 1 + config.epilogue.has_auxiliary
        declared = result_shapes(shape, "the gemm", count)[:count]
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared[0].element_type)
        check_addends(arrays[2:], result, config)
        return in_declared_form([result.with_element_type(leaf.element_type) for leaf in declared], shape)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        config, result = _config(instruction), result_type_of(instruction.shape)
        if config.alpha.imag and not result.is_complex:
            return f"it scales a result of {result} by the complex number {config.alpha}"
        is_whole = config.alpha.real.is_integer() and config.beta.is_integer() and config.epilogue.activation is None
        if not (result.is_floating or result.is_complex or is_whole):
            return f"it scales a result of {result} by numbers that are not whole, or has an activation"
        return None

    @staticmethod
    def evaluate(*operands: Array, config: GemmConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        _require_count(operands, config, EvaluationError)
        result_type = result_type_of(shape)
        wide = result_type if config.is_plain else accumulation_type(operands, result_type, numerics)
        product = Dot.evaluate(
            *operands[:2], attributes=config.dimension_numbers, shape=ArrayShape(wide), numerics=numerics
        )
        if config.is_plain:
            return with_scratch([product], shape)
        addend = operands[2] if config.beta else None
        bias = operands[-1] if config.epilogue.has_bias else None
        values = apply_epilogue(product, config, addend, bias, numerics)
        return with_scratch([narrow(value, result_type) for value in values], shape)


def _resized_stride(stride: int, before: Sequence[int], after: Sequence[int]) -> int:
    """The product of the last dimensions that it was the product of; else what it is."""
    for rank in range(len(before) + 1):
        if prod(before[rank:]) == stride:
            return prod(after[rank:])
    return stride


def _require_count(operands: Sequence[object], config: GemmConfig, error: type[HloError]) -> None:
    count = config.operand_count
    if len(operands) != count:
        raise error(f"the gemm must have {count} operands by its backend_config, but has {len(operands)}")


def result_type_of(shape: Shape) -> ElementType:
    """The element type of the first result."""
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    return array_shape(first, "the result of the gemm").element_type


def require_real(config: GemmConfig, shape: Shape) -> None:
    """UnsupportedError unless the result is of a floating-point type, and alpha real."""
    result = result_type_of(shape)
    if config.alpha.imag or not result.is_floating:
        raise UnsupportedError(f"it scales a result of {result} by {config.alpha}")
