"""The `ftz` policy: denormal numbers are treated as zeros of the same sign, as on XLA:CPU.

XLA:CPU sets the processor's modes that flush denormal operands and results, so the effect depends on the machine
instruction that an operation is compiled to. Instructions on f16 never flush; operations on bits (negate, abs, copies,
conversions between f32 and bf16) and functions that return small arguments unchanged (sine, tanh,
exponential-minus-one, remainder) keep denormals. Source: measured, XLA:CPU of jaxlib 0.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.traits import Traits

_FLUSHED_TYPES = frozenset({"bf16", "f32", "f64"})
_KEPT_CONVERSIONS = frozenset({"bf16", "f32"})


def flushes(traits: Traits, types: frozenset[ElementType]) -> bool:
    """Whether an operation whose operands and results have these element types flushes denormals."""
    moves_bits = traits.converts and (len(types) == 1 or {entry.name for entry in types} <= _KEPT_CONVERSIONS)
    return traits.flushes_denormals and not moves_bits


@frozen(eq=False)
class Flushing:
    """A kernel whose operands and results are flushed."""

    kernel: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        result = self.kernel(*map(flushed, operands))
        return tuple(map(flushed, result)) if isinstance(result, tuple) else flushed(result)


def flushed(array: Array) -> Array:
    """The array with denormal numbers of f32, bf16, f64, c64 and c128 replaced by zeros of their sign."""
    entry = element_type_of(array.dtype)
    if entry.is_complex:
        parts = np.ascontiguousarray(array).reshape(-1).view(f"f{array.itemsize // 2}")
        return flushed(parts).view(array.dtype).reshape(array.shape)
    if entry.name not in _FLUSHED_TYPES:
        return array
    bits = array.view(f"u{array.itemsize}")
    tiny = (bits & bits.dtype.type(((1 << entry.exponent_bits) - 1) << entry.mantissa_bits)) == 0
    if not tiny.any():
        return array
    return np.where(tiny, bits & bits.dtype.type(1 << entry.bits - 1), bits).view(entry.storage)
