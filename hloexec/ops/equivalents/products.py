"""What stands for cuBLAS's products, and for cuDNN's convolutions, with all that they do beside these."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

import numpy as np

from hloexec.core.dtypes import ElementType, element_type, element_type_of, largest_number
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.values import Dimensions
from hloexec.errors import UnsupportedError
from hloexec.ops.equivalents.instructions import Rule, Values
from hloexec.ops.equivalents.writing import F32, Writer, array_of, sizes_of
from hloexec.ops.library_calls.configs import result_shapes
from hloexec.ops.library_calls.cublas.matmul import GemmConfig, biases_and_scales
from hloexec.ops.library_calls.cudnn.convolutions import ConvolutionConfig
from hloexec.ops.library_calls.cudnn.geometry import Geometry, Side
from hloexec.ops.registry import entry_of


def config_of(instruction: Instruction) -> object:
    """What a library call says besides its operands."""
    entry = entry_of(instruction)
    assert entry is not None and entry.config is not None
    return entry.config(instruction)


def times(write: Writer, value: Instruction, number: float) -> Instruction:
    return value if number == 1 else write.emit("multiply", value, write.full(number, value))


def relu(write: Writer, x: Instruction) -> Instruction:
    return write.emit("maximum", x, write.full(0, x))


def _gelu(write: Writer, x: Instruction) -> Instruction:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), as cuBLASLt has it."""
    cubic = times(write, x, 0.044715)
    for _ in range(2):
        cubic = write.emit("multiply", cubic, x)
    inner = times(write, write.emit("add", x, cubic), sqrt(2 / pi))
    return write.emit("multiply", times(write, x, 0.5), _plus(write, write.emit("tanh", inner), 1))


def _silu(write: Writer, x: Instruction) -> Instruction:
    """x / (1 + exp(−x))."""
    return write.emit("divide", x, _plus(write, write.emit("exponential", write.emit("negate", x)), 1))


def _plus(write: Writer, value: Instruction, number: float) -> Instruction:
    return write.emit("add", write.full(number, value), value)


ACTIVATIONS = {"RELU": relu, "GELU": _gelu, "SILU": _silu}


def saturate(write: Writer, value: Instruction, to: ElementType) -> Instruction:
    """The value rounded to a type; integers to the nearest; these and 8-bit floats saturate."""
    if to.is_floating and to.bits == 8:
        largest = largest_number(to)
        of = array_of(value).element_type
        value = write.emit("clamp", write.constant(-largest, of), value, write.constant(largest, of))
    elif to.is_integral:
        value = write.convert(write.emit("round-nearest-even", value), to)
    return write.convert(value, to)


def _accumulation_type(operands: Sequence[Instruction], result: ElementType) -> ElementType:
    """What everything before the rounding is done in."""
    types = [result, *(array_of(operand).element_type for operand in operands)] if result.is_floating else [result]
    return element_type_of(np.result_type(*(of.accumulate for of in types)))


def _epilogue(
    write: Writer, config: GemmConfig, value: Instruction, addend: Instruction | None, bias: Instruction | None
) -> list[Instruction]:
    """activation(alpha · value + beta · addend + bias), and where it is a result, too, what that is applied to."""
    of = array_of(value).element_type
    if config.alpha.imag:
        raise UnsupportedError(f"it scales by the complex number {config.alpha}")
    value = times(write, value, config.alpha.real)
    if addend is not None:
        value = write.emit("add", value, times(write, write.convert(addend, of), config.beta))
    if bias is not None:
        value = write.emit("add", value, _along_last(write, write.convert(bias, of), sizes_of(value)))
    activation = config.epilogue.activation
    results = [value if activation is None else ACTIVATIONS[activation.name](write, value)]
    return [*results, value] if config.epilogue.has_auxiliary else results


def _along_last(write: Writer, value: Instruction, sizes: Dimensions) -> Instruction:
    """A value of the last dimensions, for each of the others."""
    return write.broadcast(value, sizes, tuple(range(len(sizes) - len(sizes_of(value)), len(sizes))))


