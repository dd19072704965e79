"""cuDNN's convolutions: forward, the two gradients, and forward with bias, side input and activation.

The window, dim_labels and feature_group_count of the call always describe the forward convolution, whose input, filter
and output are x, w and y; a gradient call takes y's gradient and returns that of x or of w. Source: XLA,
conv_rewriter.cc and cudnn_fused_conv_rewriter.h; cuDNN, cudnnConvolutionBiasActivationForward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import require, widen
from hloexec.ops.elementwise.arithmetic import minimum
from hloexec.ops.elementwise.convert import convert
from hloexec.ops.library_calls.activations import relu
from hloexec.ops.library_calls.backend_config import read_fields
from hloexec.ops.library_calls.cudnn.geometry import Geometry, accumulation_type, geometry
from hloexec.ops.library_calls.cudnn.layouts import unreordered_bias, unreordered_filter
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

# `algorithm`, with `tensor_ops_enabled` and `scratch_size` in older dumps, chooses among kernels; that is rounding.
CONVOLUTION_FIELDS = (
    "algorithm tensor_ops_enabled scratch_size conv_result_scale activation_mode side_input_scale leakyrelu_alpha "
    "reordered_int8_nchw_vect serialized_graph"
).split()
_MODES = "kNone kSigmoid kRelu kRelu6 kReluX kTanh kBandPass kElu kLeakyRelu kGeluExact".split()


def elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(x))


ACTIVATIONS: Mapping[str, Callable[[Array, float], Array]] = {
    "kNone": lambda x, slope: x,
    "kRelu": lambda x, slope: relu(x),
    "kRelu6": lambda x, slope: minimum(relu(x), np.full_like(x, 6)),
    "kElu": lambda x, slope: elu(x),
    "kLeakyRelu": lambda x, slope: np.where(x > 0, x, x.dtype.type(slope) * x),
}


@frozen
class _Config:
    """What a call says about values."""

    geometry: Geometry
    scale: float
    side_scale: float
    mode: str
    slope: float
    is_reordered: bool


def _config(instruction: Instruction) -> _Config:
    fields = read_fields(instruction, "cudnn_conv_backend_config", CONVOLUTION_FIELDS)
    mode = fields.word("activation_mode", _MODES)
    if mode not in ACTIVATIONS:
        raise UnsupportedError(f"its activation_mode is {mode}; hloexec has {', '.join(ACTIVATIONS)}")
    if fields.values.get("serialized_graph"):
        raise UnsupportedError("it has a serialized_graph, which is for __cudnn$convForwardGraph")
    if "conv_result_scale" not in fields.values:
        raise UnsupportedError("its cudnn_conv_backend_config lacks conv_result_scale")
    return _Config(
        geometry(instruction.attributes),
        fields.number("conv_result_scale"),
        fields.number("side_input_scale"),
        mode,
        fields.number("leakyrelu_alpha"),
        fields.flag("reordered_int8_nchw_vect"),
    )


def _plain_config(instruction: Instruction) -> _Config:
    """The config of a call without bias; nothing may follow the convolution."""
    config = _config(instruction)
    for name, value, wanted in (
        ("conv_result_scale", config.scale, 1.0),
        ("side_input_scale", config.side_scale, 0.0),
        ("activation_mode", config.mode, "kNone"),
    ):
        if value != wanted:
            raise UnsupportedError(f"its {name} is {value}, but a call without a bias can only have {wanted}")
    return config


def _rounded(total: Array, result: ElementType) -> Array:
    """A sum in the accumulation type, rounded once."""
    if total.dtype == result.storage:
        return total
    return convert(total, result) if total.dtype.kind == "i" and result.is_floating else saturating(total, result)


def _gradient_geometry(instruction: Instruction) -> Geometry:
    config = _plain_config(instruction)
    if config.is_reordered:
        raise UnsupportedError("its filter is reordered (reordered_int8_nchw_vect), which gradients cannot have")
    return config.geometry.without_vectors("gradients")


@custom_call("__cudnn$convForward", config=_plain_config, is_reproducible=True)
class Forward:
    """y = conv(x, w), rounded once

    The result is a tuple of y and scratch memory (u8, zeros). Integers add up in s32 and saturate; floats add up in
    f32, or f64. Operands and results may hold vectors of features (`?` in dim_labels), filters may be reordered for
    int8x32. Source: XLA, conv_rewriter.cc, cudnn_vectorize_convolutions.cc.
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        inputs, kernel = operand_shapes(operands, "convForward", (2,))
        declared = result_shapes(shape, "convForward")[0]
        return in_declared_form([config.geometry.output_shape(inputs, kernel, declared)], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        inputs, kernel = operands
        found, declared = config.geometry, result_shapes(shape, "convForward")[0]
        if config.is_reordered:
            kernel = unreordered_filter(kernel, found.kernel)
        wide, result = accumulation_type(inputs), declared.element_type
        # Sums of integers, and those that must saturate, are rounded after the kernel.
        is_direct = wide.is_floating and result.is_floating and result.bits > 8
        value = _rounded(found.forward(inputs, kernel, result if is_direct else wide, numerics), result)
        return with_scratch([found.output.split(value, declared.dimensions)], shape)


@custom_call("__cudnn$convBackwardInput", config=_gradient_geometry, is_reproducible=True)
class BackwardInput:
    """dx = the gradient of conv(x, w) with respect to x, given dy and w, rounded once

    Operands: dy (the output of dim_labels), w. Result: dx (the input of dim_labels) and scratch memory (u8, zeros). The
    window and the feature groups are the forward convolution's. Source: XLA, conv_rewriter.cc (MatchBackwardInput).
    """

    @staticmethod
    def infer(*operands: Shape, config: Geometry, shape: Shape) -> Shape:
        gradient, kernel = operand_shapes(operands, "convBackwardInput", (2,))
        inputs = result_shapes(shape, "convBackwardInput")[0].with_element_type(kernel.element_type)
        _require_gradient(gradient, config.output_shape(inputs, kernel, gradient))
        return shape

    @staticmethod
    def evaluate(*operands: Array, config: Geometry, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        gradient, kernel = operands
        declared = result_shapes(shape, "convBackwardInput")[0]
        return with_scratch([config.input_gradient(gradient, kernel, declared, numerics)], shape)


@custom_call("__cudnn$convBackwardFilter", config=_gradient_geometry, is_reproducible=True)
class BackwardFilter:
    """dw = the gradient of conv(x, w) with respect to w, given x and dy, rounded once

    Operands: x (the input of dim_labels), dy (the output). Result: dw (the filter of dim_labels) and scratch memory
    (u8, zeros). The window and the feature groups are the forward convolution's. Source: XLA, conv_rewriter.cc
    (MatchBackwardFilter).
    """

    @staticmethod
    def infer(*operands: Shape, config: Geometry, shape: Shape) -> Shape:
        inputs, gradient = operand_shapes(operands, "convBackwardFilter", (2,))
        kernel = result_shapes(shape, "convBackwardFilter")[0].with_element_type(inputs.element_type)
        _require_gradient(gradient, config.output_shape(inputs, kernel, gradient))
        return shape

    @staticmethod
    def evaluate(*operands: Array, config: Geometry, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        inputs, gradient = operands
        result = result_shapes(shape, "convBackwardFilter")[0].element_type
        return with_scratch([config.filter_gradient(inputs, gradient, result, numerics)], shape)


def _require_gradient(gradient: ArrayShape, output: ArrayShape) -> None:
    require(
        gradient.dimensions == output.dimensions,
        f"the gradient of the convolution's output must have dimensions {list(output.dimensions)}, but is {gradient}",
    )


@custom_call("__cudnn$convBiasActivationForward", config=_config)
class BiasActivationForward:
    """y = activation(conv_result_scale · conv(x, w) + side_input_scale · side + bias), rounded once

    Operands: x, w, the bias [features of y], and perhaps the side input, of y's shape. The activation is kNone, kRelu,
    kRelu6, kElu (exp(v) − 1 below 0) or kLeakyRelu (leakyrelu_alpha · v below 0). Everything up to the rounding is done
    in f32 (f64 for f64) after the sums, those of integers in s32; integers round to nearest and saturate. Result: y and
    scratch memory (u8, zeros). Source: XLA, cudnn_fused_conv_rewriter.h; cuDNN, cudnnConvolutionBiasActivationForward.
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        inputs, kernel, bias, *side = operand_shapes(operands, "convBiasActivationForward", (3, 4))
        declared = result_shapes(shape, "convBiasActivationForward")[0]
        found = config.geometry
        result = found.output_shape(inputs, kernel, declared)
        features = kernel.dimensions[found.kernel.labelled[0]]
        require(
            bias.dimensions == (features,) and bias.element_type.is_floating,
            f"the bias of the convolution must be {features} floating-point numbers, but is {bias}",
        )
        require(
            not side or (side[0].dimensions == result.dimensions and not side[0].element_type.is_complex),
            f"the side input of the convolution must have the result's shape {result}, but is {(side or [bias])[0]}",
        )
        return in_declared_form([result], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        found = config.geometry
        inputs, kernel, bias, *side = operands
        if config.side_scale and not side:
            raise EvaluationError(f"the convolution has side_input_scale {config.side_scale}, but no side input")
        declared = result_shapes(shape, "convBiasActivationForward")[0]
        if config.is_reordered:
            kernel, bias = unreordered_filter(kernel, found.kernel), unreordered_bias(bias)
        total = found.forward(inputs, kernel, accumulation_type(inputs), numerics)
        dtype = element_type_of(inputs.dtype).accumulate if total.dtype.kind == "f" else np.dtype(np.float32)
        with np.errstate(all="ignore"):
            value = dtype.type(config.scale) * total.astype(dtype, copy=False)
            if side and config.side_scale:
                addend = widen(found.output.merge(side[0])).astype(dtype, copy=False)
                value = value + dtype.type(config.side_scale) * addend
            along_features = [1] * value.ndim
            along_features[found.attributes.dim_labels.output_feature_dimension] = bias.size
            value = value + widen(bias).astype(dtype, copy=False).reshape(along_features)
            value = ACTIVATIONS[config.mode](value, config.slope)
        rounded = _rounded(np.asarray(value), declared.element_type)
        return with_scratch([found.output.split(rounded, declared.dimensions)], shape)
