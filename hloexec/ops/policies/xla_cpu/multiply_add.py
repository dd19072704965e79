"""The fused multiply-add: a product and a sum with one rounding.

Compilers contract a · b + c to it; NumPy has none. The product of two f32 is exact in f64, so that f64 arithmetic gets
there in two roundings, of which the first matters only where it lands on a tie of the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.values import Array

__all__ = ["horner", "multiply_add"]

_DROPPED_BITS = np.int64((1 << 29) - 1)
"""Those of an f64's significand that f32 has no room for."""
_TIE = np.int64(1 << 28)


def multiply_add(factor: Any, other_factor: Any, addend: Any) -> Array:
    """factor · other_factor + addend of f32 numbers, rounded once to f32 (results below 2⁻¹²⁶ perhaps twice).

    Where the sum, rounded to f64, is halfway between two f32, it takes the last bit's step towards what was lost:
    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    product = np.multiply(factor, other_factor, dtype=np.float64)
    total = np.asarray(product + addend)
    ties = (total.view(np.int64) & _DROPPED_BITS) == _TIE
    if ties.any():
        where = np.nonzero(ties)
        addends = np.broadcast_to(np.asarray(addend, np.float64), total.shape)
        _, lost = two_sum(np.broadcast_to(product, total.shape)[where], addends[where])
        step = np.sign(lost) * np.sign(total[where])
        total.view(np.int64)[where] += np.nan_to_num(step).astype(np.int64)
    result: Array = total.astype(np.float32)
    return result


def horner(coefficients: tuple[float, ...], argument: Array) -> Array:
    """Σ coefficients[k] · argumentⁿ⁻¹⁻ᵏ of f32 by Horner's rule with fused multiply-adds."""
    result: Any = np.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = multiply_add(result, argument, np.float32(coefficient))
    return np.asarray(result)
