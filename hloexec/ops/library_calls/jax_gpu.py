"""What JAX calls on GPUs: random bits, and block-scaled numbers.

Counter-based random bits on GPUs.

Block-scaled numbers (MXFP8, NVFP4), as JAX passes them to XLA:GPU.

A block consists of neighbours in the last dimension; its length follows from the shapes of numbers and scales.
"""

from __future__ import annotations

from math import frexp, prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of, largest_number
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.library_calls.configs import bytes_of_config, checked_attributes
from hloexec.ops.random import threefry_2x32_words
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, Resizing

_WORDS = 4


def _declared_count(instruction: Instruction) -> int | None:
    """The number of words that the config of an older call gives, if it gives one."""
    if instruction.attributes.custom_call_target.endswith("_ffi"):
        checked_attributes(instruction.backend_config, {})
        return None
    data = bytes_of_config(instruction.backend_config)
    if len(data) not in (0, 8):
        raise UnsupportedError(f"its backend_config must be a number of eight bytes, but has {len(data)}")
    return int.from_bytes(data, "little", signed=True) if data else None


@custom_call(
    "cuda_threefry2x32",
    "cu_threefry2x32",
    "cu_threefry2x32_ffi",
    "hip_threefry2x32",
    "hip_threefry2x32_ffi",
    "oneapi_threefry2x32_ffi",
    "rocm_threefry2x32",
    config=_declared_count,
    is_reproducible=True,
)
class Threefry2x32:
    """Threefry2x32, 20 rounds: the two output words for the keys (k0, k1) and the counters (x0, x1), all u32 [n].

    The older calls' config holds n as eight bytes (−1 where a fifth operand gives it), the typed calls have none.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); jaxlib,
    gpu/prng_kernels.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        words = [value.axes for value in use.operands[:_WORDS]]
        use.same(*words, *use.result.leaves.values())

    @staticmethod
    def resize(change: Resizing) -> Resizing:
        """The call whose config, where it is eight bytes of the number of words, is that of the new one."""
        before, after = (prod(sizes).to_bytes(8, "little") for sizes in change.sizes(0))
        if bytes_of_config(change.backend_config) != before:
            return change
        return attrs.evolve(change, backend_config=after.decode("utf-8", "surrogateescape"))

    @staticmethod
    def infer(*operands: Shape, config: int | None) -> Shape:
        require(
            len(operands) in (_WORDS, _WORDS + 1),
            f"threefry2x32 takes two keys, two counters and perhaps their number, but has {len(operands)} operands",
        )
        words = [array_shape(operand, "a word of threefry2x32") for operand in operands[:_WORDS]]
        for word in words:
            require(
                word.element_type is ELEMENT_TYPES["u32"] and word.dimensions == words[0].dimensions,
                f"the words of threefry2x32 must be u32 of the same dimensions, but have shapes {words[0]} and {word}",
            )
        require(
            config in (None, -1 if len(operands) > _WORDS else words[0].element_count, words[0].element_count),
            f"the backend_config of threefry2x32 says that there are {config} words, but they are {words[0]}",
        )
        return TupleShape((ArrayShape(words[0].element_type, words[0].dimensions),) * 2)

    @staticmethod
    def evaluate(*operands: Array) -> tuple[Any, Any]:
        shape = operands[0].shape
        key0, key1, x0, x1 = (np.ascontiguousarray(operand).reshape(-1) for operand in operands[:_WORDS])
        y0, y1 = threefry_2x32_words(key0, key1, x0, x1)
        return y0.reshape(shape), y1.reshape(shape)


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
        product = values * np.repeat(factors, numbers.shape[-1] // scales.shape[-1], axis=-1)
        return narrow(product, shape.element_type)


def _floating(shape: Shape, subject: str) -> ArrayShape:
    array = array_shape(shape, subject)
    require(array.element_type.is_floating, f"{subject} must be of a floating-point type, but is {array}")
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
