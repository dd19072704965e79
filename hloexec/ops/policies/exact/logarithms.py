"""log x and what is made of it: log2, log1p, asinh, acosh, atanh, power.

x = 2ᵏ · m with m from √½ to √2, j = m · 128 rounded, and c ≈ 128 / j of 10 bits give log x = k · ln 2 − log c + log(1 +
r) with r = m · c − 1, |r| < 0.0075. Both halves of m times c are exact, so r is, as a pair. Next to 1 c is 1, so that
nothing cancels. log(1 + r) is its Taylor series up to r⁹, whose next term is below 2⁻⁶⁶ of r.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, fast_two_sum, polynomial, scaled, two_product, two_sum
from hloexec.ops.policies.exact.exponentials import exponential_pair
from hloexec.ops.policies.exact.fixed_point import LN2, fixed, logarithm, parts, table

_FIRST, _LAST = 90, 182
_INVERSES = [Fraction(round(Fraction(128 * 512, max(j, 1))), 512) for j in range(_LAST + 1)]
_INVERSE = np.array([float(c) for c in _INVERSES])
_HIGH, _LOW = table(-logarithm(c) if j >= _FIRST else 0 for j, c in enumerate(_INVERSES))
# k has 11 bits, so its product with the first part is exact.
_LN2, _LN2_LOW = parts(LN2, 42)
_PER_LN2, _PER_LN2_LOW = parts(fixed(1 / Fraction(LN2, fixed(1))), 53)
_COEFFICIENTS = tuple((-1.0) ** n / (n + 3) for n in range(7))
_ROOT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
_MANTISSA = np.int64((1 << 52) - 1)


def log_pair(x: Pair, precise: bool = False) -> Pair:
    """log of a pair, for normal and positive x, good to 2⁻⁵⁸ of it, or 2⁻⁶⁴ where `precise`.

    The low part may be as large as the high one where that is 1, so that log(1 + tiny) is as good.
    """
    shifted = np.asarray(x[0], np.float64).view(np.int64) - _ROOT_HALF_BITS
    k = shifted >> 52
    m = ((shifted & _MANTISSA) + _ROOT_HALF_BITS).view(np.float64)
    m_low = x[1] * doubled.power_of_two(np.clip(-k, -1022, 1023))
    j = np.rint(m * 128).astype(np.int64)
    c = _INVERSE[j]
    m_high, m_rest = doubled.halves(m)
    r, r_low = two_sum(m_high * c - 1, m_rest * c)
    r, tail = two_sum(r, m_low * c)
    r_low = r_low + tail
    series = polynomial(_COEFFICIENTS, r)
    series *= r
    series *= r
    series *= r
    # log(1 + r + low) = log(1 + r) + low / (1 + r).
    series += r_low - r_low * r
    if precise:
        half_square, half_square_low = two_product(r, -0.5 * r)
        series += half_square_low
    else:
        half_square = -0.5 * r * r
    times_k = k.astype(np.float64)
    total, first = two_sum(times_k * _LN2, _HIGH[j])
    total, second = two_sum(total, r)
    total, third = two_sum(total, half_square)
    return fast_two_sum(total, third + (first + second + times_k * _LN2_LOW + _LOW[j] + series))


def log(x: Array) -> Array:
    """log x; −∞ for zeros, NaN for negative x. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    return _with_limits(np.add(*_log_of_any(x)), x)


def _log_of_any(x: Array, precise: bool = False) -> Pair:
    """log x as a pair where x is positive and finite; else any number."""
    safe = np.where((x > 0) & (x < np.inf), x, 1.0)
    tiny = safe < 2.0**-1000
    pair = log_pair((np.where(tiny, safe * 2.0**54, safe), 0.0), precise)
    if tiny.any():
        pair = doubled.add(pair, (np.where(tiny, -54 * _LN2, 0.0), np.where(tiny, -54 * _LN2_LOW, 0.0)))
    return pair


def log_to_base_two(x: Array) -> Array:
    """k + log(m) / ln 2 for x = 2ᵏ · m, m from √½ to √2: exact for powers of two. Error: 0.5 ULP + 2⁻⁴ ULP of f64."""
    safe = np.where((x > 0) & (x < np.inf), x, 1.0)
    m, k = np.frexp(safe)
    is_small = m < math.sqrt(0.5)
    m, k = np.where(is_small, 2 * m, m), np.where(is_small, k - 1, k).astype(np.float64)
    high, low = doubled.multiply(log_pair((m, 0.0)), (_PER_LN2, _PER_LN2_LOW))
    total, rest = two_sum(k, high)
    return _with_limits(total + (rest + low), x)


def _with_limits(value: Array, x: Array) -> Array:
    """What log gives where x is not positive and finite."""
    value = np.where(x == 0, -np.inf, np.where(x < 0, np.nan, value))
    return np.where((x == np.inf) | np.isnan(x), x, value)


