"""eˣ and what is made of it: 2ˣ, expm1, sinh, cosh, tanh, logistic.

x = (64 k + j) · ln 2 / 64 + r with |r| ≤ ln 2 / 128 < 0.00542 gives eˣ = 2ᵏ · 2^(j/64) · (1 + p), p = eʳ − 1. The table
of 2^(j/64) is good to 2⁻¹⁰⁶; p is the Taylor series up to r⁷, whose next term, r⁸ / 8!, is below 2⁻⁶⁸ of p.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, fast_two_sum, polynomial, scaled, two_product, two_sum
from hloexec.ops.policies.exact.fixed_point import LN2, parts, root_of_two, table

_INDEX_BITS = 6
_COUNT = 1 << _INDEX_BITS
_HIGH, _LOW = table(root_of_two(j, _INDEX_BITS) for j in range(_COUNT))
# Up to |x| = 1500 there are 18 bits of 64 k + j, so that their products with the first two parts are exact.
_STEP, _STEP_MIDDLE, _STEP_LOW = parts(LN2 // _COUNT, 34, 34)
_STEPS_PER_UNIT = 1 / _STEP
_LN2, _LN2_LOW = parts(LN2, 53)
_COEFFICIENTS = tuple(1 / factorial(n) for n in range(2, 8))
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
    tail = polynomial(_COEFFICIENTS, rest)
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
    high = _HIGH[j]
    # The product is below 2⁻⁷ of the sum, and rounded to 53 bits.
    return fast_two_sum(high, _LOW[j] + high * (p[0] + p[1])), k


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
    high, low = _HIGH[j] * scale, _LOW[j] * scale
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
