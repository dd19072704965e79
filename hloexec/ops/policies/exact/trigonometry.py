"""Circular functions and their inverses, roots, and the error function.

sin, cos and tan of any f64.

x = q · π/2 + r with |r| ≤ π/4, r a pair; then r = a + t with a = j/64 and |t| ≤ 1/128 (a little more by the low part).
sin and cos of a are tables; those of t Taylor series up to t⁹ and t⁸, whose next terms are below 2⁻⁸⁰. Small arguments
have j = 0, so nothing cancels.

atan, atan2, asin and acos: all are the angle of a point.

The angle of (x, y) with 0 ≤ y ≤ x is arctan a + arctan z with a = j/64 next to y / x and z = (y − a x) / (x + a y), at
most 1/127 in magnitude. arctan a is a table, arctan z its series up to z⁹, whose next term is below 2⁻⁷² of z. Other
octants are reflections: π/2 − angle and π − angle.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import (
    Pair,
    fast_two_sum,
    polynomial,
    power_of_two,
    scaled,
    two_product,
    two_sum,
)
from hloexec.ops.policies.exact.exponentials import (
    PI,
    arctangent,
    cosine,
    error_function_coefficients,
    fixed,
    parts,
    sine,
    table,
    two_over_pi_words,
)


def _mantissa_and_exponent(x: Array) -> tuple[Array, Array]:
    """Positive x as m · 2^k, m in [1, 2); 1 · 2⁰ for all else."""
    half, exponent = np.frexp(np.where((x > 0) & (x < np.inf), x, 1.0))
    return 2 * half, exponent.astype(np.int64) - 1


def cube_root(x: Array) -> Array:
    """∛x. Newton's method for y³ = m, m from 1 to 8, from a line with an error below 9 %; its relative error is squared
    each time: 2⁻³·⁵, 2⁻⁷, 2⁻¹³, 2⁻²⁶, 2⁻⁵⁰; a last step has its residue as a pair. Error: 0.5 ULP + 2⁻²⁰ ULP of f64.
    """
    m, k = _mantissa_and_exponent(np.abs(x))
    third = np.floor_divide(k, 3)
    m = m * power_of_two(k - 3 * third)
    y = 0.95 + 0.14 * m
    for _ in range(5):
        y = y - (y * y * y - m) / (3 * y * y)
    cube = doubled.multiply(two_product(y, y), (y, 0.0))
    y = y - ((cube[0] - m) + cube[1]) / (3 * y * y)
    usual = np.isfinite(x) & (x != 0)
    return np.where(usual, np.copysign(y * power_of_two(third), x), x)


def reciprocal_square_root(x: Array) -> Array:
    """1 / √x, the quotient improved by a step of Newton's with the residue 1 − m y² as a pair; 1 / √−0 = −∞.

    Error: 0.5 ULP + 2⁻²⁰ ULP of f64.
    """
    m, k = _mantissa_and_exponent(x)
    odd = k & 1
    m = m * power_of_two(odd)
    y = 1 / np.sqrt(m)
    product = doubled.multiply(two_product(y, y), (m, 0.0))
    y = y + y * (((1 - product[0]) - product[1]) * 0.5)
    result = y * power_of_two(-((k - odd) >> 1))
    usual = (x > 0) & (x < np.inf)
    limits = np.where(np.isnan(x) | (x < 0), np.nan, np.where(x == 0, np.copysign(np.inf, x), 0.0))
    return np.where(usual, result, limits)


def hypotenuse_pair(x: Array, y: Array) -> tuple[Pair, Array]:
    """√(x² + y²) of finite numbers as a pair times 2^k, good to 2⁻¹⁰⁰; the pair is 0, or from ½ to √2."""
    x, y = np.abs(x), np.abs(y)
    _, exponent = np.frexp(np.maximum(x, y))
    k = exponent.astype(np.int64)
    x, y = scaled(x, -k), scaled(y, -k)
    # What is 2⁻²⁰⁰ of the other one does not count, and its square might be denormal.
    x, y = np.where(x < 2.0**-200, 0.0, x), np.where(y < 2.0**-200, 0.0, y)
    return doubled.square_root(doubled.add(two_product(x, x), two_product(y, y))), k


# erf(a + h) = Σ cₙ(a) hⁿ with a = j/16 next to x and |h| ≤ 1/32: c₀ and c₁ as pairs, 14 terms in all. |cₙ| is
# below 2^(n/2) / √(n · n!) (Cramér's bound of Hermite functions), so that what is left out is below 2⁻⁷⁰. About 0 erf
# has only odd terms, and keeps its relative precision. From 6 on, 1 − erf x < 2⁻⁵⁵.
_NODES_PER_UNIT = 16
_ONE_FROM = 6.0
_TERMS, _PLAIN_TERMS = 14, 10
_ERF_NODES = (Fraction(j, _NODES_PER_UNIT) for j in range(int(_ONE_FROM) * _NODES_PER_UNIT + 1))
_COLUMNS = [*map(table, zip(*(error_function_coefficients(node, _TERMS) for node in _ERF_NODES), strict=True))]


def plain_error_function(x: Array) -> Array:
    """erf x in plain f64, with an error below 2⁻⁴⁸ of it: terms from the tenth on are below 2⁻⁵⁷. NaN becomes 1."""
    magnitude = np.fmin(np.abs(x), _ONE_FROM)
    j = np.rint(magnitude * _NODES_PER_UNIT)
    magnitude -= j * (1 / _NODES_PER_UNIT)
    index = j.astype(np.int64)
    result: Array = _COLUMNS[_PLAIN_TERMS - 1][0][index]
    for column, _ in reversed(_COLUMNS[: _PLAIN_TERMS - 1]):
        result *= magnitude
        result += column[index]
    return np.copysign(result, x)


def error_function(x: Array) -> Array:
    """2/√π · ∫₀ˣ exp(−t²) dt. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    magnitude = np.where(np.isnan(x), 0.0, np.minimum(np.abs(x), _ONE_FROM))
    j = np.rint(magnitude * _NODES_PER_UNIT)
    h = magnitude - j * (1 / _NODES_PER_UNIT)
    index = j.astype(np.int64)
    tail = _COLUMNS[-1][0][index]
    for high, _ in reversed(_COLUMNS[2:-1]):
        tail = tail * h + high[index]
    constant, constant_low = _COLUMNS[0][0][index], _COLUMNS[0][1][index]
    slope, slope_low = _COLUMNS[1][0][index], _COLUMNS[1][1][index]
    product, product_low = two_product(slope, h)
    total, rest = two_sum(constant, product)
    result = total + (rest + (product_low + constant_low + slope_low * h + tail * h * h))
    # Below, the low part of the product may be denormal; x³ does not count.
    result = np.where(magnitude < 2.0**-500, magnitude * slope, result)
    return np.where(np.isnan(x), x, np.copysign(result, x))


