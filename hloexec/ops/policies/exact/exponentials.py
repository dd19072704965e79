"""Exponentials and logarithms, and the constants and tables of all functions.

A *fixed* number is an `int` that stands for itself divided by 2^256. Python's integers are exact, so every machine
computes the same constants; the functions here lose a few units in the last of 256 places, and callers keep 106 of them
at most. `parts` cuts a fixed number into f64 that add up to it.

eˣ and what is made of it: 2ˣ, expm1, sinh, cosh, tanh, logistic.

x = (64 k + j) · ln 2 / 64 + r with |r| ≤ ln 2 / 128 < 0.00542 gives eˣ = 2ᵏ · 2^(j/64) · (1 + p), p = eʳ − 1. The table
of 2^(j/64) is good to 2⁻¹⁰⁶; p is the Taylor series up to r⁷, whose next term, r⁸ / 8!, is below 2⁻⁶⁸ of p.

log x and what is made of it: log2, log1p, asinh, acosh, atanh, power.

x = 2ᵏ · m with m from √½ to √2, j = m · 128 rounded, and c ≈ 128 / j of 10 bits give log x = k · ln 2 − log c + log(1 +
r) with r = m · c − 1, |r| < 0.0075. Both halves of m times c are exact, so r is, as a pair. Next to 1 c is 1, so that
nothing cancels. log(1 + r) is its Taylor series up to r⁹, whose next term is below 2⁻⁶⁶ of r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import factorial, isqrt

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, fast_two_sum, polynomial, scaled, two_product, two_sum

_PLACES = 256
_ONE = 1 << _PLACES


def fixed(value: Fraction | int) -> int:
    """The fixed number next below a rational one."""
    return (value.numerator << _PLACES) // value.denominator


def _times(left: int, right: int) -> int:
    """The product of two fixed numbers."""
    return (left * right) >> _PLACES


def _series(first: int, following: Callable[[int, int], int], term: Callable[[int, int], int]) -> int:
    """Σ term(n, pₙ) with p₀ = `first` and pₙ₊₁ = following(n + 1, pₙ), until the powers vanish."""
    total, power, n = 0, first, 0
    while power not in (0, -1):
        total += term(n, power)
        n += 1
        power = following(n, power)
    return total


def _exponential(x: int) -> int:
    """eˣ by its Taylor series; for |x| ≤ 40 at most, where it loses 60 places."""
    return _series(_ONE, lambda n, power: _times(power, x) // n, lambda n, power: power)


def logarithm(value: Fraction) -> int:
    """log(v) = 2 artanh((v − 1) / (v + 1)); for v around 1."""
    x = fixed((value - 1) / (value + 1))
    square = _times(x, x)
    return 2 * _series(x, lambda n, power: _times(power, square), lambda n, power: power // (2 * n + 1))


def arctangent(value: Fraction) -> int:
    """arctan(v), |v| ≤ 1, by Euler's series Σ 4ⁿ n!² / (2n + 1)! · v^(2n + 1) / (1 + v²)^(n + 1)."""
    factor = fixed(value * value / (1 + value * value))
    return _series(
        fixed(value / (1 + value * value)),
        lambda n, power: _times(power, factor) * 2 * n // (2 * n + 1),
        lambda n, power: power,
    )


