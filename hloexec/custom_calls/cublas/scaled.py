"""cuBLASLt: products of eight-bit floats, scaled as a whole ($f8) or block by block ($mx).

Source: XLA, GemmRewriter and BlockScalingRewriter; cuBLAS, cublasLtMatmul (narrow precision data types).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from hloexec.custom_calls.cublas.matmul import (
    GemmConfig,
    apply_epilogue,
    check_addends,
    gemm_config,
    gemm_size,
    plain_product,
    result_type_of,
    workspaces,
)
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ElementType, element_type
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.contraction.dot import ScaledDot, contraction_shape
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.traits import ContractionSize
from hloexec.values import Array

__all__ = ["BlockScaledGemm", "ScaledGemm"]


@attrs.frozen
class _Arguments:
    """Where the operands stand: lhs, rhs, the addend, then scales, which are scalars, and among them the bias."""

    addend: int | None
    bias: int | None
    scales: tuple[int, ...]
    """Of lhs and rhs, then (older) that of the addend and that of the result, or that of the result alone."""

    @property
    def result_scale(self) -> int | None:
        return self.scales[-1] if len(self.scales) > 2 else None

    @property
    def addend_scale(self) -> int | None:
        return self.scales[2] if len(self.scales) == 4 else None


def _arguments(ranks: Sequence[int], config: GemmConfig) -> _Arguments:
    """Which operand is what; ShapeError where they are not what the config asks for.

    Older versions put the bias after all scales and always have four of those, newer ones before the result's.
    """
    first = 2 + (config.beta != 0)
    rest = range(first, len(ranks))
    biases = [number for number in rest if ranks[number] > 0]
    scales = tuple(number for number in rest if ranks[number] == 0)
    if len(ranks) < first or len(biases) != config.epilogue.has_bias or not 2 <= len(scales) <= 4:
        raise ShapeError(
            f"the gemm must have {first} matrices, two to four scales (scalars) and "
            f"{'a' if config.epilogue.has_bias else 'no'} bias by its backend_config, but has operands of ranks "
            f"{list(ranks)}"
        )
    return _Arguments(2 if config.beta else None, biases[0] if biases else None, scales)


@custom_call("__cublas$lt$matmul$f8", is_reproducible=True)
class ScaledGemm:
    """D = scale_d · activation(alpha · scale_a · scale_b · lhs · rhs + beta · scale_c · C + bias), rounded once

    Everything before the rounding is done in f32. An eight-bit D saturates at its largest number. Operands: lhs, rhs, C
    where beta is not 0, scale_a and scale_b (f32 scalars), then the bias where the epilogue has one and scale_d where
    there is one; older versions have scale_c and scale_d before the bias. Results: D, its largest magnitude before
    scale_d (f32[]) where `damax_output`, a workspace. Source: XLA, GemmRewriter; cuBLAS, cublasLtMatmul.
    """

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        return gemm_size(instruction.backend_config, lhs, result)

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config = gemm_config(backend_config)
        arrays = [array_shape(operand, f"operand {number} of the gemm") for number, operand in enumerate(operands)]
        found = _arguments([array.rank for array in arrays], config)
        outputs = shape.elements if isinstance(shape, TupleShape) else (shape,)
        declared = [array_shape(output, "a result of the gemm") for output in outputs]
        if len(declared) < 1 + config.has_largest:
            raise ShapeError(f"the gemm has no room for its results in {shape}")
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared[0].element_type)
        check_addends([arrays[number] for number in (found.addend, found.bias) if number is not None], result, config)
        declared[0] = result
        if config.has_largest:
            declared[1] = ArrayShape(element_type("f32"))
        return TupleShape(tuple(declared)) if isinstance(shape, TupleShape) else declared[0]

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        found = _reason(instruction, (0, 1))
        if found is None and gemm_config(instruction.backend_config).epilogue.has_auxiliary:
            return "it has an auxiliary result, which XLA does not use in products of eight bits"
        return found

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config = gemm_config(backend_config)
        try:
            found = _arguments([operand.ndim for operand in operands], config)
        except ShapeError as error:
            raise EvaluationError(error.message) from None
        result_type, f32 = result_type_of(shape), element_type("f32")
        lhs_scale, rhs_scale = (widen(operands[number]) for number in found.scales[:2])
        with np.errstate(all="ignore"):
            product = plain_product(operands, config, f32, numerics) * (lhs_scale * rhs_scale)
            addend = None if found.addend is None else widen(operands[found.addend])
            if addend is not None and found.addend_scale is not None:
                addend = addend * widen(operands[found.addend_scale])
            bias = None if found.bias is None else operands[found.bias]
            value = apply_epilogue(np.asarray(product, np.float32), config, addend, bias, numerics)[0]
            largest = np.abs(value).max(initial=0)
            if found.result_scale is not None:
                value = value * widen(operands[found.result_scale])
        results = [_saturated(np.asarray(value, np.float32), result_type)]
        results += [np.asarray(largest, np.float32)] * config.has_largest
        return (*results, *workspaces(shape, len(results))) if isinstance(shape, TupleShape) else results[0]


@custom_call("__cublas$lt$matmul$mx", is_reproducible=True)
class BlockScaledGemm:
    """D = activation(alpha · (lhs · lhs_scale) · (rhs · rhs_scale)), where a scale's element covers a block

    Operands: lhs, rhs and their scales (f8e8m0fnu), which are as long along the contracting dimension as there are
    blocks of 32 in it. Results: D and a workspace. Everything before the one rounding is done in f32, an eight-bit
    D saturates. Source: XLA, BlockScalingRewriter; hipBLASLt, scaled matrix products.
    """

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        return gemm_size(instruction.backend_config, lhs, result)

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config = gemm_config(backend_config)
        if len(operands) != 4:
            raise ShapeError(f"the gemm must have lhs, rhs and a scale for each, but has {len(operands)} operands")
        outputs = shape.elements if isinstance(shape, TupleShape) else (shape,)
        if not outputs:
            raise ShapeError(f"the gemm has no room for its results in {shape}")
        first = array_shape(outputs[0], "the result of the gemm")
        lhs, rhs, lhs_scale, rhs_scale = operands
        result = ScaledDot.infer(lhs, rhs, lhs_scale, rhs_scale, attributes=config.dimension_numbers, shape=first)
        return TupleShape((result, *outputs[1:])) if isinstance(shape, TupleShape) else result

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        found = _reason(instruction, (0, 2))
        if found is not None:
            return found
        config = gemm_config(instruction.backend_config)
        if config.beta or config.epilogue.has_bias or config.epilogue.has_auxiliary or config.has_largest:
            return "it has beta, a bias, an auxiliary result or damax_output, and so no place for the scales of blocks"
        return None

    @staticmethod
    def evaluate(
        lhs: Array,
        rhs: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        *,
        backend_config: str | None,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        config, f32 = gemm_config(backend_config), element_type("f32")
        first = array_shape(shape.elements[0] if isinstance(shape, TupleShape) else shape, "the result of the gemm")
        product = ScaledDot.evaluate(
            lhs,
            rhs,
            lhs_scale,
            rhs_scale,
            attributes=config.dimension_numbers,
            shape=attrs.evolve(first, element_type=f32),
            numerics=numerics,
        )
        result = _saturated(apply_epilogue(product, config, None, None, numerics)[0], first.element_type)
        return (result, *workspaces(shape, 1)) if isinstance(shape, TupleShape) else result


def _reason(instruction: Instruction, modes: Sequence[int]) -> str | None:
    try:
        config = gemm_config(instruction.backend_config)
        result = result_type_of(instruction.shape)
    except (UnsupportedError, ShapeError) as error:
        return error.message
    if config.scale_mode not in modes:
        return f"its scale_mode is {config.scale_mode}, but must be {' or '.join(map(str, modes))}"
    if config.alpha.imag or not result.is_floating:
        return f"it scales a result of {result} by {config.alpha}"
    return None


def _saturated(value: Array, result: ElementType) -> Array:
    """Rounded once; where eight bits do not reach, the largest number that they do reach, NaN aside."""
    if result.bits > 8:
        return narrow(value, result)
    largest = _largest(result)
    return narrow(np.clip(value, -largest, largest), result)


def _largest(result: ElementType) -> np.float32:
    patterns = np.arange(256, dtype=np.uint8).view(result.storage)
    values = widen(patterns)
    return np.float32(values[np.isfinite(values)].max())
