"""Counter-based random bits on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ELEMENT_TYPES
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.bit_generators import threefry_2x32_words
from hloexec.ops.common import array_shape, require
from hloexec.values import Array

__all__: list[str] = []

_WORDS = 4


@custom_call(
    "cuda_threefry2x32",
    "cu_threefry2x32",
    "cu_threefry2x32_ffi",
    "hip_threefry2x32",
    "hip_threefry2x32_ffi",
    "rocm_threefry2x32",
)
class Threefry2x32:
    """Threefry2x32, 20 rounds: the two output words for the keys (k0, k1) and the counters (x0, x1), all u32 [n].

    The older config holds n as eight bytes; a fifth operand, where there is one, holds it as an array. Source: Salmon,
    Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); jaxlib, gpu_prng.
    """

    @staticmethod
    def infer(*operands: Shape) -> Shape:
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
        return TupleShape((ArrayShape(words[0].element_type, words[0].dimensions),) * 2)

    @staticmethod
    def evaluate(*operands: Array) -> tuple[Any, Any]:
        shape = operands[0].shape
        key0, key1, x0, x1 = (np.ascontiguousarray(operand).reshape(-1) for operand in operands[:_WORDS])
        y0, y1 = threefry_2x32_words(key0, key1, x0, x1)
        return y0.reshape(shape), y1.reshape(shape)
