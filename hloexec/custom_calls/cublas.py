"""cuBLAS and cuBLASLt: matrix products with a scaled addend, a bias and an activation.

XLA:GPU's gemm rewriter turns a dot and what surrounds it into these calls. Operands and results are logical arrays
here, so neither their layouts nor strides between batches matter. Source: XLA, GemmBackendConfig; cuBLAS,
cublasLtMatmul and cublasLtEpilogue_t.
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
from hloexec.dtypes import ElementType, element_type_of
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.contractions import DotAttributes, contract, contraction_shape
from hloexec.ops.dot_algorithms import DOT_ALGORITHMS
from hloexec.ops.elementwise_binary import maximum
from hloexec.ops.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__ = ["Gemm", "GemmConfig", "gemm_config"]


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


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"RELU": _relu, "GELU": _gelu, "SILU": _silu}


@attrs.frozen
class _Epilogue:
    has_bias: bool = False
    activation: Callable[[Array], Array] | None = None
    has_auxiliary: bool = False
    """Whether what the activation was applied to is a second result."""


_EPILOGUES = {"DEFAULT": _Epilogue(), "BIAS": _Epilogue(has_bias=True)} | {
    f"{prefix}{name}{suffix}": _Epilogue(bool(prefix), activation, bool(suffix))
    for prefix in ("", "BIAS_")
    for name, activation in _ACTIVATIONS.items()
    for suffix in ("", "_AUX")
}


@attrs.frozen
class GemmConfig:
    """What a `gemm_backend_config` says about values."""

    dimension_numbers: DotAttributes
    alpha: complex
    beta: float
    epilogue: _Epilogue

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
    config = backend_config_field(backend_config, "gemm_backend_config")
    for name in ("alpha_real", "dot_dimension_numbers"):
        if name not in config:
            raise UnsupportedError(f"its backend_config lacks {name}")
    if config.get("damax_output"):
        raise UnsupportedError("it asks for the largest magnitude of the result (damax_output)")
    numbers, precision = config["dot_dimension_numbers"], config.get("precision_config", {})
    if not isinstance(numbers, dict) or not isinstance(precision, dict):
        raise UnsupportedError("dot_dimension_numbers and precision_config of its backend_config must be objects")
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if epilogue not in _EPILOGUES:
        raise UnsupportedError(f"it has epilogue {epilogue!r}; there are {', '.join(_EPILOGUES)}")
    return GemmConfig(
        dimension_numbers=_dimension_numbers(numbers, precision),
        alpha=complex(_number(config, "alpha_real"), _number(config, "alpha_imag")),
        beta=_number(config, "beta"),
        epilogue=_EPILOGUES[epilogue],
    )


@custom_call("__cublas$gemm", "__cublas$lt$matmul")
class Gemm:
    """D = activation(alpha · lhs · rhs + beta · C + bias), rounded once

    Operands: lhs, rhs, C where beta is not 0 (of the result's shape), the bias where the epilogue has one (of the shape
    of the result's last dimensions). Result: D, or a tuple of D, what the activation was applied to where the epilogue
    ends in _AUX, and a workspace (s8, zeros). Everything up to the rounding is done in the accumulation type: f32 for
    f32 and narrower. Dimensions are those of a dot: batch, free of lhs, free of rhs. Source: XLA, GemmBackendConfig.
    """

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
        _check_addends(arrays[2:], result, config)
        return TupleShape(tuple(declared)) if isinstance(shape, TupleShape) else declared[0]

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        try:
            config = gemm_config(instruction.backend_config)
        except UnsupportedError as error:
            return error.message
        result = _result_type(instruction.shape)
        if config.alpha.imag and not result.is_complex:
            return f"it scales a result of {result} by the complex number {config.alpha}"
        if not (result.is_floating or result.is_complex) and not _is_integral(config):
            return f"it scales a result of {result} by numbers that are not whole, or has an activation"
        return None

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config = gemm_config(backend_config)
        if len(operands) != config.operand_count:
            raise EvaluationError(
                f"the gemm must have {config.operand_count} operands by its backend_config, but has {len(operands)}"
            )
        result_type = _result_type(shape)
        if config.is_plain:
            results = [_dot(operands, config, result_type, numerics)]
        else:
            results = [narrow(value, result_type) for value in _scaled_sum(operands, config, result_type, numerics)]
        if not isinstance(shape, TupleShape):
            return results[0]
        workspaces = (array_shape(leaf, "a workspace of the gemm") for leaf in shape.elements[len(results) :])
        return (*results, *(np.zeros(leaf.dimensions, leaf.element_type.storage) for leaf in workspaces))


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


def _result_type(shape: Shape) -> ElementType:
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    return array_shape(first, "the result of the gemm").element_type


def _check_addends(addends: Sequence[ArrayShape], result: ArrayShape, config: GemmConfig) -> None:
    if config.beta and addends[0].dimensions != result.dimensions:
        raise ShapeError(f"the addend of the gemm must have the result's shape {result}, but is {addends[0]}")
    if config.epilogue.has_bias:
        bias = addends[-1]
        if bias.dimensions != result.dimensions[result.rank - bias.rank :]:
            raise ShapeError(f"the bias of the gemm must have the last dimensions of {result}, but is {bias}")


def _dot(operands: Sequence[Array], config: GemmConfig, result: ElementType, numerics: NumericsPolicy) -> Array:
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


def _scaled_sum(
    operands: Sequence[Array], config: GemmConfig, result_type: ElementType, numerics: NumericsPolicy
) -> list[Array]:
    """D, and for an _AUX epilogue what the activation was applied to, not yet rounded."""
    dtype = result_type.accumulate
    if result_type.is_floating:
        dtype = np.result_type(dtype, *(element_type_of(operand.dtype).accumulate for operand in operands[:2]))
    scalar: Callable[[Any], Any] = dtype.type
    with np.errstate(all="ignore"):
        total = _dot(operands, config, element_type_of(dtype), numerics)
        if config.alpha != 1:
            total *= scalar(config.alpha if dtype.kind == "c" else config.alpha.real)
        if config.beta:
            addend = widen(operands[2]).astype(dtype, copy=False)
            total += addend if config.beta == 1 else scalar(config.beta) * addend
        if config.epilogue.has_bias:
            total += widen(operands[-1]).astype(dtype, copy=False)
        activation = config.epilogue.activation
        values = [total if activation is None else activation(total)]
    return [*values, total] if config.epilogue.has_auxiliary else values
