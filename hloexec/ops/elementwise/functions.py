"""Mathematical functions of one operand, and rounding to integers.

NumPy's functions are within 4 ULP in f32 and f64 (the tests measure it); those that it lacks are defined here with
their derivation. c64 is computed in c128, see `complex_numbers`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import element_type
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.elementwise import complex_numbers, ranges
from hloexec.ops.elementwise.choosing import choose
from hloexec.ops.elementwise.declaration import (
    FLOAT,
    FLOAT_OR_COMPLEX,
    NUMBER,
    SIGNED_NUMBER,
    ByKind,
    Formula,
    elementwise,
)
from hloexec.ops.intervals import INFINITY, POSITIVE, Bounds, Demand, Use, always, demand
from hloexec.ops.policies.exact.doubled import polynomial
from hloexec.ops.rounding import Rounding
from hloexec.ops.threads import in_pieces
from hloexec.ops.traits import Pole
from hloexec.precision import part_type
from hloexec.values import Array

__all__ = ["UnaryAttributes", "erf", "logistic"]


@attrs.frozen
class UnaryAttributes:
    """What XLA lets a program say of the accuracy of a function's result; hloexec's results do not depend on it."""

    result_accuracy: Any = attribute(Grammar.RESULT_ACCURACY, default=None)


# erf(x) = x · S(x²) for |x| < 1 and 1 − exp(−x²) · L((x − 2) / (x + 2)) for x up to where it rounds to 1; it is odd.
# S and L interpolate erf(√t) / √t on [0, 1] and exp(x²) erfc(x) at Chebyshev nodes, computed with 60 digits, and are
# written as power series, lowest order first. Their errors (relative for S, in exp(−x²) · L for L) are below 1.4e-9 and
# 2.4e-9 in f32, 8.2e-18 and 8.6e-18 in f64. That exp(x²) erfc(x) is nearly a polynomial in (x − K) / (x + K):
# M. M. Shepherd, J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x²) erfc x" (1981).
_ERF_SMALL = {
    4: (
        1.1283791658, -0.37612626667, 0.11283594715, -0.026854212011, 0.0051890874234, -0.00080168642872,
        7.8758750627e-5,
    ),
    8: (
        1.1283791670955125665, -0.37612638903183540438, 0.11283791670945006266, -0.02686617064323777036,
        0.0052239776071164227321, -0.00085483259753896920806, 0.00012055294904839707917, -0.000014924736907419660338,
        1.644742470331736241e-6, -1.6208483801871705902e-7, 1.3720064546777685604e-8, -7.7958988270021422416e-10,
    ),
}  # fmt: skip
_ERF_LARGE = {
    4: (
        0.25539567593, -0.4271859827, 0.2416582841, -0.078968650406, 0.0037298661077, 0.0068142871612,
        -0.00081969266805,
    ),
    8: (
        0.2553956763105057455, -0.42718584741395788524, 0.24165819424246985691, -0.078978581015852534702,
        0.0037328924034922397801, 0.0069974617477535736328, -0.00084714319807604235899, -0.00098197732081310227208,
        0.000043554202452705895473, 0.00017436697232946863504, 0.000027543128185666717319, -0.000027647305443610053841,
        -0.000014067532694582057696, 1.8201431959750090543e-6, 3.9170592999253885102e-6,
    ),
}  # fmt: skip
_ERF_IS_ONE_FROM = {4: 3.95, 8: 6.0}


def erf(operand: Array) -> Array:
    """2/√π · ∫₀ˣ exp(−t²) dt, within 4 ULP."""
    size = operand.dtype.itemsize
    square = operand * operand
    small = polynomial(_ERF_SMALL[size], square)
    small *= operand
    is_large = ~(square < 1)
    if not is_large.any():
        return small
    magnitude = np.abs(operand)
    np.minimum(magnitude, operand.dtype.type(_ERF_IS_ONE_FROM[size]), out=magnitude)
    large = polynomial(_ERF_LARGE[size], (magnitude - 2) / (magnitude + 2))
    np.multiply(magnitude, magnitude, out=magnitude)
    np.negative(magnitude, out=magnitude)
    np.exp(magnitude, out=magnitude)
    large *= magnitude
    np.subtract(1, large, out=large)
    np.copysign(large, operand, out=large)
    return choose(is_large, large, small)


def logistic(operand: Array, out: Array | None = None) -> Array:
    """1 / (1 + exp(−x)); where exp(−x) overflows, that is exp(x), a denormal number, to within the rounding.

    The result is in `out`, which shares no memory with the operand, where that is given.
    """
    result: Array = np.negative(operand, out=out)
    np.exp(result, out=result)
    np.add(result, 1, out=result)
    np.divide(1, result, out=result)
    limit = np.log(np.finfo(operand.dtype).smallest_normal)
    # Of operands among which there is NaN, that is the least.
    if operand.size and not np.minimum.reduce(operand, axis=None) >= limit:
        tiny = operand < limit
        np.copyto(result, np.exp(operand), where=tiny)
    return result


def _rounded_away_from_zero(operand: Array) -> Array:
    # Not one half: 0.5 − 2⁻²⁵ + 0.5 is 1 in f32. Its neighbour below gives fractions below one half a sum below the
    # next whole number, by at least what keeps it from rounding there; and from one half on the sum rounds to it.
    result: Array = np.copysign(np.nextafter(operand.dtype.type(0.5), operand.dtype.type(0)), operand)
    result += operand
    np.trunc(result, out=result)
    return result


def _sign(operand: Array) -> Array:
    return np.copysign(np.sign(operand), operand) if operand.dtype.kind == "f" else np.sign(operand)


def _rsqrt(operand: Array) -> Array:
    root: Array = np.sqrt(operand)
    return np.divide(1, root, out=root)


_NEGATIVE_ROOT = "square root of a negative number"


def _function(name: str, real: Formula, definition: str, complex_: Formula | None = None, **traits: Any) -> None:
    """A function of floating-point and complex numbers: of these `complex_`, or else NumPy's."""
    formula = ByKind(real, complex_=complex_ or complex_numbers.in_double(real))
    _unary(name, formula, definition, kinds=FLOAT_OR_COMPLEX, **traits)


