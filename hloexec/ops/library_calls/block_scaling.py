"""Block-scaled numbers (MXFP8, NVFP4), as JAX passes them to XLA:GPU.

A block consists of neighbours in the last dimension; its length follows from the shapes of numbers and scales.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.core.precision import largest_number
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.elementwise.convert import convert
from hloexec.ops.registry import custom_call


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
        _require_blocks(array, scales)
        return TupleShape((ArrayShape(numbers.element_type, array.dimensions), scales))

    @staticmethod
    def evaluate(operand: Array, *, shape: TupleShape) -> tuple[Array, Array]:
        own = element_type_of(operand.dtype)
        numbers, scales = (array_shape(part, "a result of __op$quantize") for part in shape.elements)
        blocks = widen(operand).reshape(*scales.dimensions, -1)
        with np.errstate(all="ignore"):
            largest = np.abs(blocks).max(-1, initial=0)
            power = 2.0 ** (frexp(largest_number(numbers.element_type))[1] - 1)
            scale = convert(narrow(largest / power, own), scales.element_type)
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
        _require_blocks(array, _floating(scales, "the scales of __op$dequantize"))
        result = _floating(shape, "the result of __op$dequantize")
        return ArrayShape(result.element_type, array.dimensions)

    @staticmethod
    def evaluate(numbers: Array, scales: Array, *, shape: ArrayShape) -> Array:
        values, factors = (widen(convert(part, shape.element_type)) for part in (numbers, scales))
        with np.errstate(all="ignore"):
            product = values * np.repeat(factors, numbers.shape[-1] // scales.shape[-1], axis=-1)
            return narrow(product, shape.element_type)


def _floating(shape: Shape, what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(array.element_type.is_floating, f"{what} must be of a floating-point type, but is {array}")
    return array


def _require_blocks(array: ArrayShape, scales: ArrayShape) -> None:
    require(
        array.rank == scales.rank > 0
        and array.dimensions[:-1] == scales.dimensions[:-1]
        and scales.dimensions[-1] > 0
        and array.dimensions[-1] > 0
        and array.dimensions[-1] % scales.dimensions[-1] == 0,
        f"scales {scales} cannot belong to blocks in the last dimension of {array}",
    )
