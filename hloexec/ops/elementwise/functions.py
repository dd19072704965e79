"""Mathematical functions of one operand, rounding to integers, and complex arithmetic that NumPy lacks.

NumPy's functions are within 4 ULP in f32 and f64 (the tests measure it); those that it lacks are defined here with
their derivation. c64 is computed in c128.

Special values follow C99's Annex G, as in NumPy's functions; XLA gives NaN for some of them. c64 is computed in c128
and rounded once when it is narrowed (`in_double`), so only c128 depends on the accuracy of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type, part_type
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops import intervals
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import from_parts, operands_shape, require, with_infinities
from hloexec.ops.elementwise.declaration import FLOAT, FLOAT_OR_COMPLEX, NUMBER, SIGNED_NUMBER, elementwise
from hloexec.ops.elementwise.formula import ByKind, Formula
from hloexec.ops.intervals import INFINITY, POSITIVE, Bounds, Demand, Use, always, demand
from hloexec.ops.policies.exact.doubled import polynomial
from hloexec.ops.resources import in_pieces
from hloexec.ops.traits import Pole, Rounding


def in_double(formula: Callable[..., Array]) -> Callable[..., Array]:
    """The complex formula with its operands taken to c128 first."""

    def compute(*operands: Array) -> Array:
        return formula(*(operand.astype(np.complex128, copy=False) for operand in operands))

    return compute


def sign(operand: Array) -> Array:
    """z / |z|; zeros are kept with their signs."""
    return np.where(operand == 0, operand, np.sign(operand))


@in_double
def divide(lhs: Array, rhs: Array) -> Array:
    """lhs / rhs by Smith's method, with infinities recovered from NaN."""
    return with_infinities(np.divide(lhs, rhs), lhs, rhs)


@in_double
def power(base: Array, exponent: Array) -> Array:
    """exp(exponent · log(base)); z⁰ = 1."""
    return np.asarray(np.power(base, exponent))


@in_double
def atan2(lhs: Array, rhs: Array) -> Array:
    """−i log((rhs + i lhs) / √(lhs² + rhs²)).

    It differs from arctan(lhs / rhs), which keeps small results accurate, by a multiple of π; the formula says which.
    """
    by_log = -1j * np.log(divide(rhs + 1j * lhs, np.sqrt(lhs * lhs + rhs * rhs)))
    by_arctan = np.arctan(divide(lhs, rhs))
    turns = np.rint((by_log.real - by_arctan.real) / np.pi)
    combined = from_parts(by_arctan.real + np.pi * turns, by_arctan.imag)
    return np.where(np.isfinite(combined), combined, by_log)


@in_double
def rsqrt(operand: Array) -> Array:
    """1 / √z."""
    return divide(np.ones_like(operand), np.sqrt(operand))


@in_double
def complex_logistic(operand: Array) -> Array:
    """1 / (1 + exp(−z)), in the left half plane as exp(z) / (1 + exp(z)), which does not overflow."""
    left = operand.real < 0
    power = np.exp(np.where(left, operand, -operand))
    return divide(np.where(left, power, np.ones_like(power)), 1 + power)


@in_double
def expm1(operand: Array) -> Array:
    """exp(z) − 1, with real part expm1(x) cos y − 2 sin²(y/2), which does not cancel for small z."""
    x, y = operand.real, operand.imag
    power = np.exp(operand)
    half_sine = np.sin(y / 2)
    near = np.expm1(x) * np.cos(y) - 2 * half_sine * half_sine
    # Beyond 2^53 the 1 is lost, and exp(z) does not overflow before its parts do; exp(−∞ + iy) is 0 for any y.
    real = np.where(np.abs(x) < 40, near, power.real - 1)
    on_axis = y == 0
    return from_parts(np.where(on_axis, np.expm1(x), real), np.where(on_axis, y, power.imag))


