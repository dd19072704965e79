"""Transformer Engine's activations, plain and gated, and their gradients.

An input [..., 1, n] has one function applied; [..., 2, n] is gated: a function of the first half times the second.
Source: TransformerEngine, jax/csrc/extensions/activation.cpp, common/util/math.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.elementwise.functions import logistic
from hloexec.ops.library_calls.ffi import Attributes
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
    operand_shapes,
    result_shapes,
    with_scratch,
    zeros,
)
from hloexec.ops.library_calls.transformer_engine.quantization import SCALINGS, inverses, largest_magnitude, scaled
from hloexec.ops.registry import custom_call


def _gelu(x: Array) -> tuple[Array, Array]:
    """The tanh approximation and its derivative."""
    scale, cubic = x.dtype.type(sqrt(2 / np.pi)), x.dtype.type(0.044715)
    turn = np.tanh(scale * (x + cubic * x * x * x))
    slope = scale * (1 + 3 * cubic * x * x)
    return x / 2 * (1 + turn), (1 + turn) / 2 + x / 2 * (1 - turn * turn) * slope


def _swish(x: Array, beta: float) -> tuple[Array, Array]:
    """x · logistic(beta · x) and its derivative."""
    factor = x.dtype.type(beta)
    gate = logistic(factor * x)
    return x * gate, gate + factor * x * gate * (1 - gate)


_Function = Callable[[Array], tuple[Array, Array]]
_FUNCTIONS: Mapping[str, _Function] = {
    "gelu": _gelu,
    "silu": lambda x: _swish(x, 1),
    "relu": lambda x: (np.maximum(x, 0), (x > 0).astype(x.dtype)),
    "quick gelu": lambda x: _swish(x, 1.702),
    "squared relu": lambda x: (np.maximum(x, 0) ** 2, 2 * np.maximum(x, 0)),
    "logistic": lambda x: ((gate := logistic(x)), gate * (1 - gate)),
}

_BY_NUMBER = {
    (number + shift + gated, 1 + gated): name
    for number, name in ((0, "gelu"), (2, "silu"), (4, "relu"), (6, "quick gelu"), (8, "squared relu"))
    for gated in (0, 1)
    for shift in ((0, 1) if number else (0,))
} | {(2, 2): "logistic"}
"""By number and how many halves the input has. The newest versions count one more function, GLU, from 2 on; since
plain and gated ones alternate, the number of halves tells which version counted. What 10 gated is they disagree on."""
del _BY_NUMBER[10, 2]


@frozen
class _Config:
    number: int
    scaling: str
    has_largest: bool
    """Whether the largest magnitude is found without a scale, too."""
    has_bias_gradient: bool


# A structure of numbers for one function alone (clamped SwiGLU), which is not supported.
_PARAMETERS = re.compile(r",?\s*act_params\s*=\s*\{(?:[^{}]|\{[^{}]*\})*\}")


def _config(instruction: Instruction) -> _Config:
    text = _PARAMETERS.sub("", instruction.backend_config or "").replace("{,", "{")
    with Attributes(text) as attributes:
        number = attributes.integer("act_enum")
        if not 0 <= number <= 10:
            raise UnsupportedError(f"its attribute act_enum is {number}, and hloexec knows the activations 0 to 10")
        if attributes.truth("is_2x", False) or attributes.integer("quantize_layout", 0):
            raise UnsupportedError("it asks for the transpose, too (is_2x or quantize_layout)")
        return _Config(
            number,
            attributes.choice("scaling_mode", {0: SCALINGS[0], 1: SCALINGS[1]}, 0),
            attributes.truth("output_amax_when_no_scaling", False),
            attributes.truth("is_dbias", False),
        )


def _function(config: _Config, x: Sequence[int], target: str) -> _Function:
    halves = x[-2] if len(x) > 1 else 0
    name = _BY_NUMBER.get((config.number, halves))
    if name is None:
        raise ShapeError(
            f"{target} has act_enum {config.number}, and hloexec does not know which activation of {halves} halves "
            f"that is (x has dimensions {list(x)})"
        )
    return _FUNCTIONS[name]


def _halves(x: Array) -> tuple[Array, Array | None]:
    return x[..., 0, :], x[..., 1, :] if x.shape[-2] == 2 else None


def _results(
    value: Array, config: _Config, scale: Array | None, amax: Array | None, declared: list[ArrayShape]
) -> list[Array]:
    """The value, and in newer versions what follows it; zeros for all the rest."""
    results = zeros(declared)
    scale = scale if config.scaling == "delayed" else None
    results[0] = scaled(value, scale, declared[0].element_type).reshape(declared[0].dimensions)
    if len(declared) > 4:
        if scale is not None:
            results[2:4] = inverses(scale, declared[2:4])
        results[4] = _largest(value, config, amax, declared[4])
    return results


def _largest(value: Array, config: _Config, amax: Array | None, leaf: ArrayShape) -> Array:
    """The largest magnitude; where the buffer is an operand's, it only ever grows."""
    found: Any = largest_magnitude(value) if config.scaling == "delayed" or config.has_largest else np.float32(0)
    if amax is not None and amax.size == leaf.element_count:
        found = np.fmax(widen(amax).reshape(leaf.dimensions), found)
    return narrow(np.broadcast_to(found, leaf.dimensions), leaf.element_type)


