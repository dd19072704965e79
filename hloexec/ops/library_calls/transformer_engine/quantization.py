"""Transformer Engine's conversion to 8 bits, and its activations.

Transformer Engine's conversion to 8 bits, with a scale for the whole array or for each block of 32 elements.

An array is treated as a matrix whose rows are the dimensions before an axis and whose columns are the others. In
addition to the converted matrix, a call may return one for products along the other dimension: the transpose or, for
block scaling, the same matrix with blocks along its columns. Source: TransformerEngine,
jax/csrc/extensions/quantization.cpp, common/cast.

Transformer Engine's activations, plain and gated, and their gradients.

An input [..., 1, n] has one function applied; [..., 2, n] is gated: a function of the first half times the second.
Source: TransformerEngine, jax/csrc/extensions/activation.cpp, common/util/math.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, largest_number
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, operand_shapes, widen
from hloexec.ops.elementwise.functions import logistic
from hloexec.ops.library_calls.configs import (
    Attributes,
    CallResult,
    in_declared_form,
    no_attributes,
    result_shapes,
    saturating,
    with_scratch,
    zeros,
)
from hloexec.ops.registry import add_custom_call, custom_call

SCALINGS = {0: "none", 1: "delayed", 2: "blocks", 3: "current"}
"""JAXX_Scaling_Mode; 4 and 5, in four bits, are not here."""
_LAYOUTS = {0: "rows", 1: "columns", 2: "rows and columns"}
_BLOCK = 32


def largest_magnitude(value: Array) -> np.float32:
    """NaN counts for nothing, as the comparison by which the maximum is found is false for it."""
    return np.float32(np.fmax.reduce(np.abs(value), axis=None, initial=0))


def scaled(value: Array, scale: Array | None, result: ElementType) -> Array:
    """value · scale, rounded once and saturating; without a scale where the result has more than eight bits."""
    if scale is None or result.bits > 8 or scale.size == 0:
        return saturating(value, result)
    return saturating(value * widen(scale).reshape(-1)[0], result)


def inverses(scale: Array, declared: list[ArrayShape]) -> list[Array]:
    """1 / scale where f32 is declared for it, and zeros elsewhere."""
    inverse = np.float32(1) / widen(scale).reshape(-1)[0]
    return [
        np.full(leaf.dimensions, inverse, np.float32) if leaf.element_type.name == "f32" else zeros([leaf])[0]
        for leaf in declared
    ]


def as_matrix(array: Array, axis: int) -> Array:
    """The dimensions before `axis` as rows, the others as columns."""
    return array.reshape(prod(array.shape[:axis]), prod(array.shape[axis:]))


def _axis(axis: int, rank: int, name: str) -> int:
    """The axis as a number from 1 to rank − 1; ShapeError where there is none such."""
    number = axis + rank if axis < 0 else axis
    if not 0 < number < rank:
        raise ShapeError(f"{name} is {axis}, which does not part the {rank} dimensions of the operand")
    return number


def _turned(dimensions: Dimensions, axis: int) -> Dimensions:
    return dimensions[axis:] + dimensions[:axis]


@frozen
class _Quantize:
    scaling: str
    layout: str
    axis: int
    has_bias_gradient: bool


def _quantize(instruction: Instruction) -> _Quantize:
    with Attributes(instruction.backend_config) as attributes:
        for name in ("stochastic_rounding", "use_rht"):
            if attributes.truth(name, False):
                raise UnsupportedError(f"its attribute {name} is true, which belongs to four bits")
        return _Quantize(
            attributes.choice("scaling_mode", {number: name for number, name in SCALINGS.items() if number}),
            attributes.choice("quantize_layout" if "quantize_layout" in attributes else "q_layout", _LAYOUTS),
            attributes.integer("flatten_axis"),
            attributes.truth("is_dbias"),
        )


@custom_call("te_dbias_quantize_ffi", config=_quantize)
class Quantize:
    """x in eight bits with what it was scaled by, transposed too, and the sum of its rows

    Operands: x, the scale (f32[1]) where one is for the whole array, in newer versions the largest magnitude so far
    (f32[1]), from which the one of this call grows; what follows belongs to four bits. Results, those not asked for
    being of one element: x · scale, its transpose, 1 / scale (f32), the same for the transpose, the largest magnitude
    in x (f32[1]), the sum of the rows, a workspace. With a scale per block of 32 along a row the scales (f8e8m0fnu) are
    the smallest powers of two 2ᵉ with which max |x| · 2⁻ᵉ is no more than the largest number; the second result is not
    transposed, has blocks along columns, and its scales are the fourth. Source: TransformerEngine,
    jax/csrc/extensions/quantization.cpp (DBiasQuantizeFFI).
    """

    @staticmethod
    def infer(*operands: Shape, config: _Quantize, shape: Shape) -> Shape:
        if len(operands) < 2:
            raise ShapeError(f"quantizing takes x and a scale, but has {len(operands)} operands")
        x = array_shape(operands[0], "the operand of quantizing")
        axis = _axis(config.axis, x.rank, "flatten_axis")
        declared = result_shapes(shape, "quantizing", 6)
        if "rows" in config.layout:
            declared[0] = attrs.evolve(declared[0], dimensions=x.dimensions)
        if "columns" in config.layout:
            dimensions = x.dimensions if config.scaling == "blocks" else _turned(x.dimensions, axis)
            declared[1] = attrs.evolve(declared[1], dimensions=dimensions)
        if config.has_bias_gradient:
            declared[5] = ArrayShape(x.element_type, x.dimensions[axis:])
        if declared[0].element_type.bits != 8 or not declared[0].element_type.is_floating:
            raise ShapeError(f"quantizing gives eight-bit floats, but its result is {declared[0]}")
        if config.scaling == "blocks":
            _check_block_scales(x, axis, declared, config)
        elif not array_shape(operands[1], "the scale of quantizing").element_count:
            raise ShapeError(f"quantizing must have a scale of one element, but has {operands[1]}")
        return TupleShape(tuple(declared))

    @staticmethod
    def evaluate(*operands: Array, config: _Quantize, shape: Shape) -> tuple[Array, ...]:
        declared = result_shapes(shape, "quantizing")
        x = operands[0]
        axis = _axis(config.axis, x.ndim, "flatten_axis")
        wide, results = widen(x), zeros(declared)
        matrix = as_matrix(wide, axis)
        by_rows, by_columns = "rows" in config.layout, "columns" in config.layout
        if config.scaling == "blocks":
            if by_rows:
                results[0], results[2] = _in_blocks(matrix, declared[0], declared[2])
            if by_columns:
                results[1], results[3] = _in_blocks(matrix.T, declared[1], declared[3], is_transposed=True)
        else:
            if by_rows:
                results[0] = scaled(wide, operands[1], declared[0].element_type)
            if by_columns:
                results[1] = scaled(matrix.T, operands[1], declared[1].element_type).reshape(declared[1].dimensions)
            results[2:4] = inverses(operands[1], declared[2:4])
            largest = np.full(declared[4].dimensions, largest_magnitude(wide), np.float32)
            if len(operands) > 2 and operands[2].size == largest.size:
                largest = np.fmax(largest, widen(operands[2]).reshape(largest.shape))
            results[4] = narrow(largest, declared[4].element_type)
        if config.has_bias_gradient:
            total = matrix.sum(0, dtype=matrix.dtype)
            results[5] = narrow(total, declared[5].element_type).reshape(declared[5].dimensions)
        return tuple(results)


def _check_block_scales(x: ArrayShape, axis: int, declared: list[ArrayShape], config: _Quantize) -> None:
    rows, columns = prod(x.dimensions[:axis]), prod(x.dimensions[axis:])
    for number, part, along in ((2, "rows", columns), (3, "columns", rows)):
        scale = declared[number]
        if part in config.layout and (
            along % _BLOCK
            or scale.element_type.bits != 8
            or scale.element_count not in map(prod, _scale_sizes(rows, columns, is_transposed=part == "columns"))
        ):
            raise ShapeError(
                f"blocks of {_BLOCK} along {part} of a {rows} by {columns} matrix need a multiple of {_BLOCK} elements "
                f"along them and an eight-bit scale each, but the scales are {scale}"
            )


def _scale_sizes(rows: int, columns: int, *, is_transposed: bool) -> list[tuple[int, int]]:
    """The sizes that the matrix of scales may have: one for each block of a matrix, or filled up to whole tiles.

    A tile is 128 by 4; `is_transposed` where blocks are along columns, and everything the other way round.
    """
    if is_transposed:
        return [(height, width) for width, height in _scale_sizes(columns, rows, is_transposed=False)]
    blocks = columns // _BLOCK
    return [(rows, blocks), (-(-rows // 128) * 128, -(-blocks // 4) * 4)]


def _in_blocks(
    matrix: Array, result: ArrayShape, scales: ArrayShape, *, is_transposed: bool = False
) -> tuple[Array, Array]:
    """The matrix with a power of two for each block of a row, and those; `is_transposed` where the caller did that.

    The scales are padded to whole tiles of 128 by 4, as the declared shape says; the padding is 0.
    """
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // _BLOCK, _BLOCK)
    most = np.float32(largest_number(result.element_type))
    largest = np.fmax.reduce(np.abs(blocks), axis=-1, initial=0).astype(np.float32)
    exponents = _exponents(largest * (np.float32(1) / most))
    inverse = np.ldexp(np.float32(1), 127 - exponents.astype(np.int32))
    values = saturating(blocks * inverse[..., None], result.element_type).reshape(rows, columns)
    sizes = _scale_sizes(*((columns, rows) if is_transposed else (rows, columns)), is_transposed=is_transposed)
    padded = np.zeros(next(size for size in sizes if prod(size) == scales.element_count), np.uint8)
    placed = exponents.T if is_transposed else exponents
    padded[: placed.shape[0], : placed.shape[1]] = placed
    values = values.T if is_transposed else values
    filled = padded.view(scales.element_type.storage).reshape(scales.dimensions)
    return values.reshape(result.dimensions), filled


def _exponents(values: Array) -> Array:
    """The biased exponents (u8) of the smallest powers of two that are at least the values; 255 for NaN."""
    bits = values.view(np.uint32)
    exponents, significands = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    up = (significands > 0) & (exponents != 0xFE) & ~((exponents == 0) & (significands <= 0x400000))
    exponents = np.where(np.isinf(values), 0xFE, exponents + up)
    return np.where(np.isnan(values), 0xFF, exponents).astype(np.uint8)


def _transpose_axis(instruction: Instruction) -> int:
    with Attributes(instruction.backend_config) as attributes:
        return attributes.integer("transpose_axis")


_OLDER: Mapping[str, tuple[tuple[str, ...], str]] = {
    "te_quantize_ffi": (("output", "amax"), "x in eight bits, and the largest magnitude"),
    "te_cast_transpose_ffi": (("output", "transpose", "amax"), "x in eight bits, also transposed"),
    "te_dbias_cast_transpose_ffi": (
        ("output", "transpose", "dbias", "amax"),
        "x in eight bits, also transposed, and the sum of its rows",
    ),
}


def _add_older(target: str, names: tuple[str, ...], subject: str) -> None:
    """One of the calls of versions 1.x: x, amax, scale, scale_inv → what `names` says, then workspaces."""

    def infer(*operands: Shape, config: int | None, shape: Shape) -> Shape:
        if len(operands) != 4:
            raise ShapeError(f"{target} takes x, amax, scale and scale_inv, but has {len(operands)} operands")
        x = array_shape(operands[0], f"x of {target}")
        axis = 0 if config is None else _axis(config, x.rank, "transpose_axis")
        if not array_shape(operands[2], f"scale of {target}").element_count:
            raise ShapeError(f"{target} must have a scale of one element, but has {operands[2]}")
        declared = result_shapes(shape, target, len(names))
        dimensions = {
            "output": x.dimensions,
            "transpose": _turned(x.dimensions, axis),
            "dbias": x.dimensions[axis:],
            "amax": array_shape(operands[1], f"amax of {target}").dimensions,
        }
        for number, name in enumerate(names):
            declared[number] = attrs.evolve(declared[number], dimensions=dimensions[name])
        return TupleShape(tuple(declared))

    def evaluate(*operands: Array, config: int | None, shape: Shape) -> CallResult:
        declared = result_shapes(shape, target)
        x, amax, scale, _ = operands
        wide = widen(x)
        matrix = as_matrix(wide, 0 if config is None else _axis(config, x.ndim, "transpose_axis"))
        kernels = {
            "output": lambda leaf: scaled(wide, scale, leaf.element_type),
            "transpose": lambda leaf: scaled(matrix.T, scale, leaf.element_type),
            "dbias": lambda leaf: narrow(matrix.sum(0, dtype=matrix.dtype), leaf.element_type),
            # The buffer is the operand's, and only ever grows.
            "amax": lambda leaf: narrow(np.fmax(widen(amax), largest_magnitude(wide)), leaf.element_type),
        }
        results = [
            np.asarray(kernels[name](leaf)).reshape(leaf.dimensions)
            for name, leaf in zip(names, declared, strict=False)
        ]
        return with_scratch(results, shape)

    documentation = (
        f"{subject}\n\nOperands: x, amax, scale, scale_inv. The scale applies where the result has "
        "eight bits, which saturate; amax grows to the largest magnitude in x. Source: TransformerEngine 1.x, "
        "jax/csrc/extensions/quantization.cpp and transpose.cpp."
    )
    read = _transpose_axis if "transpose" in names else no_attributes
    add_custom_call(target, evaluate, infer=infer, config=read, documentation=documentation)


for _target, (_names, _what) in _OLDER.items():
    _add_older(_target, _names, _what)


@custom_call("te_dequantize_ffi", config=no_attributes)
class Dequantize:
    """x · scale_inv, rounded once

    Operands: x, amax, scale (both unused), scale_inv (f32[1]). Source: TransformerEngine,
    jax/csrc/extensions/quantization.cpp (DequantizeFFI).
    """

    @staticmethod
    def infer(x: Shape, amax: Shape, scale: Shape, scale_inv: Shape, *, shape: Shape) -> Shape:
        operand = array_shape(x, "x of te_dequantize_ffi")
        result = ArrayShape(result_shapes(shape, "te_dequantize_ffi")[0].element_type, operand.dimensions)
        return in_declared_form([result], shape)

    @staticmethod
    def evaluate(x: Array, amax: Array, scale: Array, scale_inv: Array, *, shape: Shape) -> CallResult:
        if scale_inv.size < 1:
            raise ShapeError("te_dequantize_ffi must have a scale_inv of one element")
        product = widen(x) * widen(scale_inv).reshape(-1)[0]
        return with_scratch([narrow(product, result_shapes(shape, "te_dequantize_ffi")[0].element_type)], shape)


@custom_call("te_transpose_ffi", config=_transpose_axis, is_reproducible=True)
class Transpose:
    """The dimensions from `transpose_axis` on before the others

    Source: TransformerEngine 1.x, jax/csrc/extensions/transpose.cpp.
    """

    @staticmethod
    def infer(x: Shape, *, config: int, shape: Shape) -> Shape:
        operand = array_shape(x, "x of te_transpose_ffi")
        axis = _axis(config, operand.rank, "transpose_axis")
        return in_declared_form([ArrayShape(operand.element_type, _turned(operand.dimensions, axis))], shape)

    @staticmethod
    def evaluate(x: Array, *, config: int, shape: Shape) -> CallResult:
        axis = _axis(config, x.ndim, "transpose_axis")
        return with_scratch([x.transpose(*range(axis, x.ndim), *range(axis))], shape)


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
    magnitude: Any = largest_magnitude(value) if config.scaling == "delayed" or config.has_largest else np.float32(0)
    if amax is not None and amax.size == leaf.element_count:
        magnitude = np.fmax(widen(amax).reshape(leaf.dimensions), magnitude)
    return narrow(np.broadcast_to(magnitude, leaf.dimensions), leaf.element_type)


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
        value, slope = function(first)
        parts = [dz * slope] if second is None else [dz * slope * second, dz * value]
        gradient = np.stack(parts, -2)
        results = _results(gradient, config, scale, amax, declared)
        if len(declared) > 5 and config.has_bias_gradient:
            total = gradient.sum(tuple(range(gradient.ndim - 2)), dtype=gradient.dtype)
            results[5] = narrow(total, declared[5].element_type).reshape(declared[5].dimensions)
        return with_scratch(results, shape)