@in_double
def log1p(operand: Array) -> Array:
    """log(1 + z), near 0 with real part ½ log1p(x(2 + x) + y²), which does not cancel."""
    x, y = operand.real, operand.imag
    far = np.log(1 + operand)
    near = np.log1p(x * (2 + x) + y * y) / 2
    real = np.where(np.maximum(np.abs(x), np.abs(y)) < 0.5, near, far.real)
    return from_parts(real, np.arctan2(y, 1 + x))


def _infer_complex(real: Shape, imag: Shape) -> ArrayShape:
    common = operands_shape("complex", (real, imag), FLOAT)
    require(
        common.element_type.bits >= 32,
        f"the operands of complex must be of f32 or f64, but have shapes {real} and {imag}",
    )
    return common.with_element_type(element_type(f"c{2 * common.element_type.bits}"))


_part = partial(elementwise, operands=1, kinds=FLOAT_OR_COMPLEX, result=part_type, rounding=Rounding.NONE)
_part("real", lambda x: x.real if x.dtype.kind == "c" else x, "The real part; of floats, the operand (XLA: Real).")
_part(
    "imag",
    lambda x: x.imag if x.dtype.kind == "c" else np.zeros_like(x),
    "The imaginary part; of floats, zeros (XLA: Imag).",
)
elementwise(
    "complex",
    from_parts,
    "real + i imag, of f32 or f64 parts (XLA: Complex).",
    operands=2,
    kinds=FLOAT,
    infer=_infer_complex,
    rounding=Rounding.NONE,
)


@frozen
class UnaryAttributes:
    """What XLA lets a program say of the accuracy of a function's result; hloexec's results do not depend on it."""

    result_accuracy: Any = attribute(Grammar.RESULT_ACCURACY, default=None)


# erf(x) = tanh(x + x · N(x²) / D(x²)), where D begins with 1, for |x| up to where it rounds to 1. N / D is fitted to
# artanh(erf √t) / √t − 1 at Chebyshev nodes, computed with 70 digits, so that the error of erf is even: below 3.4e-9 of
# it in f32, 1.1e-17 in f64. A relative error of tanh's argument y comes out multiplied by 2y / sinh 2y, and as x leads
# the sum, roundings of N and D count for little where that is not small. All coefficients are positive.
_ERF_NUMERATOR = {
    4: (0.12837917082, 0.12291393424, 0.018956161054, 0.0018531720575),
    8: (
        0.1283791670955125856, 0.1635103274601057142, 0.06587377797532421928, 0.01652360258528991703,
        0.002768284526994264873, 0.0003249732533027335505, 0.00002695166986611733078, 1.492881440048218676e-6,
        5.105257416792520179e-8, 4.419111022915294633e-10,
    ),
}  # fmt: skip
_ERF_DENOMINATOR = {
    4: (1.0, 0.15689011305, 0.023688222959, 0.00032487648282),
    8: (
        1.0, 0.4731119973147923815, 0.1360035385273046139, 0.02520082110149440871, 0.003282913512423543835,
        0.0003045450407953195487, 0.0000191862691341580057, 8.105493857556842943e-7, 1.391182226679191448e-8,
        2.886417182519684244e-11,
    ),
}  # fmt: skip
_ERF_IS_ONE_FROM = {4: 4.5, 8: 6.25}
_ERF_PIECE = 1 << 14


def erf(operand: Array) -> Array:
    """2/√π · ∫₀ˣ exp(−t²) dt, within 4 ULP."""
    return in_pieces(_erf, operand.dtype, operand, piece=_ERF_PIECE)


def _erf(operand: Array) -> Array:
    size = operand.dtype.itemsize
    result: Array = np.clip(operand, -_ERF_IS_ONE_FROM[size], _ERF_IS_ONE_FROM[size])
    square = result * result
    ratio = polynomial(_ERF_NUMERATOR[size], square)
    ratio /= polynomial(_ERF_DENOMINATOR[size], square)
    ratio *= result
    result += ratio
    return np.tanh(result, out=result)


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


