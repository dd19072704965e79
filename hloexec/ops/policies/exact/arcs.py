"""atan, atan2, asin and acos: all are the angle of a point.

The angle of (x, y) with 0 ≤ y ≤ x is arctan a + arctan z with a = j/64 next to y / x and z = (y − a x) / (x + a y), at
most 1/127 in magnitude. arctan a is a table, arctan z its series up to z⁹, whose next term is below 2⁻⁷² of z. Other
octants are reflections: π/2 − angle and π − angle.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair, fast_two_sum, polynomial, scaled, two_product, two_sum
from hloexec.ops.policies.exact.fixed_point import PI, arctangent, table

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