def _check_scale(scale: Shape, is_used: bool) -> None:
    if is_used and not array_shape(scale, "the scale of the activation").element_count:
        raise ShapeError(f"the activation must have a scale of one element, but has {scale}")


@custom_call("te_act_lu_ffi", "te_act_lu_fp8_ffi", config=_config)
class Activation:
    """f(x[..., 0, :]), times x[..., 1, :] where there are two halves, rounded once from f32

    `act_enum` says which f: gelu (tanh approximation), silu, relu, quick gelu (x · logistic(1.702 x)) or squared relu.
    Operands: x [..., halves, n]; newer versions: scale and amax; te_act_lu_fp8_ffi: amax, scale, scale_inv. Results:
    the output [..., n], of eight bits scaled and saturated; newer versions: its transpose (not supported), 1 / scale
    twice, the largest magnitude; te_act_lu_fp8_ffi: the output and the largest magnitude. Source: TransformerEngine,
    jax/csrc/extensions/activation.cpp (ActLuFFI).
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        if not 1 <= len(operands) <= 4:
            raise ShapeError(f"an activation takes x, a scale and amax, but has {len(operands)} operands")
        x = array_shape(operands[0], "x of the activation")
        _function(config, x.dimensions, "the activation")
        if len(operands) > 1:
            _check_scale(operands[2 if len(operands) == 4 else 1], config.scaling == "delayed" or len(operands) == 4)
        declared = result_shapes(shape, "the activation", {1: 1, 4: 2}.get(len(operands), 5))[0]
        return in_declared_form([ArrayShape(declared.element_type, (*x.dimensions[:-2], x.dimensions[-1]))], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape) -> CallResult:
        declared = result_shapes(shape, "the activation")
        is_older = len(operands) == 4
        if is_older:
            config = attrs.evolve(config, scaling="delayed")
        scale = operands[2 if is_older else 1] if len(operands) > 1 else None
        amax = operands[1] if is_older else operands[2] if len(operands) == 3 else None
        x = widen(operands[0])
        function = _function(config, x.shape, "the activation")
        first, second = _halves(x)
        with np.errstate(all="ignore"):
            value = function(first)[0]
            if second is not None:
                value = value * second
        if is_older:
            output = _results(value, config, scale, amax, declared[:1])
            return with_scratch([*output, _largest(value, config, amax, declared[1])], shape)
        return with_scratch(_results(value, config, scale, amax, declared), shape)


@custom_call("te_dact_lu_ffi", "te_dact_dbias_quantize_ffi", "te_dact_lu_dbias_quantize_ffi", config=_config)
class ActivationGradient:
    """dz · f'(x[..., 0, :]), times x[..., 1, :] where there are two halves, and dz · f(x[..., 0, :]) for the second

    Operands: dz [..., n], x [..., halves, n]; newer versions: scale and amax. Results: the gradient [..., halves, n],
    rounded once from f32, of eight bits scaled and saturated; newer versions: its transpose (not supported), 1 / scale
    twice, the largest magnitude, the sum over all rows where `is_dbias`, a workspace. Source: TransformerEngine,
    jax/csrc/extensions/activation.cpp (DActLuFFI, DActLuDBiasQuantizeFFI).
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        if not 2 <= len(operands) <= 4:
            raise ShapeError(
                f"an activation's gradient takes dz, x, a scale and amax, but has {len(operands)} operands"
            )
        dz, x = operand_shapes(operands[:2], "the activation's gradient")
        _function(config, x.dimensions, "the activation's gradient")
        if (*x.dimensions[:-2], x.dimensions[-1]) != dz.dimensions:
            raise ShapeError(f"dz must be [..., n] where x is [..., halves, n], but they are {dz} and {x}")
        for scale in operands[2:3]:
            _check_scale(scale, config.scaling == "delayed")
        declared = result_shapes(shape, "the activation's gradient", 1 if len(operands) == 2 else 6)
        if len(operands) > 2 and config.has_bias_gradient and declared[5].element_count != np.prod(x.dimensions[-2:]):
            raise ShapeError(f"the sum of rows must have dimensions {list(x.dimensions[-2:])}, but is {declared[5]}")
        return in_declared_form([ArrayShape(declared[0].element_type, x.dimensions)], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape) -> CallResult:
        declared = result_shapes(shape, "the activation's gradient")
        dz, x = widen(operands[0]), widen(operands[1])
        scale, amax, *_ = (*operands[2:], None, None)
        function = _function(config, x.shape, "the activation's gradient")
        first, second = _halves(x)
        with np.errstate(all="ignore"):
            value, slope = function(first)
            parts = [dz * slope] if second is None else [dz * slope * second, dz * value]
        gradient = np.stack(parts, -2)
        results = _results(gradient, config, scale, amax, declared)
        if len(declared) > 5 and config.has_bias_gradient:
            total = gradient.sum(tuple(range(gradient.ndim - 2)), dtype=gradient.dtype)
            results[5] = narrow(total, declared[5].element_type).reshape(declared[5].dimensions)
        return with_scratch(results, shape)
