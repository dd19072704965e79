"""cuDNN's convolutions: forward, the two gradients, and forward with bias, side input and activation.

The window, dim_labels and feature_group_count of the call always describe the forward convolution, whose input, filter
and output are x, w and y; a gradient call takes y's gradient and returns that of x or of w. Source: XLA,
conv_rewriter.cc and cudnn_fused_conv_rewriter.h; cuDNN, cudnnConvolutionBiasActivationForward.

cuDNN's forward convolution followed by a graph of pointwise operations, as XLA:GPU writes it for 8-bit floats.

The graph is a string, one operation after another, the convolution first: `identifier:[type]name(identifiers);`.
Operands that the graph does not produce are omitted from it: they are the call's operands after x and w, in order.
Source: XLA, cudnn_fused_conv_rewriter.cc (GraphString), cuda_dnn.cc (GetGenericCudnnOperationGraph).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import operand_shapes, require, widen
from hloexec.ops.elementwise.arithmetic import maximum, minimum
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.library_calls.activations import relu
from hloexec.ops.library_calls.configs import (
    CallResult,
    in_declared_form,
    read_fields,
    require_floating,
    result_shapes,
    saturating,
    with_scratch,
)
from hloexec.ops.library_calls.cudnn.geometry import (
    Geometry,
    accumulation_type,
    geometry,
    relate_sides,
    resized_sides,
    unreordered_bias,
    unreordered_filter,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, Resizing

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
class ConvolutionConfig:
    """What a call says about values."""

    geometry: Geometry
    scale: float
    side_scale: float
    mode: str
    slope: float
    is_reordered: bool


def _config(instruction: Instruction) -> ConvolutionConfig:
    fields = read_fields(instruction, "cudnn_conv_backend_config", CONVOLUTION_FIELDS)
    mode = fields.word("activation_mode", _MODES)
    if mode not in ACTIVATIONS:
        raise UnsupportedError(f"its activation_mode is {mode}; hloexec has {', '.join(ACTIVATIONS)}")
    if fields.values.get("serialized_graph"):
        raise UnsupportedError("it has a serialized_graph, which is for __cudnn$convForwardGraph")
    if "conv_result_scale" not in fields.values:
        raise UnsupportedError("its cudnn_conv_backend_config lacks conv_result_scale")
    return ConvolutionConfig(
        geometry(instruction.attributes),
        fields.number("conv_result_scale"),
        fields.number("side_input_scale"),
        mode,
        fields.number("leakyrelu_alpha"),
        fields.flag("reordered_int8_nchw_vect"),
    )


def _plain_config(instruction: Instruction) -> ConvolutionConfig:
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
    def relate(use: Relating) -> None:
        relate_sides(use, use.operands[0], use.operands[1], use.result)

    @staticmethod
    def resize(change: Resizing) -> Resizing:
        return resized_sides(change, lambda inputs, kernel, *others, result: (inputs, kernel, result))

    @staticmethod
    def infer(*operands: Shape, config: ConvolutionConfig, shape: Shape) -> Shape:
        inputs, kernel = operand_shapes(operands, "convForward", (2,))
        declared = result_shapes(shape, "convForward")[0]
        return in_declared_form([config.geometry.output_shape(inputs, kernel, declared)], shape)

    @staticmethod
    def evaluate(*operands: Array, config: ConvolutionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        inputs, kernel = operands
        geometry, declared = config.geometry, result_shapes(shape, "convForward")[0]
        if config.is_reordered:
            kernel = unreordered_filter(kernel, geometry.kernel)
        wide, result = accumulation_type(inputs), declared.element_type
        # Sums of integers, and those that must saturate, are rounded after the kernel.
        is_direct = wide.is_floating and result.is_floating and result.bits > 8
        value = _rounded(geometry.forward(inputs, kernel, result if is_direct else wide, numerics), result)
        return with_scratch([geometry.output.split(value, declared.dimensions)], shape)


@custom_call("__cudnn$convBackwardInput", config=_gradient_geometry, is_reproducible=True)
class BackwardInput:
    """dx = the gradient of conv(x, w) with respect to x, given dy and w, rounded once

    Operands: dy (the output of dim_labels), w. Result: dx (the input of dim_labels) and scratch memory (u8, zeros). The
    window and the feature groups are the forward convolution's. Source: XLA, conv_rewriter.cc (MatchBackwardInput).
    """

    @staticmethod
    def relate(use: Relating) -> None:
        relate_sides(use, use.result, use.operands[1], use.operands[0])

    @staticmethod
    def resize(change: Resizing) -> Resizing:
        return resized_sides(change, lambda gradient, kernel, result: (result, kernel, gradient))

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
    def relate(use: Relating) -> None:
        relate_sides(use, use.operands[0], use.result, use.operands[1])

    @staticmethod
    def resize(change: Resizing) -> Resizing:
        return resized_sides(change, lambda inputs, gradient, result: (inputs, result, gradient))

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
    def relate(use: Relating) -> None:
        Forward.relate(use)
        _, kernel, bias, *side = use.operands
        use.same(bias.axes, [kernel.axes[use.attributes.dim_labels.kernel_output_feature_dimension]])
        use.same(use.result.axes, *(value.axes for value in side))

    resize = staticmethod(Forward.resize)

    @staticmethod
    def infer(*operands: Shape, config: ConvolutionConfig, shape: Shape) -> Shape:
        inputs, kernel, bias, *side = operand_shapes(operands, "convBiasActivationForward", (3, 4))
        declared = result_shapes(shape, "convBiasActivationForward")[0]
        geometry = config.geometry
        result = geometry.output_shape(inputs, kernel, declared)
        features = kernel.dimensions[geometry.kernel.labelled[0]]
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
    def evaluate(*operands: Array, config: ConvolutionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        geometry = config.geometry
        inputs, kernel, bias, *side = operands
        if config.side_scale and not side:
            raise EvaluationError(f"the convolution has side_input_scale {config.side_scale}, but no side input")
        declared = result_shapes(shape, "convBiasActivationForward")[0]
        if config.is_reordered:
            kernel, bias = unreordered_filter(kernel, geometry.kernel), unreordered_bias(bias)
        total = geometry.forward(inputs, kernel, accumulation_type(inputs), numerics)
        dtype = element_type_of(inputs.dtype).accumulate if total.dtype.kind == "f" else np.dtype(np.float32)
        value = dtype.type(config.scale) * total.astype(dtype, copy=False)
        if side and config.side_scale:
            addend = widen(geometry.output.merge(side[0])).astype(dtype, copy=False)
            value = value + dtype.type(config.side_scale) * addend
        along_features = [1] * value.ndim
        along_features[geometry.attributes.dim_labels.output_feature_dimension] = bias.size
        value = value + widen(bias).astype(dtype, copy=False).reshape(along_features)
        value = ACTIVATIONS[config.mode](value, config.slope)
        rounded = _rounded(np.asarray(value), declared.element_type)
        return with_scratch([geometry.output.split(rounded, declared.dimensions)], shape)


@frozen
class _Operation:
    """One operation of a graph."""

    identifier: str
    name: str
    element_type: ElementType
    operands: tuple[str, ...]
    """Those that the graph produces."""

    @property
    def takes_external(self) -> bool:
        """Whether its second operand is the call's."""
        return self.name in _BINARY and len(self.operands) == 1


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": lambda x, y: x + y,
    "scale": lambda x, y: x * y,
    "invscale": lambda x, y: x / y,
    "max": maximum,
    "min": minimum,
}
_UNARY: Mapping[str, Callable[[Array], Array]] = {"relu": relu, "elu": elu, "amax": lambda x: np.abs(x).max(initial=0)}
_OPERATION = re.compile(r"(-?\d+):\[(\w+)\](\w+)\(([\d,-]*)\);")