def _gemm(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    config = config_of(instruction)
    assert isinstance(config, GemmConfig)
    of = result_shapes(instruction.shape, "the gemm")[0].element_type
    wide = of if config.is_plain else _accumulation_type(operands[:2], of)
    product = write.dot(operands[0], operands[1], config.dimension_numbers, wide)
    addend = operands[2] if config.beta else None
    bias = operands[-1] if config.epilogue.has_bias else None
    values = _epilogue(write, config, product, addend, bias)
    return write.in_form([write.convert(value, of) for value in values], instruction.shape)


def _scaled_gemm(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    config = config_of(instruction)
    assert isinstance(config, GemmConfig)
    of = result_shapes(instruction.shape, "the gemm")[0].element_type
    biases, scales = biases_and_scales([len(sizes_of(operand)) for operand in operands], config)
    factors = [write.convert(operands[number], F32) for number in scales]
    product = write.dot(operands[0], operands[1], config.dimension_numbers, F32)

    def scaled(value: Instruction, factor: Instruction) -> Instruction:
        return write.emit("multiply", value, write.broadcast(factor, sizes_of(value)))

    product = scaled(product, write.emit("multiply", *factors[:2]))
    addend = write.convert(operands[2], F32) if config.beta else None
    if addend is not None and len(factors) == 4:
        addend = scaled(addend, factors[2])
    value = _epilogue(write, config, product, addend, operands[biases[0]] if biases else None)[0]
    axes = tuple(range(len(sizes_of(value))))
    largest = [write.reduce("maximum", write.emit("abs", value), 0, axes)] if config.has_largest else []
    if len(factors) > 2:
        value = scaled(value, factors[-1])
    return write.in_form([saturate(write, value, of), *largest], instruction.shape)


def _convolve(write: Writer, lhs: Instruction, rhs: Instruction, attributes: object, of: ElementType) -> Instruction:
    return write.emit("convolution", lhs, rhs, shape=ArrayShape(of), attributes=attributes)


def _forward(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The convolution, with a bias, a side input and an activation behind it where the call has them."""
    config = config_of(instruction)
    assert isinstance(config, ConvolutionConfig)
    geometry, declared = config.geometry, result_shapes(instruction.shape, "convForward")[0]
    of, inputs = declared.element_type, array_of(operands[0]).element_type
    if config.is_reordered:
        raise UnsupportedError("its filter is in an order that cuDNN chose")
    wide = element_type("s32") if inputs.is_integral else element_type_of(inputs.accumulate)
    is_direct = len(operands) == 2 and of.is_floating and of.bits > 8 and wide.is_floating
    sides = (geometry.input, geometry.kernel)
    lhs, rhs = (_merge(write, side, operand) for side, operand in zip(sides, operands, strict=False))
    value = _convolve(write, lhs, rhs, geometry.attributes, of if is_direct else wide)
    if len(operands) > 2:
        value = _activate(write, config, value, operands, wide if wide.is_floating else F32)
    value = value if is_direct else saturate(write, value, of)
    if geometry.output.vector is not None:
        value = _split(write, geometry.output, value, declared.dimensions)
    return write.in_form([value], instruction.shape)


def _activate(
    write: Writer, config: ConvolutionConfig, value: Instruction, operands: Values, of: ElementType
) -> Instruction:
    bias, *side = operands[2:]
    output = config.geometry.output
    value = times(write, write.convert(value, of), config.scale)
    if side and config.side_scale:
        addend = write.convert(_merge(write, output, side[0]), of)
        value = write.emit("add", value, times(write, addend, config.side_scale))
    features = config.geometry.attributes.dim_labels.output_feature_dimension
    value = write.emit("add", value, write.broadcast(write.convert(bias, of), sizes_of(value), (features,)))
    if config.mode in ("kRelu", "kRelu6"):
        value = relu(write, value)
    if config.mode == "kRelu6":
        value = write.emit("minimum", value, write.full(6, value))
    if config.mode in ("kElu", "kLeakyRelu"):
        below = (
            write.emit("exponential-minus-one", value) if config.mode == "kElu" else times(write, value, config.slope)
        )
        is_above = write.emit("compare", value, write.full(0, value), direction="GT")
        value = write.emit("select", is_above, value, below)
    return value


def _merge(write: Writer, side: Side, value: Instruction) -> Instruction:
    """The vectors of a side merged into its features."""
    if side.vector is None:
        return value
    sizes = sizes_of(value)
    order = [axis for axis in range(side.rank) if axis != side.vector]
    order.insert(order.index(side.feature) + 1, side.vector)
    merged = [
        sizes[axis] * (sizes[side.vector] if axis == side.feature else 1) for axis in order if axis != side.vector
    ]
    return write.reshape(write.transpose(value, order), tuple(merged))


def _split(write: Writer, side: Side, value: Instruction, sizes: Dimensions) -> Instruction:
    """The inverse of `_merge`, with the vectors of dimensions `sizes`."""
    assert side.vector is not None
    order = [axis for axis in range(side.rank) if axis != side.vector]
    order.insert(order.index(side.feature) + 1, side.vector)
    return write.transpose(write.reshape(value, tuple(sizes[axis] for axis in order)), np.argsort(order))


def _input_gradient(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    geometry = config_of(instruction)
    assert isinstance(geometry, Geometry)
    gradient, kernel = operands
    declared, (w_out, w_in, *spatial) = result_shapes(instruction.shape, "it")[0], geometry.kernel.labelled
    groups = geometry.attributes.feature_group_count
    # A group's outputs become its inputs: [..., in, groups × out] → [..., out, groups × in].
    view = write.transpose(kernel, (*spatial, w_in, w_out))
    *outer, inputs, outputs = sizes_of(view)
    rank = len(outer)
    view = write.reshape(view, (*outer, inputs, groups, outputs // groups))
    view = write.transpose(view, (*range(rank), rank + 2, rank + 1, rank))
    view = write.reshape(view, (*outer, outputs // groups, groups * inputs))
    attributes = geometry.input_gradient_attributes(sizes_of(gradient), declared.dimensions)
    return write.in_form([_convolve(write, gradient, view, attributes, declared.element_type)], instruction.shape)


def _filter_gradient(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    geometry = config_of(instruction)
    assert isinstance(geometry, Geometry)
    declared = result_shapes(instruction.shape, "it")[0]
    attributes = geometry.filter_gradient_attributes(*map(sizes_of, operands))
    value = _convolve(write, operands[0], operands[1], attributes, declared.element_type)
    reversed_axes = geometry.reversed_axes
    if reversed_axes:
        value = write.emit("reverse", value, dimensions=reversed_axes)
    return write.in_form([value], instruction.shape)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("__cublas$gemm", "__cublas$lt$matmul"), _gemm),
    "__cublas$lt$matmul$f8": _scaled_gemm,
    **dict.fromkeys(("__cudnn$convForward", "__cudnn$convBiasActivationForward"), _forward),
    "__cudnn$convBackwardInput": _input_gradient,
    "__cudnn$convBackwardFilter": _filter_gradient,
}
