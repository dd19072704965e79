"""cuBLAS and cuBLASLt: matrix products with a scaled addend, a bias and an activation.

XLA:GPU's gemm rewriter replaces a dot and surrounding instructions by these calls; on ROCm, rocBLAS and hipBLASLt have
the same targets. Operands and results are logical arrays here, so neither their layouts nor strides between batches
matter. Source: XLA, GemmBackendConfig; cuBLAS, cublasLtMatmul and cublasLtEpilogue_t.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import pi, prod, sqrt

import attrs
import numpy as np

from hloexec.custom_calls.backend_config import Fields, backend_config_field, known_fields
from hloexec.custom_calls.registry import custom_call
from hloexec.custom_calls.shapes import CallResult, in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.dtypes import ElementType, Kind, element_type_of
from hloexec.errors import EvaluationError, HloError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.contraction.algorithms import DOT_ALGORITHMS
from hloexec.ops.contraction.dot import (
    Dot,
    DotAttributes,
    MatrixProduct,
    contraction_shape,
    product_size,
    relate_contraction,
)
from hloexec.ops.contraction.product_sums import AddedProduct
from hloexec.ops.elementwise.arithmetic import maximum
from hloexec.ops.elementwise.declaration import exact_formula
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.relations import Relating, Resizing
from hloexec.ops.traits import ContractionSize
from hloexec.values import Array

__all__ = [
    "GEMM_FIELDS",
    "Gemm",
    "GemmConfig",
    "Product",
    "accumulation_type",
    "apply_epilogue",
    "check_addends",
    "gelu",
    "gemm_config",
    "read_gemm_config",
    "relate_product",
    "relu",
    "require_real",
    "resized_strides",
    "result_type_of",
]


def relu(x: Array) -> Array:
    return maximum(x, np.zeros_like(x))


def gelu(x: Array) -> Array:
    """The tanh approximation, which is the one cuBLASLt has."""
    half, cubic, scale = x.dtype.type(0.5), x.dtype.type(0.044715), x.dtype.type(sqrt(2 / pi))
    result: Array = half * x * (1 + np.tanh(scale * (x + cubic * x * x * x)))
    return result


def _exact_gelu(x: Array) -> Array:
    """As (1 + tanh y) / 2 = logistic(2y), where nothing cancels."""
    return _exact_silu(x, 2 * sqrt(2 / pi) * (x + 0.044715 * x * x * x))


def _exact_silu(x: Array, y: Array | None = None) -> Array:
    """x · logistic(y), with y = x where it is not given."""
    logistic = exact_formula("logistic", Kind.FLOAT)
    assert logistic is not None
    result: Array = x * logistic(x if y is None else y)
    return np.where(np.isneginf(x), 0.0, result)


@attrs.frozen
class _Activation:
    usual: Callable[[Array], Array]
    exact: Callable[[Array], Array]
    """Of f64, the same on every processor."""


_ACTIVATIONS = {
    "RELU": _Activation(relu, relu),
    "GELU": _Activation(gelu, _exact_gelu),
    "SILU": _Activation(lambda x: x / (1 + np.exp(-x)), _exact_silu),
}


@attrs.frozen
class _Epilogue:
    has_bias: bool = False
    activation: _Activation | None = None
    has_auxiliary: bool = False
    """Whether what the activation was applied to is a second result."""


# XLA has an auxiliary result with GELU alone; cuBLASLt's of RELU would be a mask of bits.
_EPILOGUES = {"DEFAULT": _Epilogue(), "BIAS": _Epilogue(has_bias=True)} | {
    f"{prefix}{name}{suffix}": _Epilogue(bool(prefix), activation, bool(suffix))
    for prefix in ("", "BIAS_")
    for name, activation in _ACTIVATIONS.items()
    for suffix in (("", "_AUX") if name == "GELU" else ("",))
}

GEMM_FIELDS = (
    "alpha_real alpha_imag beta dot_dimension_numbers precision_config epilogue damax_output scale_mode "
    # Without influence: which of several kernels runs, in how much memory, at what cost; what the operands' shapes say
    # already; and whether XLA made the call for a gradient.
    "selected_algorithm autotune_workspace_size reification_cost batch_size lhs_stride rhs_stride is_fp8 grad_x grad_y"
).split()


@attrs.frozen
class GemmConfig:
    """What a `gemm_backend_config` says about values."""

    dimension_numbers: DotAttributes
    alpha: complex
    beta: float
    epilogue: _Epilogue
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
        return self.alpha == 1 and self.beta == 0 and self.epilogue == _EPILOGUES["DEFAULT"]


@lru_cache(maxsize=1024)
def gemm_config(backend_config: str | None) -> GemmConfig:
    """Read either spelling of the config; UnsupportedError says what cannot be done."""
    found = backend_config_field(backend_config, "gemm_backend_config")
    return read_gemm_config(known_fields(found, GEMM_FIELDS, "gemm_backend_config"))


def read_gemm_config(fields: Fields) -> GemmConfig:
    """Read a GemmBackendConfig; UnsupportedError says what cannot be done."""
    for name in ("alpha_real", "dot_dimension_numbers"):
        if name not in fields.values:
            raise UnsupportedError(f"its backend_config lacks {name}")
    epilogue = str(fields.values.get("epilogue", "DEFAULT"))
    if epilogue not in _EPILOGUES:
        raise UnsupportedError(f"it has epilogue {epilogue!r}; known are {', '.join(_EPILOGUES)}")
    numbers, precision = fields.values["dot_dimension_numbers"], fields.values.get("precision_config", {})
    if not isinstance(numbers, dict) or not isinstance(precision, dict):
        raise UnsupportedError("dot_dimension_numbers and precision_config of its backend_config must be objects")
    return GemmConfig(
        dimension_numbers=_dimension_numbers(Fields(numbers), precision),
        alpha=complex(fields.number("alpha_real"), fields.number("alpha_imag")),
        beta=fields.number("beta"),
        epilogue=_EPILOGUES[epilogue],
        has_largest=bool(fields.values.get("damax_output", False)),
        scale_mode=int(fields.word("scale_mode", ("0", "1", "2"))),
    )


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


@custom_call("__cublas$gemm", "__cublas$lt$matmul", config=_config, is_reproducible=True)
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
        relate_product(use, use.config)

    @staticmethod
    def resize(change: Resizing) -> str | None:
        return resized_strides(change)

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

    @staticmethod
    def bind(
        *, backend_config: str | None, shape: Shape, operand_shapes: tuple[ArrayShape, ...]
    ) -> MatrixProduct | AddedProduct | None:
        """The kernel for the product of two matrices that BLAS multiplies, plus a third or not; else None."""
        config = gemm_config(backend_config)
        if config.alpha != 1 or config.beta not in (0, 1) or config.epilogue != _EPILOGUES["DEFAULT"]:
            return None
        result = result_shapes(shape, "the gemm")[0]
        product = Dot.bind(attributes=config.dimension_numbers, shape=result, operand_shapes=operand_shapes)
        if not isinstance(product, MatrixProduct):
            return None
        return AddedProduct(product) if config.beta else product


def relate_product(use: Relating, config: GemmConfig) -> None:
    """As a dot; what is added has the last dimensions of the product, and a workspace any size."""
    lhs, rhs, *others = (operand.axes for operand in use.operands)
    results = use.result.parts
    relate_contraction(use, config.dimension_numbers, lhs, rhs, results[0].axes)
    for axes in (*others, *(value.axes for value in results[1 : 1 + config.epilogue.has_auxiliary])):
        if axes:
            use.same(axes, results[0].axes[-len(axes) :])


def resized_strides(change: Resizing) -> str | None:
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


def _dimension_numbers(numbers: Fields, precision: Mapping[str, object]) -> DotAttributes:
    algorithm = str(precision.get("algorithm", "ALG_UNSET")).removeprefix("ALG_").lower()
    if algorithm not in DOT_ALGORITHMS:
        raise UnsupportedError(f"it has the algorithm {algorithm}; known are {', '.join(DOT_ALGORITHMS)}")
    words = precision.get("operand_precision") or []
    if not isinstance(words, list):
        raise UnsupportedError("operand_precision of its backend_config must be a list of words")
    operand_precision = tuple(str(word).lower() for word in words)
    return DotAttributes(
        lhs_batch_dims=numbers.whole_list("lhs_batch_dimensions"),
        lhs_contracting_dims=numbers.whole_list("lhs_contracting_dimensions"),
        rhs_batch_dims=numbers.whole_list("rhs_batch_dimensions"),
        rhs_contracting_dims=numbers.whole_list("rhs_contracting_dimensions"),
        operand_precision=operand_precision if set(operand_precision) - {"default"} else (),
        algorithm=algorithm,
    )


def result_type_of(shape: Shape) -> ElementType:
    """The element type of the first result."""
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    return array_shape(first, "the result of the gemm").element_type


def require_real(config: GemmConfig, shape: Shape) -> None:
    """UnsupportedError unless the result is of a floating-point type, and alpha real."""
    result = result_type_of(shape)
    if config.alpha.imag or not result.is_floating:
        raise UnsupportedError(f"it scales a result of {result} by {config.alpha}")


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
    with np.errstate(all="ignore"):
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