_unary = partial(elementwise, operands=1, attributes=UnaryAttributes, rounding=Rounding.FUNCTION)
_function(
    "acos",
    np.arccos,
    "the angle in [0, π] whose cosine is x; NaN beyond ±1 (XLA: Acos).",
    demands=demand(0, -1, 1),
    invalid="arc cosine beyond ±1",
)
_function(
    "acosh",
    np.arccosh,
    "log(x + √(x² − 1)), the number from 0 on whose cosh is x; NaN below 1 (XLA: Acosh).",
    demands=demand(0, low=1),
    invalid="inverse hyperbolic cosine below 1",
)
_function(
    "asin",
    np.arcsin,
    "the angle in [−π/2, π/2] whose sine is x; NaN beyond ±1 (XLA: Asin).",
    demands=demand(0, -1, 1),
    invalid="arc sine beyond ±1",
)
_function("asinh", np.arcsinh, "log(x + √(x² + 1)), the number whose sinh is x (XLA: Asinh).")
_function(
    "atanh",
    np.arctanh,
    "½ log((1 + x) / (1 − x)), the number whose tanh is x; ±∞ at ±1, NaN beyond (XLA: Atanh).",
    demands=demand(0, -1, 1),
    pole=Pole(0, lambda x: np.abs(x) == 1, "inverse hyperbolic tangent of ±1"),
    invalid="inverse hyperbolic tangent beyond ±1",
)
_function("cosine", np.cos, "cos x (XLA: Cos).", bounds=always(-1, 1))
_function("cosh", np.cosh, "(eˣ + e⁻ˣ) / 2 (XLA: Cosh).")
_function(
    "exponential",
    np.exp,
    "eˣ (XLA: Exp).",
    bounds=always(0, INFINITY),
    demands_for=ranges.exponential_demands,
    nonzero=np.isfinite,
    flushes_denormals=True,
)
_unary(
    "exp2",
    np.exp2,
    "2ˣ (XLA: Exp2).",
    kinds=FLOAT,
    bounds=always(0, INFINITY),
    demands_for=partial(ranges.exponential_demands, logarithm=math.log2),
    nonzero=np.isfinite,
    flushes_denormals=True,
)
_function("exponential-minus-one", np.expm1, "eˣ − 1 (XLA: Expm1).", complex_=complex_numbers.expm1)
_function(
    "log",
    np.log,
    "the natural logarithm of x; −∞ at zero, NaN below (XLA: Log).",
    demands=demand(0, low=0),
    pole=Pole(0, lambda x: x == 0, "logarithm of zero"),
    invalid="logarithm of a negative number",
    flushes_denormals=True,
)
_unary(
    "log2",
    np.log2,
    "the logarithm of x to base 2; −∞ at zero, NaN below (XLA: Log2).",
    kinds=FLOAT,
    demands=demand(0, low=0),
    pole=Pole(0, lambda x: x == 0, "logarithm of zero"),
    invalid="logarithm of a negative number",
    flushes_denormals=True,
)
_function(
    "log-plus-one",
    np.log1p,
    "log(1 + x) (XLA: Log1p).",
    demands=demand(0, low=-1),
    pole=Pole(0, lambda x: x == -1, "log(1 + x) at x = −1"),
    invalid="log(1 + x) of x below −1",
    complex_=complex_numbers.log1p,
    flushes_denormals=True,
)
_function(
    "logistic",
    logistic,
    "1 / (1 + e⁻ˣ) (XLA: Logistic).",
    fill=logistic,
    bounds=always(0, 1),
    nonzero=np.isfinite,
    complex_=complex_numbers.logistic,
    flushes_denormals=True,
)
_function(
    "rsqrt",
    _rsqrt,
    "1 / √x; 1 / √−0 = −∞ (XLA: Rsqrt).",
    bounds=always(0, INFINITY),
    demands=demand(0, low=0),
    keeps_relative_errors=True,
    pole=Pole(0, lambda x: x == 0, "reciprocal square root of zero"),
    invalid=_NEGATIVE_ROOT,
    complex_=complex_numbers.rsqrt,
    flushes_denormals=True,
)
_function("sine", np.sin, "sin x (XLA: Sin).", bounds=always(-1, 1))
_function("sinh", np.sinh, "(eˣ − e⁻ˣ) / 2 (XLA: Sinh).")
_function(
    "sqrt",
    np.sqrt,
    "√x (XLA: Sqrt).",
    bounds=always(0, INFINITY),
    demands=demand(0, low=0),
    demands_for=lambda _, wanted: [(0, Demand(0, wanted.high * wanted.high))] if 0 <= wanted.high < INFINITY else [],
    keeps_relative_errors=True,
    invalid=_NEGATIVE_ROOT,
    flushes_denormals=True,
)
_function("tan", np.tan, "tan x (XLA: Tan).")
_function("tanh", np.tanh, "(eˣ − e⁻ˣ) / (eˣ + e⁻ˣ) (XLA: Tanh).", bounds=always(-1, 1))
_unary(
    "cbrt",
    np.cbrt,
    "∛x (XLA: Cbrt).",
    kinds=FLOAT,
    # A result that is not negative is one of an operand that is not.
    demands_for=lambda _, wanted: [(0, POSITIVE)] if wanted.low == 0 else [],
    keeps_relative_errors=True,
)
_unary("erf", erf, "2/√π · ∫₀ˣ exp(−t²) dt (XLA: Erf).", kinds=FLOAT, bounds=always(-1, 1), flushes_denormals=True)