_NODES = [fixed(Fraction(j, 64)) for j in range(52)]
_SINE, _SINE_LOW = table(map(sine, _NODES))
_COSINE, _COSINE_LOW = table(map(cosine, _NODES))
_SINE_COEFFICIENTS = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880)
_COSINE_COEFFICIENTS = (-1 / 2, 1 / 24, -1 / 720, 1 / 40320)

# Up to 2^20 a multiple of π/2 has 20 bits, so that its products with the first three parts are exact; with all five the
# error is below 2⁻¹⁶⁰, and no f64 in that range comes closer than 2⁻⁶⁰ to a multiple.
_HALF_PI = parts(PI // 2, 33, 33, 33)
_TWO_OVER_PI = 1 / (_HALF_PI[0] + _HALF_PI[1])
_HALF_PI_PAIR = table([PI // 2])
_MODERATE = 2.0**20

_WORD = np.uint64(32)
_WORD_MASK = np.uint64(0xFFFFFFFF)
_WINDOW = 7
_WORDS = two_over_pi_words(41)
_MANTISSA = np.int64((1 << 52) - 1)


def _reduce_moderate(x: Array) -> tuple[Array, Pair]:
    """The quadrant and the rest, for |x| < 2^20, by subtracting π/2 · q part by part (Cody and Waite).

    x − q · part is exact: what remains is below 1 and a multiple of 2⁻⁵³.
    """
    q = np.rint(x * _TWO_OVER_PI)
    rest: Pair = two_sum(x - q * _HALF_PI[0], -q * _HALF_PI[1])
    rest = doubled.add(rest, (-q * _HALF_PI[2], -q * _HALF_PI[3]))
    return q.astype(np.int64), rest


def _reduce_large(x: Array) -> tuple[Array, Pair]:
    """The quadrant and the rest, for |x| ≥ 2^20, by the bits of 2/π that matter (Payne and Hanek, 1983).

    |x| = m · 2^e with a whole m below 2^53, and bits of 2/π before the place e − 2 behind the point give multiples of
    four quadrants. 192 bits from there on, times m, modulo 2^192, are the quadrant and 190 bits of the fraction, of
    which the last 53 are uncertain. No f64 comes closer than 2⁻⁶² to a multiple of π/2: 75 bits remain.
    """
    bits = np.abs(x).view(np.int64)
    m = ((bits & _MANTISSA) | (1 << 52)).view(np.uint64)
    start = (bits >> 52) - 1075 - 2
    # The first bit of the window, counted from 0 behind the point; before the point there are zeros.
    first, shift = start >> 5, (start & 31).view(np.uint64)
    words = [np.where(first + i < 0, np.uint64(0), _WORDS[np.maximum(first + i, 0)]) for i in range(_WINDOW)]
    limbs = [((words[i] << shift) | (words[i + 1] >> (_WORD - shift))) & _WORD_MASK for i in range(_WINDOW - 1)]
    low, high = m & _WORD_MASK, m >> _WORD
    product: list[Array] = []
    carry, below, above = (np.zeros_like(m) for _ in range(3))
    for limb in reversed(limbs):
        # A limb's product with the upper digit of m has its digits `below` one place higher, `above` two places. The
        # first sum stays below 2^64: (2³² − 1)² and a carry below 2³³.
        lower = limb * low + carry
        digit = (lower & _WORD_MASK) + below
        product.append(digit & _WORD_MASK)
        carry = (lower >> _WORD) + (digit >> _WORD) + above
        upper = limb * high
        below, above = upper & _WORD_MASK, upper >> _WORD
    product.reverse()
    return _signed_rest(product, x)


def _signed_rest(digits: list[Array], x: Array) -> tuple[Array, Pair]:
    """Digits of |x| · 2/π modulo 4, the first with two bits before the point, as quadrant and rest for x."""
    quadrant = (digits[0] >> np.uint64(30)).astype(np.int64)
    values = [(digits[0] & np.uint64(0x3FFFFFFF)).astype(np.float64), *(d.astype(np.float64) for d in digits[1:])]
    # From half a quadrant on, the rest is counted down from the next: digit by digit, exactly.
    upper = values[0] >= 2.0**29
    values[0] = values[0] - np.where(upper, 2.0**30, 0.0)
    rest: Pair = (np.zeros_like(x), np.zeros_like(x))
    for place, value in enumerate(values):
        rest = doubled.add(rest, (value * 2.0 ** (-30 - 32 * place), 0.0))
    rest = doubled.multiply(rest, _HALF_PI_PAIR)
    quadrant = quadrant + upper
    negative = x < 0
    sign = np.where(negative, -1.0, 1.0)
    return np.where(negative, -quadrant, quadrant), (rest[0] * sign, rest[1] * sign)


def _reduced(x: Array) -> tuple[Array, Pair]:
    large = np.abs(x) >= _MODERATE
    if not large.any():
        return _reduce_moderate(x)
    quadrant, (rest, low) = _reduce_moderate(np.where(large, 0.0, x))
    low = low + np.zeros_like(x)
    where = np.flatnonzero(large)
    quadrant[where], (rest[where], low[where]) = _reduce_large(x[where])
    return quadrant, (rest, low)


def sin_and_cos_pairs(x: Array) -> tuple[Pair, Pair]:
    """sin x and cos x of finite x as pairs good to 2⁻⁶⁰ of each."""
    quadrant, (r, r_low) = _reduced(x)
    sign = np.where(np.signbit(r), -1.0, 1.0)
    r, r_low = r * sign, r_low * sign
    j = np.rint(r * 64)
    t, t_low = two_sum(r - j * (1 / 64), r_low)
    index = j.astype(np.int64)
    square = t * t
    sine_rest = polynomial(_SINE_COEFFICIENTS, square) * square * t
    cosine_rest = polynomial(_COSINE_COEFFICIENTS, square) * square
    s, c = _SINE[index], _COSINE[index]
    # sin(a + t) = sin a + cos a · t + (cos a · (sin t − t) + sin a · (cos t − 1)), the product as a pair; likewise cos.
    product, product_low = two_product(c, t)
    high, low = two_sum(s, product)
    low = low + (product_low + _SINE_LOW[index] + _COSINE_LOW[index] * t + c * t_low + c * sine_rest + s * cosine_rest)
    sine_pair = fast_two_sum(high, low)
    product, product_low = two_product(-s, t)
    high, low = fast_two_sum(c, product)
    # cos t lacks −t · t_low.
    low = low + (product_low + _COSINE_LOW[index] - s * t_low - s * sine_rest + c * (cosine_rest - t * t_low))
    cosine_pair = fast_two_sum(high, low)
    sine_pair = sine_pair[0] * sign, sine_pair[1] * sign
    swapped = (quadrant & 1) == 1
    first, second = doubled.where(swapped, cosine_pair, sine_pair), doubled.where(swapped, sine_pair, cosine_pair)
    first_sign = np.where((quadrant & 2) == 2, -1.0, 1.0)
    second_sign = np.where(((quadrant + 1) & 2) == 2, -1.0, 1.0)
    return (first[0] * first_sign, first[1] * first_sign), (second[0] * second_sign, second[1] * second_sign)


_TINY = 2.0**-30
"""Below, Taylor's second term is below 2⁻⁶¹ of the first, and that error of a product may be denormal matters."""


def sin(x: Array) -> Array:
    """sin x; NaN for ±∞. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    finite = np.isfinite(x)
    (high, low), _ = sin_and_cos_pairs(np.where(finite, x, 0.0))
    result = np.where(np.abs(x) < _TINY, x - x * x * x / 6, high + low)
    return np.where(finite, np.where(x == 0, x, result), np.nan)


def cos(x: Array) -> Array:
    """cos x; NaN for ±∞. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    finite = np.isfinite(x)
    _, (high, low) = sin_and_cos_pairs(np.where(finite, x, 0.0))
    return np.where(finite, high + low, np.nan)


def tan(x: Array) -> Array:
    """sin x / cos x; NaN for ±∞. Error: 0.5 ULP + 2⁻⁵ ULP of f64."""
    finite = np.isfinite(x)
    sine_pair, cosine_pair = sin_and_cos_pairs(np.where(finite, x, 0.0))
    high, low = doubled.divide(sine_pair, cosine_pair)
    result = np.where(np.abs(x) < _TINY, x + x * x * x / 3, high + low)
    return np.where(finite, np.where(x == 0, x, result), np.nan)


_TABLE, _TABLE_LOW = table(arctangent(Fraction(j, 64)) if j else 0 for j in range(65))
_COEFFICIENTS = (-1 / 3, 1 / 5, -1 / 7, 1 / 9)
_ANGLES, _ANGLES_LOW = table(k * PI // 2 for k in range(3))


def _angle(y: Pair, x: Pair) -> Pair:
    """The angle in [0, π/2] of the point (x, y) in the first quadrant, not the origin, good to 2⁻⁶⁰ of it."""
    steep = y[0] > x[0]
    small, large = doubled.where(steep, x, y), doubled.where(steep, y, x)
    j = np.rint(small[0] / large[0] * 64)
    a = j * (1 / 64)
    numerator = doubled.add(small, _times(-a, large))
    denominator = doubled.add(large, _times(a, small))
    z, z_low = doubled.divide(numerator, denominator)
    square = z * z
    z_low = z_low + polynomial(_COEFFICIENTS, square) * square * z
    index = j.astype(np.int64)
    high, low = fast_two_sum(_TABLE[index], z)
    high, low = fast_two_sum(high, low + (z_low + _TABLE_LOW[index]))
    complement = doubled.add((_ANGLES[1], _ANGLES_LOW[1]), (-high, -low))
    return doubled.where(steep, complement, (high, low))


def _times(factor: Array, x: Pair) -> Pair:
    """factor · x where the factor has few bits."""
    high, low = two_product(factor, x[0])
    return high, low + factor * x[1]


def _value(angle: Pair, left: Array) -> Array:
    """The angle, or π less it where the point lies to the left."""
    if left.any():
        angle = doubled.where(left, doubled.add((_ANGLES[2], _ANGLES_LOW[2]), (-angle[0], -angle[1])), angle)
    return np.asarray(angle[0] + angle[1])


def arc_tangent(x: Array) -> Array:
    """arctan x. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    magnitude = np.minimum(np.abs(x), 2.0**80)
    usual = magnitude > 2.0**-30
    high, low = _angle((np.where(usual, magnitude, 1.0), 0.0), (np.ones_like(x), 0.0))
    small = np.where(usual, 0.0, x)
    result = np.where(usual, np.copysign(high + low, x), small - small * small * small / 3)
    return np.where(np.isnan(x) | (x == 0), x, result)


def arc_tangent_of_point(y: Array, x: Array) -> Array:
    """The angle of the point (x, y), in [−π, π]. Error: 0.5 ULP + 2⁻⁶ ULP of f64, a little more where it is denormal.

    Special values are C's (C99, F.9.1.4): zeros count as infinitely small, infinities as infinitely large and equal.
    """
    nan = np.isnan(x) | np.isnan(y)
    infinite = np.isinf(x) | np.isinf(y)
    height, width = (np.where(infinite, np.isinf(side) * 1.0, np.abs(side)) for side in (y, x))
    origin = (height == 0) & (width == 0)
    height, width = np.where(nan, 1.0, height), np.where(nan | origin, 1.0, width)
    _, exponent = np.frexp(np.maximum(height, width))
    # Into [½, 1); only a vanishing ratio makes a number denormal.
    scaled_height, scaled_width = (scaled(side, -exponent.astype(np.int64)) for side in (height, width))
    # Far from the diagonal, arctan(y / x) is y / x, and products with small numbers would lose their low parts.
    flat = scaled_height < scaled_width * 2.0**-40
    steep = scaled_width < scaled_height * 2.0**-300
    safe_width = np.where(steep, 0.0, np.where(flat, 0.75, scaled_width))
    angle = _angle((np.where(flat, 0.5, scaled_height), 0.0), (safe_width, 0.0))
    if flat.any():
        # To the right y / x is all; to the left it disappears in π but for its rounding.
        quotient = height / width
        angle = doubled.where(flat, (quotient, -quotient * quotient * quotient / 3), angle)
    return np.where(nan, np.nan, np.copysign(_value(angle, np.signbit(x)), y))


def _cathetus(x: Array) -> Pair:
    """√(1 − x²) = √((1 − x) (1 + x)) for 0 ≤ x ≤ 1."""
    return doubled.square_root(doubled.multiply(two_sum(1.0, -x), two_sum(1.0, x)))


def arc_sine(x: Array) -> Array:
    """The angle of (√(1 − x²), x). NaN for |x| > 1. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    magnitude = np.abs(x)
    tiny = magnitude < 2.0**-30
    inside = magnitude <= 1
    safe = np.where(tiny | ~inside, 0.5, magnitude)
    high, low = _angle((safe, 0.0), _cathetus(safe))
    result = np.where(tiny, x + x * x * x / 6, np.copysign(high + low, x))
    return np.where(inside, np.where(x == 0, x, result), np.nan)


def arc_cosine(x: Array) -> Array:
    """The angle of (x, √(1 − x²)). NaN for |x| > 1. Error: 0.5 ULP + 2⁻⁶ ULP of f64."""
    magnitude = np.abs(x)
    inside = magnitude <= 1
    # Below 2⁻¹⁰⁰, x does not count.
    safe = np.where(inside & (magnitude > 2.0**-100), magnitude, 0.0)
    root = _cathetus(safe)
    angle = _angle(root, (safe, 0.0))
    return np.where(inside, _value(angle, np.signbit(x) & inside), np.nan)