def _rsqrt(operand: Array) -> Array:
    root: Array = np.sqrt(operand)
    return np.divide(1, root, out=root)


_NEGATIVE_ROOT = "square root of a negative number"


def _function(name: str, real: Formula, definition: str, complex_: Formula | None = None, **traits: Any) -> None:
    """A function of floating-point and complex numbers: of these `complex_`, or else NumPy's."""
    formula = ByKind(real, complex_=complex_ or in_double(real))
    _unary(name, formula, definition, kinds=FLOAT_OR_COMPLEX, **traits)


_unary = partial(elementwise, operands=1, attributes=UnaryAttributes, rounding=Rounding.FUNCTION, is_reproducible=True)
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
    demands_for=intervals.exponential_demands,
    nonzero=np.isfinite,
    flushes_denormals=True,
)
_unary(
    "exp2",
    np.exp2,
    "2ˣ (XLA: Exp2).",
    kinds=FLOAT,
    bounds=always(0, INFINITY),
    demands_for=partial(intervals.exponential_demands, logarithm=math.log2),
    nonzero=np.isfinite,
    flushes_denormals=True,
)
_function("exponential-minus-one", np.expm1, "eˣ − 1 (XLA: Expm1).", complex_=expm1)
_function(
    "log",
    np.log,
    "the natural logarithm of x; −∞ at zero, NaN below (XLA: Log).",
    demands=demand(0, low=0),
    pole=Pole(0, lambda x: x == 0, "logarithm of zero"),
    invalid="logarithm of a negative number",
    flushes_denormals=True,
    is_injective=True,
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
    is_injective=True,
)
_function(
    "log-plus-one",
    np.log1p,
    "log(1 + x) (XLA: Log1p).",
    demands=demand(0, low=-1),
    pole=Pole(0, lambda x: x == -1, "log(1 + x) at x = −1"),
    invalid="log(1 + x) of x below −1",
    complex_=log1p,
    flushes_denormals=True,
    is_injective=True,
)
_function(
    "logistic",
    logistic,
    "1 / (1 + e⁻ˣ) (XLA: Logistic).",
    fill=logistic,
    bounds=always(0, 1),
    nonzero=np.isfinite,
    complex_=complex_logistic,
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
    complex_=rsqrt,
    flushes_denormals=True,
    is_injective=True,
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
    is_injective=True,
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
    is_injective=True,
)
_unary("erf", erf, "2/√π · ∫₀ˣ exp(−t²) dt (XLA: Erf).", kinds=FLOAT, bounds=always(-1, 1), flushes_denormals=True)

_rounding = partial(
    elementwise,
    operands=1,
    kinds=FLOAT,
    rounding=Rounding.NONE,
    demands_for=intervals.same_demands,
    jumps=True,
    flushes_denormals=True,
)
_rounding("ceil", np.ceil, "⌈x⌉ (XLA: Ceil).", bounds=lambda _, x: Bounds(x.low, x.high + 1))
_rounding("floor", np.floor, "⌊x⌋ (XLA: Floor).", bounds=lambda _, x: Bounds(x.low - 1, x.high))
_rounding(
    "round-nearest-afz",
    lambda operand: in_pieces(_rounded_away_from_zero, operand.dtype, operand),
    "The nearest integer, ties away from zero (XLA: Round).",
    bounds=intervals.nearest_bounds,
)
_rounding(
    "round-nearest-even",
    np.rint,
    "The nearest integer, ties to even (XLA: RoundNearestEven).",
    bounds=intervals.nearest_bounds,
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
    is_injective=True,
)
elementwise(
    "sign",
    ByKind(lambda x: np.copysign(np.sign(x), x), np.sign, complex_=sign),
    "−1, 0 or 1; −0 and NaN are kept; of complex numbers x / |x| (XLA: Sign).",
    operands=1,
    kinds=SIGNED_NUMBER,
    bounds=always(-1, 1),
    jumps=True,
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
