"""sin, cos and tan of any f64.

x = q · π/2 + r with |r| ≤ π/4, r a pair; then r = a + t with a = j/64 and |t| ≤ 1/128 (a little more by the low part).
sin and cos of a are tables; those of t Taylor series up to t⁹ and t⁸, whose next terms are below 2⁻⁸⁰. Small arguments
have j = 0, so nothing cancels.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, fast_two_sum, polynomial, two_product, two_sum
from hloexec.ops.policies.exact.fixed_point import PI, cosine, fixed, parts, sine, table, two_over_pi_words

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
