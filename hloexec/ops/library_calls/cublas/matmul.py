"""cuBLAS and cuBLASLt: matrix products with a scaled addend, a bias and an activation.

XLA:GPU's gemm rewriter replaces a dot and surrounding instructions by these calls; on ROCm, rocBLAS and hipBLASLt have
the same targets. Operands and results are logical arrays here, so neither their layouts nor strides between batches
matter. Source: XLA, GemmBackendConfig; cuBLAS, cublasLtMatmul and cublasLtEpilogue_t.

cuBLASLt: products of eight-bit floats, scaled as a whole ($f8) or by blocks ($mx), and products of groups of rows.

Source: XLA, GemmRewriter, BlockScalingRewriter and GroupedGemmBackendConfig; cuBLAS, cublasLtMatmul (narrow precision
data types); hipBLASLt, grouped matrix products.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, HloError, ShapeError, UnsupportedError
from hloexec.ops.attributes import PRECISIONS
from hloexec.ops.common import array_shape, narrow, operand_shapes, require, widen
from hloexec.ops.contraction.blocked_dot import RaggedDot, RaggedDotAttributes, ScaledDot
from hloexec.ops.contraction.dot import (
    DOT_ALGORITHMS,
    Dot,
    DotAttributes,
    contraction_shape,
    product_size,
    relate_contraction,
)
from hloexec.ops.library_calls.activations import ACTIVATIONS, Activation
from hloexec.ops.library_calls.configs import (
    CallResult,
    Fields,
    backend_config_field,
    enumerator,
    in_declared_form,
    known_fields,
    result_shapes,
    saturating,
    with_scratch,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, Requirement, Resizing
from hloexec.ops.traits import ContractionSize


@frozen
class Epilogue:
    """What is done to a product before it is rounded."""

    has_bias: bool = False
    activation: Activation | None = None
    has_auxiliary: bool = False
    """Whether what the activation was applied to is a second result."""


# XLA has an auxiliary result with GELU alone; cuBLASLt's of RELU would be a mask of bits.
EPILOGUES = {"DEFAULT": Epilogue(), "BIAS": Epilogue(has_bias=True)} | {
    f"{prefix}{name}{suffix}": Epilogue(bool(prefix), activation, bool(suffix))
    for prefix in ("", "BIAS_")
    for name, activation in ACTIVATIONS.items()
    for suffix in (("", "_AUX") if name == "GELU" else ("",))
}

_NUMBERED_EPILOGUES = "DEFAULT BIAS RELU BIAS_RELU GELU GELU_AUX BIAS_GELU BIAS_GELU_AUX".split()

GEMM_FIELDS = (
    "alpha_real alpha_imag beta dot_dimension_numbers precision_config epilogue damax_output scale_mode "
    # Without influence: which of several kernels runs, in how much memory, at what cost; what the operands' shapes say
    # already; and whether XLA made the call for a gradient.
    "selected_algorithm autotune_workspace_size reification_cost batch_size lhs_stride rhs_stride is_fp8 grad_x grad_y"
).split()


@frozen
class GemmConfig:
    """What a `gemm_backend_config` says about values."""

    dimension_numbers: DotAttributes
    alpha: complex
    beta: float
    epilogue: Epilogue
    has_largest: bool = False
    """Whether the largest magnitude of the result, before its scale, is a result, too."""
    scale_mode: int = 0
    """What operands of eight bits are scaled by: 1, a number for each tensor; 2, one for each block of it."""

    @property
    def operand_count(self) -> int:
        """lhs and rhs, then the addend where `beta` is not 0, then the bias."""
        return 2 + (self.beta != 0) + self.epilogue.has_bias

    @property
    def is_plain(self) -> bool:
        """Whether the result is the product, and nothing else."""
        return self.alpha == 1 and self.beta == 0 and self.epilogue == Epilogue()


@lru_cache(maxsize=1024)
def gemm_config(backend_config: str | None) -> GemmConfig:
    """Read either spelling of the config; UnsupportedError says what cannot be done."""
    fields = backend_config_field(backend_config, "gemm_backend_config")
    return read_gemm_config(known_fields(fields, GEMM_FIELDS, "gemm_backend_config"))


def read_gemm_config(fields: Fields) -> GemmConfig:
    """Read a GemmBackendConfig; UnsupportedError says what cannot be done."""
    for name in ("alpha_real", "dot_dimension_numbers"):
        if name not in fields.values:
            raise UnsupportedError(f"its backend_config lacks {name}")
    epilogue = enumerator(fields.values.get("epilogue", 0), _NUMBERED_EPILOGUES)
    if epilogue not in EPILOGUES:
        raise UnsupportedError(f"it has epilogue {epilogue!r}; known are {', '.join(EPILOGUES)}")
    numbers, precision = fields.values["dot_dimension_numbers"], fields.values.get("precision_config", {})
    if not isinstance(numbers, dict) or not isinstance(precision, dict):
        raise UnsupportedError("dot_dimension_numbers and precision_config of its backend_config must be objects")
    return GemmConfig(
        dimension_numbers=_dimension_numbers(Fields(numbers), precision),
        alpha=complex(fields.number("alpha_real"), fields.number("alpha_imag")),
        beta=fields.number("beta"),
        epilogue=EPILOGUES[epilogue],
        has_largest=bool(fields.values.get("damax_output", False)),
        scale_mode=int(fields.word("scale_mode", ("0", "1", "2"))),
    )


def _dimension_numbers(numbers: Fields, precision: Mapping[str, object]) -> DotAttributes:
    algorithm = enumerator(precision.get("algorithm", 0), DOT_ALGORITHMS).removeprefix("ALG_").lower()
    if algorithm not in DOT_ALGORITHMS:
        raise UnsupportedError(f"it has the algorithm {algorithm}; known are {', '.join(DOT_ALGORITHMS)}")
    words = precision.get("operand_precision") or []
    if not isinstance(words, list):
        raise UnsupportedError("operand_precision of its backend_config must be a list of words")
    operand_precision = tuple(enumerator(word, PRECISIONS).lower() for word in words)
    return DotAttributes(
        lhs_batch_dims=numbers.whole_list("lhs_batch_dimensions"),
        lhs_contracting_dims=numbers.whole_list("lhs_contracting_dimensions"),
        rhs_batch_dims=numbers.whole_list("rhs_batch_dimensions"),
        rhs_contracting_dims=numbers.whole_list("rhs_contracting_dimensions"),
        operand_precision=operand_precision if set(operand_precision) - {"default"} else (),
        algorithm=algorithm,
    )


def check_addends(addends: Sequence[ArrayShape], result: ArrayShape, config: GemmConfig) -> None:
    """ShapeError where the addend or the bias, those of them that there are, do not fit the result."""
    if config.beta:
        addend, *addends = addends
        fits = addend.dimensions == result.dimensions
        require(fits, f"the addend of the gemm must have the result's shape {result}, but is {addend}")
    for bias in addends:
        fits = bias.dimensions == result.dimensions[result.rank - bias.rank :]
        require(fits, f"the bias of the gemm must have the last dimensions of {result}, but is {bias}")


def accumulation_type(operands: Sequence[Array], result_type: ElementType, numerics: NumericsPolicy) -> ElementType:
    """What everything before the rounding is done in: the widest that the result or a factor accumulates in.

    Under `exact` f64, or c128.
    """
    dtype = result_type.accumulate
    if numerics.is_exact and (result_type.is_floating or result_type.is_complex):
        dtype = np.result_type(dtype, np.float64)
    elif result_type.is_floating:
        dtype = np.result_type(dtype, *(element_type_of(operand.dtype).accumulate for operand in operands[:2]))
    return element_type_of(dtype)


def apply_epilogue(
    product: Array, config: GemmConfig, addend: Array | None, bias: Array | None, numerics: NumericsPolicy
) -> list[Array]:
    """activation(alpha · product + beta · addend + bias), and for an _AUX epilogue its argument, not yet rounded.

    The product's memory is used up.
    """
    dtype = product.dtype
    total = product
    if config.alpha != 1:
        total = _times(total, config.alpha)
    if addend is not None:
        wide = widen(addend).astype(dtype, copy=False)
        total = np.add(total, wide if config.beta == 1 else _times(wide, config.beta), out=total)
    if bias is not None:
        total = np.add(total, widen(bias).astype(dtype, copy=False), out=total)
    activation = config.epilogue.activation
    if activation is None:
        values = [total]
    else:
        values = [activation.exact(total) if numerics.is_exact else activation.usual(total)]
    return [*values, total] if config.epilogue.has_auxiliary else values


def _times(array: Array, factor: complex) -> Array:
    """Complex numbers in parts: how NumPy rounds their products depends on the processor."""
    if array.dtype.kind != "c":
        return np.asarray(array * array.dtype.type(factor.real))
    result = np.empty_like(array)
    real, imag = (array.real.dtype.type(part) for part in (factor.real, factor.imag))
    result.real = array.real * real - array.imag * imag if imag else array.real * real
    result.imag = array.real * imag + array.imag * real if imag else array.imag * real
    return result


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
    def resize(change: Resizing) -> Resizing:
        """The call whose config has the numbers of elements of one matrix of lhs and rhs as they are now."""
        config = change.backend_config
        if config is None:
            return change
        for name, number in (("lhs_stride", 0), ("rhs_stride", 1)):
            match = re.search(rf'"{name}":"?(\d+)', config)
            if match:
                stride = _resized_stride(int(match[1]), *change.sizes(number))
                config = f"{config[: match.start(1)]}{stride}{config[match.end(1) :]}"
        return attrs.evolve(change, backend_config=config)

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


def _config_of_modes(instruction: Instruction, modes: Sequence[int]) -> GemmConfig:
    """The config of a call whose scale_mode is one of `modes`, or UnsupportedError."""
    config = gemm_config(instruction.backend_config)
    if config.scale_mode not in modes:
        raise UnsupportedError(f"its scale_mode is {config.scale_mode}, but must be {' or '.join(map(str, modes))}")
    require_real(config, instruction.shape)
    return config


def _scaled_config(instruction: Instruction) -> GemmConfig:
    config = _config_of_modes(instruction, (0, 1))
    if config.epilogue.has_auxiliary:
        raise UnsupportedError("it has an auxiliary result, which XLA does not use in products of eight bits")
    return config


def _block_scaled_config(instruction: Instruction) -> GemmConfig:
    config = _config_of_modes(instruction, (0, 2))
    if config.beta or config.epilogue.has_bias or config.epilogue.has_auxiliary or config.has_largest:
        raise UnsupportedError(
            "it has beta, a bias, an auxiliary result or damax_output, and so no place for the scales of blocks"
        )
    return config


def biases_and_scales(ranks: Sequence[int], config: GemmConfig) -> tuple[list[int], list[int]]:
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
        biases, _ = biases_and_scales([array.rank for array in arrays], config)
        declared = result_shapes(shape, "the gemm", 1 + config.has_largest)[0]
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared.element_type)
        check_addends([*arrays[2 : 2 + (config.beta != 0)], *(arrays[number] for number in biases)], result, config)
        return in_declared_form([result, *[ArrayShape(element_type("f32"))] * config.has_largest], shape)

    @staticmethod
    def evaluate(*operands: Array, config: GemmConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        biases, scales = biases_and_scales([operand.ndim for operand in operands], config)
        lhs_scale, rhs_scale, *others = (widen(operands[number]) for number in scales)
        numbers, f32 = config.dimension_numbers, ArrayShape(element_type("f32"))
        product = Dot.evaluate(*operands[:2], attributes=numbers, shape=f32, numerics=numerics)
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


@custom_call("__cublas$lt$groupedMatmul", config=_grouped_config, is_reproducible=True, clamps=True)
class GroupedGemm:
    """D = activation(alpha · ragged-dot(lhs, rhs, group_sizes) + beta · C), rounded once

    Operands: lhs, rhs, the group sizes, and C where beta is not 0. Results: D and a workspace. Rows after the last
    group give 0 before alpha. Source: XLA, GroupedGemmBackendConfig; the instruction ragged-dot.
    """

    @staticmethod
    def requires(
        *, operand_shapes: ArrayShapes, config: tuple[GemmConfig, RaggedDotAttributes]
    ) -> Iterator[Requirement]:
        return RaggedDot.requires(attributes=config[1], operand_shapes=operand_shapes)

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