def log_plus_one_pair(x: Pair) -> Pair:
    """log(1 + x) for finite x > −1, good to 2⁻⁵⁷ of it."""
    total, rest = two_sum(x[0], 1.0)
    return log_pair((total, rest + x[1]))


def log_plus_one(x: Array) -> Array:
    """log(1 + x). Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    inside = (x > -1) & (x < np.inf)
    high, low = log_plus_one_pair((np.where(inside, x, 1.0), 0.0))
    # Where x² is less than half a last place of x, the logarithm is x.
    result = np.where(np.abs(x) < 2.0**-60, x, high + low)
    return np.where(inside, result, _with_limits(result, 1 + x))


def inverse_hyperbolic_sine(x: Array) -> Array:
    """log(1 + y) with y = |x| + x² / (1 + √(1 + x²)), and the sign of x. Error: 0.5 ULP + 2⁻⁴ ULP of f64."""
    magnitude = np.abs(x)
    large = ~(magnitude < 2.0**30)
    tiny = magnitude < 2.0**-30
    near = np.where(large | tiny, 1.0, magnitude)
    square = two_product(near, near)
    root = doubled.square_root(doubled.add(square, (1.0, 0.0)))
    y = doubled.add(doubled.divide(square, doubled.add(root, (1.0, 0.0))), (near, 0.0))
    high, low = log_plus_one_pair(y)
    result = np.where(tiny, magnitude - magnitude * magnitude * magnitude / 6, high + low)
    if large.any():
        result = np.where(large, _log_doubled(magnitude), result)
    return np.where(np.isfinite(x), np.copysign(result, x), x)


def _log_doubled(x: Array) -> Array:
    """log 2x for large x, to which what log(x + √(x² ± 1)) adds is below 2⁻⁶⁰."""
    result: Array = np.add(*doubled.add(_log_of_any(x), (_LN2, _LN2_LOW)))
    return result


def inverse_hyperbolic_cosine(x: Array) -> Array:
    """log(1 + y) with y = t + √(t (t + 2)), t = x − 1; NaN for x < 1. Error: 0.5 ULP + 2⁻⁴ ULP of f64."""
    large = ~(x < 2.0**30)
    near = np.where((x > 1) & ~large, x, 2.0)
    t = two_sum(near, -1.0)
    root = doubled.square_root(doubled.multiply(t, doubled.add(t, (2.0, 0.0))))
    high, low = log_plus_one_pair(doubled.add(root, t))
    result = np.where(x == 1, 0.0, high + low)
    if large.any():
        result = np.where(large, _log_doubled(x), result)
    return np.where(x < 1, np.nan, np.where(np.isfinite(x), result, x))


def inverse_hyperbolic_tangent(x: Array) -> Array:
    """log(1 + 2|x| / (1 − |x|)) / 2, and the sign of x; ±∞ at ±1. Error: 0.5 ULP + 2⁻⁴ ULP of f64."""
    magnitude = np.abs(x)
    inside = magnitude < 1
    near = np.where(inside & (magnitude > 2.0**-30), magnitude, 0.5)
    high, low = log_plus_one_pair(doubled.divide((2 * near, 0.0), two_sum(1.0, -near)))
    tiny = x + x * x * x / 3
    result = np.where(magnitude > 2.0**-30, np.copysign(0.5 * (high + low), x), tiny)
    result = np.where(magnitude == 1, np.copysign(np.inf, x), result)
    return np.where(inside | (magnitude == 1), np.where(x == 0, x, result), np.nan)


def power(base: Array, exponent: Array) -> Array:
    """base to the power exponent, e^(exponent · log |base|) with the sign that C's pow has; error 0.5 ULP + 2⁻⁵ ULP of
    f64. Special values are C's (C99, F.9.4.4)."""
    magnitude = np.abs(base)
    high, low = _log_of_any(magnitude, precise=True)
    bounded = np.clip(np.where(np.isnan(exponent), 0.0, exponent), -(2.0**80), 2.0**80)
    product, rest = two_product(high, bounded)
    (m, m_low), k = exponential_pair((product, rest + low * bounded))
    result = scaled(m + m_low, np.clip(k, -1200, 1200))
    grows = (magnitude > 1) == (exponent > 0)
    is_extreme = (magnitude == 0) | (magnitude == np.inf) | np.isinf(exponent)
    result = np.where(is_extreme, np.where(grows, np.inf, 0.0), result)
    whole = np.rint(exponent) == exponent
    # An f64 from 2^53 on is even; half of an odd number is not whole.
    odd = whole & (np.abs(exponent) < 2.0**53) & (np.rint(exponent * 0.5) != exponent * 0.5)
    negative = np.signbit(base)
    result = np.where(negative & odd, -result, result)
    result = np.where((base < 0) & np.isfinite(base) & ~whole, np.nan, result)
    result = np.where(np.isnan(base) | np.isnan(exponent), np.nan, result)
    return np.where((base == 1) | (exponent == 0) | ((base == -1) & np.isinf(exponent)), 1.0, result)
