"""Roots, and the error function: cbrt, rsqrt, hypot, erf."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, power_of_two, scaled, two_product, two_sum
from hloexec.ops.policies.exact.fixed_point import error_function_coefficients, table


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
_NODES = (Fraction(j, _NODES_PER_UNIT) for j in range(int(_ONE_FROM) * _NODES_PER_UNIT + 1))
_COLUMNS = [*map(table, zip(*(error_function_coefficients(node, _TERMS) for node in _NODES), strict=True))]


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
