"""cuBLAS and cuBLASLt: matrix products with a scaled addend, a bias and an activation.

XLA:GPU's gemm rewriter turns a dot and what surrounds it into these calls; on ROCm, rocBLAS and hipBLASLt answer to the
same names. Operands and results are logical arrays here, so neither their layouts nor strides between batches matter.
Source: XLA, GemmBackendConfig; cuBLAS, cublasLtMatmul and cublasLtEpilogue_t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import pi, sqrt
from typing import Any

import attrs
import numpy as np

from hloexec.custom_calls.backend_config import backend_config_field
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ElementType, Kind, element_type_of
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.contraction.algorithms import DOT_ALGORITHMS
from hloexec.ops.contraction.dot import Dot, DotAttributes, MatrixProduct, contract, contraction_shape, product_size
from hloexec.ops.contraction.product_sums import AddedProduct
from hloexec.ops.elementwise.arithmetic import maximum
from hloexec.ops.elementwise.declaration import exact_formula
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.traits import ContractionSize
from hloexec.values import Array

__all__ = [
    "Gemm",
    "GemmConfig",
    "accumulation_type",
    "apply_epilogue",
    "check_addends",
    "gemm_config",
    "gemm_size",
    "plain_product",
    "read_gemm_config",
    "result_type_of",
    "workspaces",
]


def _relu(x: Array) -> Array:
    return maximum(x, np.zeros_like(x))


def _gelu(x: Array) -> Array:
    """The tanh approximation, which is the one cuBLASLt has."""
    half, cubic, scale = x.dtype.type(0.5), x.dtype.type(0.044715), x.dtype.type(sqrt(2 / pi))
    result: Array = half * x * (1 + np.tanh(scale * (x + cubic * x * x * x)))
    return result


def _silu(x: Array) -> Array:
    result: Array = x / (1 + np.exp(-x))
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
    "RELU": _Activation(_relu, _relu),
    "GELU": _Activation(_gelu, _exact_gelu),
    "SILU": _Activation(_silu, _exact_silu),
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

_WITHOUT_INFLUENCE = (
    # Which of several kernels runs, in how much memory, at what cost; what the operands' shapes say already; and
    # whether XLA made the call for a gradient.
    "selected_algorithm autotune_workspace_size reification_cost batch_size lhs_stride rhs_stride is_fp8 grad_x grad_y"
).split()
_FIELDS = ("alpha_real alpha_imag beta dot_dimension_numbers precision_config epilogue damax_output scale_mode").split()


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
    return read_gemm_config(backend_config_field(backend_config, "gemm_backend_config"))


def read_gemm_config(config: Mapping[str, object]) -> GemmConfig:
    """Read a GemmBackendConfig; UnsupportedError says what cannot be done."""
    for name in config:
        if name not in _FIELDS and name not in _WITHOUT_INFLUENCE:
            raise UnsupportedError(f"its backend_config has the field {name}, which hloexec does not know")
    for name in ("alpha_real", "dot_dimension_numbers"):
        if name not in config:
            raise UnsupportedError(f"its backend_config lacks {name}")
    numbers, precision = config["dot_dimension_numbers"], config.get("precision_config", {})
    if not isinstance(numbers, dict) or not isinstance(precision, dict):
        raise UnsupportedError("dot_dimension_numbers and precision_config of its backend_config must be objects")
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if epilogue not in _EPILOGUES:
        raise UnsupportedError(f"it has epilogue {epilogue!r}; there are {', '.join(_EPILOGUES)}")
    scale_mode = str(config.get("scale_mode", 0))
    if scale_mode not in ("0", "1", "2"):
        raise UnsupportedError(f"scale_mode of its backend_config is {scale_mode!r}; there are 0, 1 and 2")
    return GemmConfig(
        dimension_numbers=_dimension_numbers(numbers, precision),
        alpha=complex(_number(config, "alpha_real"), _number(config, "alpha_imag")),
        beta=_number(config, "beta"),
        epilogue=_EPILOGUES[epilogue],
        has_largest=bool(config.get("damax_output", False)),
        scale_mode=int(scale_mode),
    )


def gemm_size(backend_config: str | None, lhs: ArrayShape, result: ArrayShape) -> ContractionSize | None:
    """How much a call multiplies, where its config says over which dimensions."""
    try:
        numbers = backend_config_field(backend_config, "gemm_backend_config")["dot_dimension_numbers"]
        dimensions = [int(dimension) for dimension in numbers["lhs_contracting_dimensions"]]
    except (UnsupportedError, KeyError, TypeError, ValueError):
        return None
    return product_size(lhs, dimensions, result)


@custom_call("__cublas$gemm", "__cublas$lt$matmul", is_reproducible=True)
class Gemm:
    """D = activation(alpha · lhs · rhs + beta · C + bias), rounded once

    Operands: lhs, rhs, C where beta is not 0 (of the result's shape), the bias where the epilogue has one (of the shape
    of the result's last dimensions). Result: D, or a tuple of D, what the activation was applied to where the epilogue
    ends in _AUX, and a workspace (s8, zeros). Everything up to the rounding is done in the accumulation type: f32 for
    f32 and narrower, f64 under `exact`. Dimensions are those of a dot: batch, free of lhs, free of rhs. Source: XLA,
    GemmBackendConfig.
    """

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        return gemm_size(instruction.backend_config, lhs, result)

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config = gemm_config(backend_config)
        if len(operands) != config.operand_count:
            raise ShapeError(
                f"the gemm must have {config.operand_count} operands by its backend_config, but has {len(operands)}"
            )
        arrays = [array_shape(operand, f"operand {number} of the gemm") for number, operand in enumerate(operands)]
        outputs = shape.elements if isinstance(shape, TupleShape) else (shape,)
        if len(outputs) < 1 + config.epilogue.has_auxiliary:
            raise ShapeError(f"the gemm has no room for its results in {shape}")
        declared = [array_shape(output, "a result of the gemm") for output in outputs]
        result = contraction_shape(arrays[0], arrays[1], config.dimension_numbers, declared[0].element_type)
        for number in range(1 + config.epilogue.has_auxiliary):
            declared[number] = attrs.evolve(result, element_type=declared[number].element_type)
        check_addends(arrays[2:], result, config)
        return TupleShape(tuple(declared)) if isinstance(shape, TupleShape) else declared[0]

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        try:
            config = gemm_config(instruction.backend_config)
        except UnsupportedError as error:
            return error.message
        if config.has_largest or config.scale_mode:
            return "it has damax_output or scale_mode, which belong to products of eight bits"
        result = result_type_of(instruction.shape)
        if config.alpha.imag and not result.is_complex:
            return f"it scales a result of {result} by the complex number {config.alpha}"
        if not (result.is_floating or result.is_complex) and not _is_integral(config):
            return f"it scales a result of {result} by numbers that are not whole, or has an activation"
        return None

    @staticmethod
    def evaluate(
        *operands: Array,
        backend_config: str | None,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        config = gemm_config(backend_config)
        if len(operands) != config.operand_count:
            raise EvaluationError(
                f"the gemm must have {config.operand_count} operands by its backend_config, but has {len(operands)}"
            )
        result_type = result_type_of(shape)
        if config.is_plain:
            results = [plain_product(operands, config, result_type, numerics)]
        else:
            wide = accumulation_type(operands, result_type, numerics)
            product = plain_product(operands, config, wide, numerics)
            addend = operands[2] if config.beta else None
            bias = operands[-1] if config.epilogue.has_bias else None
            results = [narrow(value, result_type) for value in apply_epilogue(product, config, addend, bias, numerics)]
        return (*results, *workspaces(shape, len(results))) if isinstance(shape, TupleShape) else results[0]

    @staticmethod
    def bind(
        *, backend_config: str | None, shape: Shape, operand_shapes: tuple[ArrayShape, ...]
    ) -> MatrixProduct | AddedProduct | None:
        """The kernel for the product of two matrices that BLAS multiplies, plus a third or not; else None."""
        config = gemm_config(backend_config)
        if config.alpha != 1 or config.beta not in (0, 1) or config.epilogue != _EPILOGUES["DEFAULT"]:
            return None
        first = shape.elements[0] if isinstance(shape, TupleShape) else shape
        result = array_shape(first, "the result of the gemm")
        product = Dot.bind(attributes=config.dimension_numbers, shape=result, operand_shapes=operand_shapes)
        return AddedProduct(product) if product is not None and config.beta else product


def _dimension_numbers(numbers: Mapping[str, Any], precision: Mapping[str, Any]) -> DotAttributes:
    def dims(name: str) -> tuple[int, ...]:
        try:
            return tuple(int(number) for number in numbers.get(name, ()))
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a list of whole numbers") from None

    algorithm = str(precision.get("algorithm", "ALG_UNSET")).removeprefix("ALG_").lower()
    if algorithm not in DOT_ALGORITHMS:
        raise UnsupportedError(f"it has the algorithm {algorithm}; there are {', '.join(DOT_ALGORITHMS)}")
    words = precision.get("operand_precision") or []
    if not isinstance(words, list):
        raise UnsupportedError("operand_precision of its backend_config must be a list of words")
    operand_precision = tuple(str(word).lower() for word in words)
    return DotAttributes(
        lhs_batch_dims=dims("lhs_batch_dimensions"),
        lhs_contracting_dims=dims("lhs_contracting_dimensions"),
        rhs_batch_dims=dims("rhs_batch_dimensions"),
        rhs_contracting_dims=dims("rhs_contracting_dimensions"),
        operand_precision=operand_precision if set(operand_precision) - {"default"} else (),
        algorithm=algorithm,
    )


def _number(config: Mapping[str, Any], name: str) -> float:
    try:
        return float(config.get(name, 0))
    except (TypeError, ValueError):
        raise UnsupportedError(f"{name} of its backend_config must be a number, but is {config[name]!r}") from None


def _is_integral(config: GemmConfig) -> bool:
    return config.alpha.real.is_integer() and config.beta.is_integer() and config.epilogue.activation is None


def result_type_of(shape: Shape) -> ElementType:
    """The element type of the first result."""
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    return array_shape(first, "the result of the gemm").element_type


def workspaces(shape: TupleShape, count: int) -> list[Array]:
    """Zeros for what follows the first `count` results."""
    leaves = (array_shape(leaf, "a workspace of the gemm") for leaf in shape.elements[count:])
    return [np.zeros(leaf.dimensions, leaf.element_type.storage) for leaf in leaves]


def check_addends(addends: Sequence[ArrayShape], result: ArrayShape, config: GemmConfig) -> None:
    if config.beta and addends[0].dimensions != result.dimensions:
        raise ShapeError(f"the addend of the gemm must have the result's shape {result}, but is {addends[0]}")
    if config.epilogue.has_bias:
        bias = addends[-1]
        if bias.dimensions != result.dimensions[result.rank - bias.rank :]:
            raise ShapeError(f"the bias of the gemm must have the last dimensions of {result}, but is {bias}")


def plain_product(
    operands: Sequence[Array], config: GemmConfig, result: ElementType, numerics: NumericsPolicy
) -> Array:
    """lhs · rhs, rounded once to `result`."""
    numbers = config.dimension_numbers
    return contract(
        operands[0],
        operands[1],
        numbers,
        result,
        precision=numbers.operand_precision,
        algorithm=numbers.algorithm,
        numerics=numerics,
    )


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
