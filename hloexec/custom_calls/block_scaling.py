"""Numbers in blocks that share a scale (MXFP8, NVFP4), as JAX hands them to XLA:GPU.

Blocks are neighbours in the last dimension; how long they are follows from the shapes of numbers and scales.
"""

from __future__ import annotations

from functools import cache
from math import frexp

import numpy as np

from hloexec.custom_calls.linalg.matrix_routines import shapes_of
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ElementType, element_type_of
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.elementwise.convert import convert
from hloexec.values import Array

__all__: list[str] = []


@custom_call("__op$quantize")
class Quantize:
    """(numbers, scales) with operand ≈ numbers · scales: scale = max |block| / 2^e, number = operand / scale.

    operand [..., n] gives numbers [..., n] and scales [..., n / block], e the largest exponent of the numbers' type.
    Maxima and quotients are of the operand's type; each result is rounded once to its own, and what divides is the
    scale so rounded. Source: XLA, block_scaling_rewriter; Open Compute Project, "Microscaling Formats (MX)
    Specification".
    """

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        array = _floating(operand, "the operand of __op$quantize")
        declared = shape.elements if isinstance(shape, TupleShape) else ()
        require(len(declared) == 2, f"__op$quantize must give numbers and scales, but is declared as {shape}")
        numbers = _floating(declared[0], "the numbers of __op$quantize")
        scales = _floating(declared[1], "the scales of __op$quantize")
        require(
            numbers.element_type.storage.itemsize <= 2,
            f"numbers of __op$quantize must have at most 16 bits, not {numbers}",
        )
        _block_size(array, scales)
        return TupleShape(
            (ArrayShape(numbers.element_type, array.dimensions), ArrayShape(scales.element_type, scales.dimensions))
        )

    @staticmethod
    def evaluate(operand: Array, *, shape: TupleShape) -> tuple[Array, Array]:
        Quantize.infer(*shapes_of([operand]), shape=shape)
        own = element_type_of(operand.dtype)
        numbers, scales = (array_shape(part, "a result of __op$quantize") for part in shape.elements)
        blocks = widen(operand).reshape(*scales.dimensions, -1)
        with np.errstate(all="ignore"):
            largest = np.abs(blocks).max(-1, initial=0)
            scale = convert(narrow(largest / _largest_power(numbers.element_type), own), scales.element_type)
            divisor = widen(convert(scale, own))[..., None]
            quotient = narrow((blocks / divisor).reshape(operand.shape), own)
        return convert(quotient, numbers.element_type), scale


@custom_call("__op$dequantize")
class Dequantize:
    """numbers · scales: [..., n] and [..., n / block] give [..., n], factors and product in the result's type.

    Source: XLA, block_scaling_rewriter.
    """

    @staticmethod
    def infer(numbers: Shape, scales: Shape, *, shape: Shape) -> Shape:
        array = _floating(numbers, "the numbers of __op$dequantize")
        _block_size(array, _floating(scales, "the scales of __op$dequantize"))
        result = _floating(shape, "the result of __op$dequantize")
        return ArrayShape(result.element_type, array.dimensions)

    @staticmethod
    def evaluate(numbers: Array, scales: Array, *, shape: ArrayShape) -> Array:
        Dequantize.infer(*shapes_of([numbers, scales]), shape=shape)
        return _dequantized(numbers, scales, numbers.shape[-1] // scales.shape[-1], shape.element_type)


def _floating(shape: Shape, what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(array.element_type.is_floating, f"{what} must be of a floating-point type, but is {array}")
    return array


def _block_size(array: ArrayShape, scales: ArrayShape) -> int:
    require(
        array.rank == scales.rank > 0
        and array.dimensions[:-1] == scales.dimensions[:-1]
        and scales.dimensions[-1] > 0
        and array.dimensions[-1] > 0
        and array.dimensions[-1] % scales.dimensions[-1] == 0,
        f"scales {scales} cannot belong to blocks in the last dimension of {array}",
    )
    return array.dimensions[-1] // scales.dimensions[-1]


def _dequantized(numbers: Array, scales: Array, block_size: int, result: ElementType) -> Array:
    factors = [widen(convert(part, result)) for part in (numbers, scales)]
    spread = np.repeat(factors[1], block_size, axis=-1)[..., : numbers.shape[-1]]
    with np.errstate(all="ignore"):
        return narrow(factors[0] * spread, result)


@cache
def _largest_power(element_type: ElementType) -> float:
    """The power of two of the type's largest number."""
    bits = element_type.storage.itemsize * 8
    values = widen(np.arange(1 << bits, dtype=f"u{bits // 8}").view(element_type.storage))
    largest = float(values[np.isfinite(values)].max())
    return float(2 ** (frexp(largest)[1] - 1))