def sine(x: int) -> int:
    """sin x by its Taylor series, for |x| ≤ 1."""
    square = _times(x, x)
    return _series(x, lambda n, power: -_times(power, square) // (2 * n * (2 * n + 1)), lambda n, power: power)


def cosine(x: int) -> int:
    """cos x by its Taylor series, for |x| ≤ 1."""
    square = _times(x, x)
    return _series(_ONE, lambda n, power: -_times(power, square) // (2 * n * (2 * n - 1)), lambda n, power: power)


def root_of_two(numerator: int, halvings: int) -> int:
    """2^(numerator / 2^halvings) by repeated square roots."""
    value = _ONE << numerator
    for _ in range(halvings):
        value = isqrt(value << _PLACES)
    return value


LN2 = logarithm(Fraction(2))
PI = 16 * arctangent(Fraction(1, 5)) - 4 * arctangent(Fraction(1, 239))
"""Machin's formula."""


def two_over_pi_words(count: int) -> Array:
    """The first bits of 2/π after the binary point as `count` words of 32 bits, the most significant first."""
    places = 32 * count
    guard = places + 64

    def inverse_arctangent(n: int) -> int:
        following, term = lambda k, power: power // (n * n), lambda k, power: (-1) ** k * (power // (2 * k + 1))
        return _series((1 << guard) // n, following, term)

    pi = 16 * inverse_arctangent(5) - 4 * inverse_arctangent(239)
    digits = ((2 << 2 * guard) // pi) >> (guard - places)
    return np.array([(digits >> (places - 32 * (i + 1))) & 0xFFFFFFFF for i in range(count)], np.uint64)


def error_function_coefficients(node: Fraction, count: int) -> list[int]:
    """The Taylor coefficients of erf about `node`, from the order 0 up.

    Those of g(x) = exp(−x²) follow from g′ = −2x g: (n + 1) gₙ₊₁ = −2 (a gₙ + gₙ₋₁); erf is 2/√π times its integral.
    """
    a = fixed(node)
    gauss = [_ONE * _ONE // _exponential(_times(a, a)), 0]
    gauss[1] = -2 * _times(a, gauss[0])
    for n in range(1, count):
        gauss.append(-2 * (_times(a, gauss[n]) + gauss[n - 1]) // (n + 1))
    scale = 2 * _ONE * _ONE // isqrt(PI << _PLACES)
    square = _times(a, a)
    integral = _series(a, lambda n, power: -_times(power, square) // n, lambda n, power: power // (2 * n + 1))
    return [_times(scale, integral), *(_times(scale, gauss[n]) // (n + 1) for n in range(count - 1))]


def parts(value: int, *bits: int) -> tuple[float, ...]:
    """f64 numbers that add up to a fixed number: one of at most so many bits for each of `bits`, cut off, then a last
    one rounded to 53."""
    pieces = []
    for count in bits:
        dropped = max(0, abs(value).bit_length() - count)
        head = (abs(value) >> dropped) << dropped
        head = head if value >= 0 else -head
        pieces.append(float(Fraction(head, _ONE)))
        value -= head
    return (*pieces, float(Fraction(value, _ONE)))


def table(values: Iterable[int]) -> tuple[Array, Array]:
    """Fixed numbers as two arrays of f64: the numbers rounded, and what that leaves."""
    heads = [(value, float(Fraction(value, _ONE))) for value in values]
    rests = [float(Fraction(value - int(Fraction(head) * _ONE), _ONE)) for value, head in heads]
    columns = np.array([[head for _, head in heads], rests])
    columns.setflags(write=False)
    return columns[0], columns[1]


_INDEX_BITS = 6
_COUNT = 1 << _INDEX_BITS
_POWERS, _POWERS_LOW = table(root_of_two(j, _INDEX_BITS) for j in range(_COUNT))
# Up to |x| = 1500 there are 18 bits of 64 k + j, so that their products with the first two parts are exact.
_STEP, _STEP_MIDDLE, _STEP_LOW = parts(LN2 // _COUNT, 34, 34)
_STEPS_PER_UNIT = 1 / _STEP
_LN2, _LN2_LOW = parts(LN2, 53)
_EXP_COEFFICIENTS = tuple(1 / factorial(n) for n in range(2, 8))
_LIMIT = 1500.0
"""Beyond, everything is 0 or infinite."""


def _reduced(x: Pair) -> tuple[Array, Array, Pair]:
    """k, j, and p as a pair good to 2⁻⁶¹ of it: r² / 2, at most 2⁻⁸ of r, is rounded to 53 bits.

    x − n · step is exact: both are multiples of the last place of one of them and close to each other.
    """
    steps = np.rint(x[0] * _STEPS_PER_UNIT)
    n = steps.astype(np.int64)
    rest, low = two_sum(x[0] - steps * _STEP, -steps * _STEP_MIDDLE)
    low = low + (x[1] - steps * _STEP_LOW)
    tail = polynomial(_EXP_COEFFICIENTS, rest)
    tail *= rest
    tail *= rest
    # e^(r + low) − 1 = p + low · e^r; of the latter, low · r is kept.
    tail += low + low * rest
    return n >> _INDEX_BITS, n & (_COUNT - 1), fast_two_sum(rest, tail)


def exponential_pair(x: Pair) -> tuple[Pair, Array]:
    """(m, k) with eˣ = m · 2ᵏ, m from 0.99 to 2, good to 2⁻⁶⁰; x is cut to ±1500, and NaN is any number."""
    outside = ~(np.abs(x[0]) <= _LIMIT)
    if outside.any():
        x = np.where(outside, np.copysign(_LIMIT, x[0]), x[0]), np.where(outside, 0.0, x[1])
        x = np.where(np.isnan(x[0]), 0.0, x[0]), x[1]
    k, j, p = _reduced(x)
    high = _POWERS[j]
    # The product is below 2⁻⁷ of the sum, and rounded to 53 bits.
    return fast_two_sum(high, _POWERS_LOW[j] + high * (p[0] + p[1])), k


def exponential(x: Array) -> Array:
    """eˣ; 0 for −∞. Error: 0.5 ULP + 2⁻⁸ ULP of f64."""
    (high, low), k = exponential_pair((x, 0.0))
    # 2^1500·log₂e lies beyond what `scaled` takes.
    result = scaled(high + low, np.clip(k, -1200, 1200))
    return np.where(np.isnan(x), x, result)


def exponential_of_two(x: Array) -> Array:
    """2ˣ as 2ⁿ · e^(f ln 2), n being the nearest whole number: exact where f is 0. Error: 0.5 ULP + 2⁻⁷ ULP of f64."""
    bounded = np.clip(np.where(np.isnan(x), 0.0, x), -1200, 1200)
    whole = np.rint(bounded)
    rest = bounded - whole
    high, low = two_product(rest, _LN2)
    (high, low), k = exponential_pair((high, low + rest * _LN2_LOW))
    result = scaled(high + low, k + whole.astype(np.int64))
    return np.where(np.isnan(x), x, result)


def _minus_one(x: Pair) -> Pair:
    """eˣ − 1 for |x| ≤ 700, good to 2⁻⁵⁹ of it.

    With j = k = 0 it is p; else 2ᵏ · 2^(j/64) − 1, at least 0.0107 in magnitude, and 2ᵏ · 2^(j/64) · p, at most half of
    it, add up as pairs.
    """
    k, j, p = _reduced(x)
    scale = doubled.power_of_two(k)
    high, low = _POWERS[j] * scale, _POWERS_LOW[j] * scale
    first = two_sum(high, -1.0)
    product = two_product(high, p[0])
    second = product[0], product[1] + (high * p[1] + low * p[0])
    total, rest = two_sum(first[0], second[0])
    return fast_two_sum(total, rest + (first[1] + second[1] + low))


def exponential_minus_one(x: Array) -> Array:
    """eˣ − 1; −1 for −∞. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    near = np.where(np.abs(x) < 50, x, 50.0)
    high, low = _minus_one((near, 0.0))
    result = np.where(x == 0, x, high + low)
    if (np.abs(x) < 50).all():
        return result
    # Beyond 2^53 the 1 is lost in eˣ.
    return np.where(np.isnan(x), x, np.where(x >= 50, exponential(x), np.where(x <= -50, -1.0, result)))


def _half_power(x: Array) -> tuple[Pair, Array, Array]:
    """e^|x| / 2 as a pair times 2ᵏ, k, and whether |x| is too large for e^−|x| to count."""
    pair, k = exponential_pair((np.abs(x), 0.0))
    return pair, k - 1, ~(np.abs(x) < 40)


def cosh(x: Array) -> Array:
    """(eˣ + e⁻ˣ) / 2. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    (high, low), k, large = _half_power(x)
    scale = doubled.power_of_two(np.clip(k, -100, 100))
    grown = high * scale, low * scale
    inverse = doubled.divide((np.full_like(high, 0.25), 0.0), grown)
    near_high, near_low = doubled.add(grown, inverse)
    far = scaled(high + low, np.clip(k, -1200, 1200))
    return np.where(np.isnan(x), x, np.where(large, far, near_high + near_low))


def sinh(x: Array) -> Array:
    """(m + m / (m + 1)) / 2 with m = e^|x| − 1, and the sign of x. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    (high, low), k, large = _half_power(x)
    far = scaled(high + low, np.clip(k, -1200, 1200))
    m = _minus_one((np.where(large, 1.0, np.abs(x)), 0.0))
    near_high, near_low = doubled.add(m, doubled.divide(m, doubled.add(m, (1.0, 0.0))))
    result = np.where(large, far, (near_high + near_low) * 0.5)
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(result, x))


def tanh(x: Array) -> Array:
    """m / (m + 2) with m = e^(2|x|) − 1, and the sign of x. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    # From 20 on, 1 − tanh x < 2⁻⁵⁵.
    m = _minus_one((np.minimum(np.abs(x), 20.0) * 2, 0.0))
    high, low = doubled.divide(m, doubled.add(m, (2.0, 0.0)))
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(high + low, x))


def logistic(x: Array) -> Array:
    """1 / (1 + e⁻ˣ), for negative x as eˣ / (1 + eˣ). Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    (high, low), k = exponential_pair((-np.abs(x), 0.0))
    scale = doubled.power_of_two(np.clip(k, -300, 0))
    power = high * scale, low * scale
    beyond = doubled.add((1.0, 0.0), power)
    negative = x < 0
    top, bottom = doubled.divide(doubled.where(negative, power, (1.0, 0.0)), beyond)
    result = top + bottom
    far = x < -200
    if far.any():
        result = np.where(far, scaled(high + low, np.clip(k, -1200, 0)), result)
    return np.where(np.isnan(x), x, result)


_FIRST, _LAST = 90, 182
_INVERSES = [Fraction(round(Fraction(128 * 512, max(j, 1))), 512) for j in range(_LAST + 1)]
_INVERSE = np.array([float(c) for c in _INVERSES])
_LOGS, _LOGS_LOW = table(-logarithm(c) if j >= _FIRST else 0 for j, c in enumerate(_INVERSES))
# k has 11 bits, so its product with the first part is exact.
_LN2_SHORT, _LN2_REST = parts(LN2, 42)
_PER_LN2, _PER_LN2_LOW = parts(fixed(1 / Fraction(LN2, fixed(1))), 53)
_LOG_COEFFICIENTS = tuple((-1.0) ** n / (n + 3) for n in range(7))
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
    series = polynomial(_LOG_COEFFICIENTS, r)
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
    total, first = two_sum(times_k * _LN2_SHORT, _LOGS[j])
    total, second = two_sum(total, r)
    total, third = two_sum(total, half_square)
    return fast_two_sum(total, third + (first + second + times_k * _LN2_REST + _LOGS_LOW[j] + series))


def log(x: Array) -> Array:
    """log x; −∞ for zeros, NaN for negative x. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    return _with_limits(np.add(*_log_of_any(x)), x)


def _log_of_any(x: Array, precise: bool = False) -> Pair:
    """log x as a pair where x is positive and finite; else any number."""
    safe = np.where((x > 0) & (x < np.inf), x, 1.0)
    tiny = safe < 2.0**-1000
    pair = log_pair((np.where(tiny, safe * 2.0**54, safe), 0.0), precise)
    if tiny.any():
        pair = doubled.add(pair, (np.where(tiny, -54 * _LN2_SHORT, 0.0), np.where(tiny, -54 * _LN2_REST, 0.0)))
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
    result: Array = np.add(*doubled.add(_log_of_any(x), (_LN2_SHORT, _LN2_REST)))
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
