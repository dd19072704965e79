"""Building complex numbers from their parts, and their quotients with the infinities that C99 requires."""

from __future__ import annotations

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.arena import empty


def from_parts(real: Array, imag: Array) -> Array:
    """real + i imag, of f32 or f64 parts."""
    result = empty(np.broadcast_shapes(real.shape, imag.shape), np.complex128 if real.itemsize == 8 else np.complex64)
    result.real = real
    result.imag = imag
    return result


def with_infinities(quotient: Array, lhs: Array, rhs: Array) -> Array:
    """A quotient of c128 numbers with infinities recovered from NaN, in place (C99, G.5.1)."""
    doubtful = np.isnan(quotient.real) | np.isnan(quotient.imag)
    if not doubtful.any():
        return quotient
    # Either may be one number, for all.
    lhs, rhs = (np.broadcast_to(operand, quotient.shape)[doubtful] for operand in (lhs, rhs))
    a, b, c, d = lhs.real, lhs.imag, rhs.real, rhs.imag
    lhs_infinite, rhs_infinite = np.isinf(a) | np.isinf(b), np.isinf(c) | np.isinf(d)
    lhs_finite, rhs_finite = np.isfinite(a) & np.isfinite(b), np.isfinite(c) & np.isfinite(d)
    zero = (c == 0) & (d == 0)
    infinity = np.copysign(np.inf, c)
    over_zero = from_parts(infinity * a, infinity * b)
    repaired = quotient[doubtful]
    both_nan = np.isnan(repaired.real) & np.isnan(repaired.imag)
    for where, left, right, scale in (
        (both_nan & lhs_infinite & rhs_finite, _unit_box(a, b), (c, d), np.inf),
        (both_nan & lhs_finite & rhs_infinite, (a, b), _unit_box(c, d), 0.0),
    ):
        (p, q), (r, s) = left, right
        repaired = np.where(where, from_parts(scale * (p * r + q * s), scale * (q * r - p * s)), repaired)
    quotient[doubtful] = np.where(zero, over_zero, repaired)
    return quotient


def _unit_box(real: Array, imag: Array) -> tuple[Array, Array]:
    """An infinite number as the corner or side of the unit box in its direction."""
    return (
        np.copysign(np.where(np.isinf(real), 1.0, 0.0), real),
        np.copysign(np.where(np.isinf(imag), 1.0, 0.0), imag),
    )