_rounding = partial(
    elementwise,
    operands=1,
    kinds=FLOAT,
    rounding=Rounding.NONE,
    demands_for=ranges.same_demands,
    flushes_denormals=True,
)
_rounding("ceil", np.ceil, "⌈x⌉ (XLA: Ceil).", bounds=lambda _, x: Bounds(x.low, x.high + 1))
_rounding("floor", np.floor, "⌊x⌋ (XLA: Floor).", bounds=lambda _, x: Bounds(x.low - 1, x.high))
_rounding(
    "round-nearest-afz",
    lambda operand: in_pieces(_rounded_away_from_zero, operand.dtype, operand),
    "The nearest integer, ties away from zero (XLA: Round).",
    bounds=ranges.nearest_bounds,
)
_rounding(
    "round-nearest-even",
    np.rint,
    "The nearest integer, ties to even (XLA: RoundNearestEven).",
    bounds=ranges.nearest_bounds,
)


def _magnitudes(_: Use, x: Bounds) -> Bounds:
    ends = abs(x.low), abs(x.high)
    return Bounds(0 if x.low <= 0 <= x.high else min(ends), max(ends))


elementwise(
    "abs",
    np.abs,
    "|x|; |INT_MIN| = INT_MIN; of complex numbers the modulus, a real number (XLA: Abs).",
    operands=1,
    kinds=SIGNED_NUMBER,
    result=part_type,
    bounds=_magnitudes,
    keeps_relative_errors=True,
)
elementwise(
    "negate",
    np.negative,
    "−x; integers wrap (XLA: Neg).",
    operands=1,
    kinds=NUMBER,
    rounding=Rounding.NONE,
    bounds=lambda _, x: Bounds(-x.high, -x.low),
    demands_for=lambda _, wanted: [(0, Demand(-wanted.high, -wanted.low))],
    is_involution=True,
    keeps_unit=True,
)
elementwise(
    "sign",
    ByKind(_sign, complex_=complex_numbers.sign),
    "−1, 0 or 1; −0 and NaN are kept; of complex numbers x / |x| (XLA: Sign).",
    operands=1,
    kinds=SIGNED_NUMBER,
    bounds=always(-1, 1),
    flushes_denormals=True,
)
elementwise(
    "is-finite",
    np.isfinite,
    "Whether x is neither infinite nor NaN (XLA: IsFinite).",
    operands=1,
    kinds=FLOAT,
    result=lambda _: element_type("pred"),
    bounds=always(0, 1),
)
