"""Transformer Engine's conversion to 8 bits, with a scale for the whole array or for each block of 32 elements.

An array is treated as a matrix whose rows are the dimensions before an axis and whose columns are the others. In
addition to the converted matrix, a call may return one for products along the other dimension: the transpose or, for
block scaling, the same matrix with blocks along its columns. Source: TransformerEngine,
jax/csrc/extensions/quantization.cpp, common/cast.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.precision import largest_number
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.library_calls.ffi import Attributes, no_attributes
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
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
    with np.errstate(all="ignore"):
        return saturating(value * widen(scale).reshape(-1)[0], result)


def inverses(scale: Array, declared: list[ArrayShape]) -> list[Array]:
    """1 / scale where f32 is declared for it, and zeros elsewhere."""
    with np.errstate(all="ignore"):
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
    found = axis + rank if axis < 0 else axis
    if not 0 < found < rank:
        raise ShapeError(f"{name} is {axis}, which does not part the {rank} dimensions of the operand")
    return found


def _turned(dimensions: tuple[int, ...], axis: int) -> tuple[int, ...]:
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
    with np.errstate(all="ignore"):
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


def _add_older(target: str, names: tuple[str, ...], what: str) -> None:
    """One of the calls of versions 1.x: x, amax, scale, scale_inv → what `names` says, then workspaces."""

    def infer(*operands: Shape, config: int | None, shape: Shape) -> Shape:
        if len(operands) != 4:
            raise ShapeError(f"{target} takes x, amax, scale and scale_inv, but has {len(operands)} operands")
        x = array_shape(operands[0], f"x of {target}")
        axis = 0 if config is None else _axis(config, x.rank, "transpose_axis")
        if not array_shape(operands[2], f"scale of {target}").element_count:
            raise ShapeError(f"{target} must have a scale of one element, but has {operands[2]}")
        declared = result_shapes(shape, target, len(names))
        found = {
            "output": x.dimensions,
            "transpose": _turned(x.dimensions, axis),
            "dbias": x.dimensions[axis:],
            "amax": array_shape(operands[1], f"amax of {target}").dimensions,
        }
        for number, name in enumerate(names):
            declared[number] = attrs.evolve(declared[number], dimensions=found[name])
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
        f"{what}\n\nOperands: x, amax, scale, scale_inv. The scale applies where the result has "
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
        with np.errstate(all="ignore"):
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
