"""Counter-based random bits on GPUs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.ffi import bytes_of_config, checked_attributes
from hloexec.ops.random.bit_generators import threefry_2x32_words
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
    def resize(change: Resizing) -> str | None:
        """The number of words, eight bytes of it."""
        (before, after), config = change.sizes(0), change.backend_config
        count = prod(before).to_bytes(8, "little")
        if bytes_of_config(config) != count:
            return config
        return prod(after).to_bytes(8, "little").decode("utf-8", "surrogateescape")

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
