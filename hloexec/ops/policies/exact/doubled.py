"""Doubled precision: pairs (high, low) of f64 that stand for their sum, low at most half a unit in the last place of
high.

Sums and products of two f64 are such pairs exactly; operations on pairs are good to 2⁻¹⁰⁰ or better, of their operands'
magnitudes for sums, of the result for the others. Nothing may overflow; what is infinite or NaN, callers handle.
Sources: T. J. Dekker, "A floating-point technique for extending the available precision" (1971); D. E. Knuth, "The Art
of Computer Programming", 4.2.2.

What is computed in f64 with a bound on its error, for a result that is rounded to f32 or less, rarely lies so near to
the middle between two neighbours that its error decides. The few that do are computed again with more digits. Source:
A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit" (1991).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.values import Array
from hloexec.ops.common import narrow

_MARGIN = 2.0**-42
"""Relative. Whoever finds a value certain knows that the true one is at least this far from the middle between two
results, so that what has another, smaller error rounds the same, too: results do not depend on the order in which a
processor's kernels add up."""


def can_be_certain(element_type: ElementType) -> bool:
    """Whether f64 has enough more digits than a float type that few values are doubtful."""
    return element_type.is_floating and element_type.mantissa_bits <= 23


def doubtful(value: Array, error: Any, element_type: ElementType) -> Array:
    """Which elements of an f64 array, off by up to `error` (half of it, if the margin is to hold), may round to another
    value of a type that `can_be_certain`; of NaN, what its bits decide.
    """
    bound = np.abs(value)
    bound *= _MARGIN
    bound += error
    pattern = f"u{element_type.storage.itemsize}"
    lower, upper = (narrow(end, element_type).view(pattern) for end in (value - bound, value + bound))
    return np.asarray(lower != upper)


EXACT_UNITS = 2.0**52
"""Sums of magnitudes below so many units are exact in f64 in any order: many sums of a few f32 numbers lie in the very
middle between two, and are certain for that reason only."""


def units_of(array: Array) -> Array:
    """For each element of an f32 array the largest power of two of which it is a multiple; infinite for zeros."""
    pattern = np.asarray(array).view(np.uint32)
    significand = (pattern & 0x7FFFFF) | 0x800000
    significand &= ~significand + 1
    exponent = np.maximum((pattern >> 23) & 0xFF, 1).astype(np.int32)
    units: Array = np.ldexp(significand.astype(np.float32), exponent - 150)
    return np.where(array == 0, np.float32(np.inf), units)


_UNCERTAIN = 1 << 10
"""In units of the last place of f64: 2⁻⁴³ of the value, or more."""
_PERIOD = 1 << 28
"""f32 numbers, and the middles between them, have at most 25 significant bits, so that the patterns of these in f64 are
multiples of it; so are those of narrower types, of denormals, zeros, infinities and NaN."""


def near_a_middle(value: Array) -> Array:
    """The places in a flat f64 array of what may round to another f32, or narrower number, for an error of 2⁻⁴³."""
    pattern = value.view(np.int64) + _UNCERTAIN
    pattern &= _PERIOD - 1
    return np.flatnonzero(pattern < 2 * _UNCERTAIN)


Pair: TypeAlias = tuple[Any, Any]

_UPPER_BITS = np.int64(-1 << 27)


def two_sum(a: Any, b: Any) -> Pair:
    """a + b exactly."""
    total = a + b
    shared = total - a
    return total, (a - (total - shared)) + (b - shared)


def fast_two_sum(a: Any, b: Any) -> Pair:
    """a + b exactly, provided |a| ≥ |b| or a = 0."""
    total = a + b
    return total, b - (total - a)


def halves(a: Any) -> Pair:
    """An f64 as the sum of its upper 26 and its lower 27 bits."""
    high = (np.asarray(a, np.float64).view(np.int64) & _UPPER_BITS).view(np.float64)
    return high, a - high


def two_product(a: Any, b: Any) -> Pair:
    """a · b to within 2⁻¹⁰⁶ of it; exactly where one has at most 26 bits. Lost where the low part underflows."""
    product = a * b
    a_high, a_low = halves(a)
    b_high, b_low = halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def add(x: Pair, y: Pair) -> Pair:
    """x + y."""
    high, low = two_sum(x[0], y[0])
    rest, tiny = two_sum(x[1], y[1])
    high, low = fast_two_sum(high, low + rest)
    return fast_two_sum(high, low + tiny)


def multiply(x: Pair, y: Pair) -> Pair:
    """x · y."""
    high, low = two_product(x[0], y[0])
    return fast_two_sum(high, low + (x[0] * y[1] + x[1] * y[0]))


def divide(x: Pair, y: Pair) -> Pair:
    """x / y: the quotient of the high parts, and the quotient of what it leaves."""
    quotient = x[0] / y[0]
    high, low = two_product(quotient, y[0])
    return fast_two_sum(quotient, (((x[0] - high) - low) + (x[1] - quotient * y[1])) / y[0])


def square_root(x: Pair) -> Pair:
    """√x for x > 0, by one step of Newton's from the root of the high part; (0, 0) for 0."""
    root = np.sqrt(x[0])
    high, low = two_product(root, root)
    rest = ((x[0] - high) - low) + x[1]
    return fast_two_sum(root, rest / np.where(root == 0, 1.0, 2 * root))


def where(condition: Array, x: Pair, y: Pair) -> Pair:
    """x where the condition holds, else y."""
    return np.where(condition, x[0], y[0]), np.where(condition, x[1], y[1])


def polynomial(coefficients: tuple[float, ...], argument: Array) -> Array:
    """Σ coefficients[k] · argumentᵏ by Horner's rule, in the argument's type."""
    result: Array = argument * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        result += coefficient
        result *= argument
    result += coefficients[0]
    return result


def power_of_two(exponent: Array) -> Array:
    """2^exponent for whole exponents (int64) from −1022 to 1023."""
    return ((exponent + 1023) << 52).view(np.float64)


def rounded_to_odd(x: Pair) -> Array:
    """The sum of a pair as an f64 that rounds to a narrower type as the sum does.

    Where the sum lies between two f64, it is the one whose last bit is 1. Source: S. Boldo and G. Melquiond, "When
    double rounding is odd" (2005).
    """
    value: Array
    value, rest = fast_two_sum(x[0], x[1])
    pattern = value.view(np.int64)
    moves = (rest != 0) & (pattern & 1 == 0) & np.isfinite(value)
    away = np.where((rest > 0) == (value > 0), 1, -1)
    return np.where(moves, pattern + away, pattern).view(np.float64)


def scaled(value: Array, exponent: Array) -> Array:
    """value · 2^exponent (int64, from −2044 to 2046), rounded once where it is denormal and `value` not below 1."""
    half = exponent >> 1
    return value * power_of_two(half) * power_of_two(exponent - half)