@lru_cache(maxsize=256)
def _graph(text: str) -> tuple[_Operation, ...]:
    """The operations of a serialized graph; UnsupportedError says what is wrong with it."""
    operations: list[_Operation] = []
    place = 0
    while place < len(text):
        match = _OPERATION.match(text, place)
        if match is None:
            raise UnsupportedError(
                f"its serialized_graph must be like `1:[f32]conv();2:[f32]relu(1);`, but has {text[place:][:40]!r}"
            )
        identifier, type_name, name, operands = match.groups()
        identifiers = [operation.identifier for operation in operations]
        operand_names = tuple(operand for operand in operands.split(",") if operand)
        allowed = (0,) if name == "conv" else (1, 2) if name in _BINARY else (1,)
        if name not in ("conv", *_BINARY, *_UNARY):
            raise UnsupportedError(
                f"its serialized_graph has the operation {name!r}; there are conv, {', '.join((*_BINARY, *_UNARY))}"
            )
        if (name == "conv") != (not operations):
            raise UnsupportedError("its serialized_graph must have one convolution, as its first operation")
        if len(operand_names) not in allowed or not set(operand_names) <= set(identifiers) or identifier in identifiers:
            raise UnsupportedError(
                f"operation {identifier} ({name}) of its serialized_graph must be new and take "
                f"{' or '.join(map(str, allowed))} earlier operations, but takes {', '.join(operand_names) or 'none'}"
            )
        if type_name not in ELEMENT_TYPES or not ELEMENT_TYPES[type_name].is_floating:
            raise UnsupportedError(
                f"its serialized_graph has the type {type_name!r}, which is not a floating-point type"
            )
        operations.append(_Operation(identifier, name, ELEMENT_TYPES[type_name], operand_names))
        place = match.end()
    if not operations:
        raise UnsupportedError("its serialized_graph is empty")
    return tuple(operations)


@frozen
class _GraphConfig:
    geometry: Geometry
    graph: tuple[_Operation, ...]


def _graph_config(instruction: Instruction) -> _GraphConfig:
    """The convolution, and the graph of a call's config, whose other fields must say nothing."""
    fields = read_fields(instruction, "cudnn_conv_backend_config", CONVOLUTION_FIELDS)
    for name, value, wanted in (
        ("conv_result_scale", fields.number("conv_result_scale", 1), 1),
        ("side_input_scale", fields.number("side_input_scale"), 0),
        ("activation_mode", str(fields.values.get("activation_mode", "kNone")), "kNone"),
        ("reordered_int8_nchw_vect", fields.flag("reordered_int8_nchw_vect"), False),
    ):
        if value != wanted and not (name == "activation_mode" and value == "0"):
            raise UnsupportedError(f"its {name} is {value}, but a call with a graph can only have {wanted}")
    text = fields.values.get("serialized_graph")
    if not isinstance(text, str):
        raise UnsupportedError("it has no serialized_graph")
    graph = _graph(text)
    return _GraphConfig(geometry(instruction.attributes).without_vectors("a call with a graph"), graph)


def _results(graph: Sequence[_Operation]) -> list[_Operation]:
    """What the call returns: the last operation that is no amax, then every amax in the graph's order."""
    maxima = [operation for operation in graph if operation.name == "amax"]
    return [[operation for operation in graph if operation.name != "amax"][-1], *maxima]


@custom_call("__cudnn$convForwardGraph", config=_graph_config)
class ForwardGraph:
    """The serialized_graph, from conv(x, w) on

    Operations compute in f32 and round to their own type, 8-bit floats saturating: conv; add, max, min (an array or a
    scalar); scale, invscale (times, by a scalar); relu; elu (exp(v) − 1 below 0); amax (the largest magnitude, a
    scalar). Operands: x, w, and whatever the graph does not produce, in the graph's order. Results: the last operation
    that is no amax, every amax, scratch memory (u8, zeros). Source: XLA, cudnn_fused_conv_rewriter.cc.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        Forward.relate(use)
        use.same(use.result.axes, *(value.axes for value in use.operands[2:] if value.array.element_count != 1))

    resize = staticmethod(Forward.resize)

    @staticmethod
    def infer(*operands: Shape, config: _GraphConfig, shape: Shape) -> Shape:
        count = 2 + sum(operation.takes_external for operation in config.graph)
        inputs, kernel, *others = operand_shapes(operands, "convForwardGraph", (count,))
        require_floating((inputs, kernel, *others), "convForwardGraph")
        results = _results(config.graph)
        declared = result_shapes(shape, "convForwardGraph", len(results))
        wanted = declared[0].with_element_type(results[0].element_type)
        output = config.geometry.output_shape(inputs, kernel, wanted)
        for other in others:
            require(
                other.element_count == 1 or other.dimensions == output.dimensions,
                f"an operand of the graph must be a scalar or have the result's shape {output}, but is {other}",
            )
        inferred = [output]
        for operation, leaf in zip(results[1:], declared[1:], strict=False):
            require(leaf.element_count == 1, f"the amax of the graph must be a scalar, but is declared as {leaf}")
            inferred.append(leaf.with_element_type(operation.element_type))
        return in_declared_form(inferred, shape)

    @staticmethod
    def evaluate(*operands: Array, config: _GraphConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        inputs, kernel, *others = operands
        wide = accumulation_type(inputs)
        if not wide.is_floating:
            raise UnsupportedError("a graph behind a convolution of integers is not supported")
        values: dict[str, Array] = {}
        for operation in config.graph:
            if operation.name == "conv":
                value = config.geometry.forward(inputs, kernel, wide, numerics)
            else:
                arguments = [widen(values[operand]) for operand in operation.operands]
                if operation.takes_external:
                    arguments.append(_broadcast(widen(others.pop(0)), arguments[0]))
                kernel_of = _UNARY.get(operation.name) or _BINARY[operation.name]
                value = np.asarray(kernel_of(*arguments))
            values[operation.identifier] = saturating(value, operation.element_type)
        results = [values[operation.identifier] for operation in _results(config.graph)]
        declared = result_shapes(shape, "convForwardGraph")
        results[1:] = [value.reshape(leaf.dimensions) for value, leaf in zip(results[1:], declared[1:], strict=False)]
        return with_scratch(results, shape)


def _broadcast(operand: Array, like: Array) -> Array:
    """A scalar of any rank as an array of the same shape as its partner."""
    if operand.size == 1:
        return np.broadcast_to(operand.reshape(()), like.shape)
    if operand.shape != like.shape:
        raise EvaluationError(f"an operand of {list(operand.shape)} does not fit a graph of {list(like.shape)}")
    return operand
