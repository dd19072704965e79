"""The formulas of the `exact` policy by opcode, and its functions of complex numbers.

NumPy's own complex arithmetic may fuse multiplications and additions where the processor can, so even products are
spelled out. Within a few ULP of f64 in each part wherever the formulas do not cancel, which leaves c64 two rounded
numbers. Where to cut the planes and how not to cancel: W. Kahan, "Branch cuts for complex elementary functions" (1987).

Like all formulas they take arrays of compute types; they return f64 (or c128), and the kernel around them rounds once.
For results of f32 or less, the C library's function of f64 numbers has so many more digits that it is enough for nearly
all elements, whatever the library: it is trusted with an error below 2⁻⁴³, hundreds of times what libraries claim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.values import Array
from hloexec.ops.common import from_parts, with_infinities
from hloexec.ops.policies.exact import doubled, exponentials, trigonometry
from hloexec.ops.policies.exact.doubled import Pair, near_a_middle, power_of_two, scaled, two_product
from hloexec.ops.policies.exact.exponentials import (
    LN2,
    cosh,
    exponential_minus_one,
    exponential_pair,
    inverse_hyperbolic_sine,
    log_pair,
    log_plus_one,
    log_plus_one_pair,
    parts,
    sinh,
)
from hloexec.ops.policies.exact.trigonometry import (
    arc_tangent,
    arc_tangent_of_point,
    cos,
    hypotenuse_pair,
    sin,
    sin_and_cos_pairs,
    tan,
)
from hloexec.ops.resources import in_pieces

Parts: TypeAlias = tuple[Array, Array]
_Function: TypeAlias = Callable[..., Parts]
_Real: TypeAlias = Callable[[Array], Array]

_LN2, _LN2_LOW = parts(LN2, 42)


def _sum_of_products(a: Array, b: Array, c: Array, d: Array) -> Array:
    """a b + c d: rounded once while all is finite and not tiny, else as f64 adds it up."""
    high, low = doubled.add(two_product(a, b), two_product(c, d))
    total = high + low
    plain: Array = a * b + c * d
    return np.where(np.isfinite(total) & (np.abs(plain) > 2.0**-900), total, plain)


def multiply(a: Array, b: Array, c: Array, d: Array) -> Parts:
    """(a + ib) (c + id) = (ac − bd) + i (ad + bc)."""
    return _sum_of_products(a, c, -b, d), _sum_of_products(a, d, b, c)


def _to_unit(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Finite numbers divided by the power of two that takes the larger one into [½, 1), and that power's exponent."""
    largest = np.maximum(np.abs(a), np.abs(b))
    exponent = np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1].astype(np.int64)
    return scaled(a, -exponent), scaled(b, -exponent), exponent


def divide(a: Array, b: Array, c: Array, d: Array) -> Parts:
    """(a + ib) / (c + id) = ((ac + bd) + i (bc − ad)) / (c² + d²), of numbers scaled into the unit box.

    Infinities are recovered from NaN as the default policy does.
    """
    (p, q, above), (r, s, below) = _to_unit(a, b), _to_unit(c, d)
    denominator = doubled.add(two_product(r, r), two_product(s, s))
    sums = doubled.add(two_product(p, r), two_product(q, s)), doubled.add(two_product(q, r), two_product(-p, s))
    exponent = np.clip(above - below, -2000, 2000)
    quotients = (scaled(np.add(*doubled.divide(part, denominator)), exponent) for part in sums)
    quotient = with_infinities(from_parts(*quotients), from_parts(a, b), from_parts(c, d))
    return quotient.real, quotient.imag


def absolute(x: Array, y: Array) -> Array:
    """√(x² + y²), infinite where a part is, rounded once."""
    infinite = np.isinf(x) | np.isinf(y)
    finite = np.isfinite(x) & np.isfinite(y)
    (high, low), k = hypotenuse_pair(np.where(finite, x, 0.0), np.where(finite, y, 0.0))
    return np.where(infinite, np.inf, np.where(finite, scaled(high + low, k), np.nan))


def sign(x: Array, y: Array) -> Parts:
    """z / |z|; zeros are kept."""
    finite = np.isfinite(x) & np.isfinite(y) & ((x != 0) | (y != 0))
    unit_x, unit_y, _ = _to_unit(np.where(finite, x, 1.0), np.where(finite, y, 1.0))
    (high, low), k = hypotenuse_pair(unit_x, unit_y)
    scale = power_of_two(k)
    length = high * scale, low * scale

    def quotient(part: Array, whole: Array) -> Array:
        exact = np.add(*doubled.divide((part, 0.0), length))
        plain = np.where((x == 0) & (y == 0), whole, whole / absolute(x, y))
        return np.where(finite, np.where(part == 0, whole, exact), plain)

    return quotient(unit_x, x), quotient(unit_y, y)


def square_root(x: Array, y: Array) -> Parts:
    """t = √((|z| + |x|) / 2) is one part, y / 2t the other, and the real one is not negative (limits: C99, G.6.4.2)."""
    finite = np.isfinite(x) & np.isfinite(y)
    a, b, exponent = _to_unit(np.where(finite, x, 0.0), np.where(finite, y, 0.0))
    # An even power of two has a root; the numbers are from ¼ to 1 then.
    odd = exponent & 1
    a, b = a * power_of_two(-odd), b * power_of_two(-odd)
    (high, low), k = hypotenuse_pair(a, b)
    scale = power_of_two(k)
    total = doubled.add((high * scale, low * scale), (np.abs(a), 0.0))
    larger = doubled.square_root((0.5 * total[0], 0.5 * total[1]))
    nonzero = larger[0] != 0
    smaller = doubled.divide((0.5 * np.abs(b), 0.0), (np.where(nonzero, larger[0], 1.0), larger[1]))
    half = (exponent + odd) >> 1
    t, s = scaled(larger[0] + larger[1], half), scaled(smaller[0] + smaller[1], half)
    right = ~np.signbit(x)
    real, imag = np.where(right, t, s), np.copysign(np.where(right, s, t), y)
    limit = np.where(np.isinf(y), np.inf, np.where(np.isinf(x), np.where(right, np.inf, 0.0), np.nan))
    real = np.where(finite, real, limit)
    real = np.where(~finite & np.isinf(x) & ~right & np.isnan(y), np.nan, real)
    limit = np.where(np.isinf(y), y, np.where(np.isnan(y), np.nan, np.where(right, 0.0 * y, np.copysign(np.inf, y))))
    limit = np.where(np.isnan(y) & np.isinf(x) & ~right, np.inf, np.where(np.isnan(x) & ~np.isinf(y), np.nan, limit))
    return real, np.where(finite, imag, limit)


def rsqrt(x: Array, y: Array) -> Parts:
    """1 / √z."""
    return divide(np.ones_like(x), np.zeros_like(x), *square_root(x, y))


def exponential(x: Array, y: Array) -> Parts:
    """eˣ (cos y + i sin y); 0 where eˣ is; real where y is 0."""
    finite = np.isfinite(x) & np.isfinite(y)
    (m, m_low), k = exponential_pair((np.where(finite, x, 0.0), 0.0))
    sine_pair, cosine_pair = sin_and_cos_pairs(np.where(finite, y, 0.0))
    k = np.clip(k, -2040, 2040)
    real, imag = (scaled(np.add(*doubled.multiply((m, m_low), part)), k) for part in (cosine_pair, sine_pair))
    real, imag = np.where(finite, real, np.nan), np.where(finite, np.where(y == 0, y, imag), np.nan)
    if finite.all():
        return real, imag
    vanishes = x == -np.inf
    grows = (x == np.inf) & np.isfinite(y)
    safe = np.where(np.isfinite(y), y, 0.0)
    limits = np.where(vanishes, 0.0, np.inf)
    extreme = vanishes | grows
    real = np.where(extreme, np.copysign(limits, cos(safe)), np.where((x == np.inf) & ~grows, np.inf, real))
    imag = np.where(extreme & (y != 0), np.copysign(limits, sin(safe)), np.where(y == 0, y, imag))
    return real, imag


def expm1(x: Array, y: Array) -> Parts:
    """eᶻ − 1, near 0 with real part expm1(x) cos y − 2 sin²(y / 2), which does not cancel for small z."""
    real, imag = exponential(x, y)
    half = sin(y * 0.5)
    near = exponential_minus_one(x) * cos(y) - 2 * half * half
    real = np.where(np.abs(x) < 40, near, real - 1)
    return np.where(y == 0, exponential_minus_one(x), real), imag


def _log_of_length(x: Array, y: Array) -> Pair:
    """log √(x² + y²) as a pair for finite parts that are not both zero."""
    (high, low), k = hypotenuse_pair(x, y)
    near = np.abs(k) < 500
    scale = power_of_two(np.where(near, k, 0))
    logarithm = log_pair((high * scale, low * scale), precise=True)
    rest = np.where(near, 0, k).astype(np.float64)
    return doubled.add(logarithm, (rest * _LN2, rest * _LN2_LOW))


def log(x: Array, y: Array) -> Parts:
    """log |z| + i arg z."""
    usual = np.isfinite(x) & np.isfinite(y) & ((x != 0) | (y != 0))
    high, low = _log_of_length(np.where(usual, x, 1.0), np.where(usual, y, 0.0))
    infinite = np.isinf(x) | np.isinf(y)
    limit = np.where(infinite, np.inf, np.where((x == 0) & (y == 0), -np.inf, np.nan))
    return np.where(usual, high + low, limit), arc_tangent_of_point(y, x)


def log1p(x: Array, y: Array) -> Parts:
    """log(1 + z): right of −½, as far as 2, with real part ½ log1p(x (2 + x) + y²), else by log of 1 + z."""
    near = (x > -0.5) & (x < 2) & (np.abs(y) < 2)
    a, b = np.where(near, x, 0.0), np.where(near, y, 0.0)
    square = doubled.add(two_product(a, a), two_product(b, b))
    high, low = log_plus_one_pair(doubled.add(square, (2 * a, 0.0)))
    tiny = np.maximum(np.abs(x), np.abs(y)) < 2.0**-400
    real = np.where(tiny, x, 0.5 * (high + low))
    far, angle = log(1 + x, y)
    return np.where(near, real, far), angle


def logistic(x: Array, y: Array) -> Parts:
    """1 / (1 + e⁻ᶻ), in the left half plane as eᶻ / (1 + eᶻ), which does not overflow."""
    left = x < 0
    a, b = exponential(np.where(left, x, -x), np.where(left, y, -y))
    return divide(np.where(left, a, 1.0), np.where(left, b, 0.0), 1 + a, b)


def power(x: Array, y: Array, u: Array, v: Array) -> Parts:
    """e^(w log z); z⁰ = 1; 0 to a power of positive real part is 0."""
    real, imag = exponential(*multiply(u, v, *log(x, y)))
    zero, one = (x == 0) & (y == 0), (u == 0) & (v == 0)
    of_zero = np.where(u > 0, 0.0, np.nan)
    return np.where(one, 1.0, np.where(zero, of_zero, real)), np.where(one, 0.0, np.where(zero, of_zero, imag))


_E_TO_64 = float.fromhex("0x1.425982cf597cdp+92")
"""e⁶⁴; large results are good to 2 ULP."""


def _hyperbolic(first: _Real, second: _Real, x: Array, y: Array) -> Parts:
    """sinh x cos y + i cosh x sin y, or, with the functions swapped, cosh x cos y + i sinh x sin y."""
    # Where cosh overflows, its product with a small sine may not: half of the exponential first.
    large = np.abs(x) > 700
    shifted = np.where(large, np.copysign(np.abs(x) - 64, x), x)
    real, imag = first(shifted) * cos(y), second(shifted) * np.where(y == 0, y, sin(y))
    if large.any():
        real, imag = np.where(large, real * _E_TO_64, real), np.where(large, imag * _E_TO_64, imag)
    # On the axis ∞ · 0 is 0.
    return real, np.where(y == 0, np.copysign(1.0, second(x)) * y, imag)


def hyperbolic_tangent(x: Array, y: Array) -> Parts:
    """(β ρ s + i t) / (1 + β s²) with t = tan y, β = 1 + t², s = sinh x, ρ = cosh x.

    Far out it is ±1 + 4i sin y cos y e^−2|x|.
    """
    far = np.abs(x) > 20
    t, s = tan(y), sinh(np.where(far, 1.0, x))
    beta = 1 + t * t
    denominator = 1 + beta * s * s
    real, imag = beta * np.sqrt(1 + s * s) * s / denominator, t / denominator
    if far.any():
        (m, m_low), k = exponential_pair((-2 * np.clip(np.abs(x), 20.0, 700.0), 0.0))
        small = 4 * sin(y) * cos(y) * scaled(m + m_low, k)
        real, imag = np.where(far, np.copysign(1.0, x), real), np.where(far, np.where(np.isfinite(y), small, 0.0), imag)
    return np.where((x == 0) & np.isfinite(y), x, real), np.where(y == 0, y, imag)


def asin(x: Array, y: Array) -> Parts:
    """arctan(x / Re(√(1 − z) √(1 + z))) + i arsinh(Im(conj(√(1 − z)) √(1 + z)))."""
    below, above = square_root(1 - x, -y), square_root(1 + x, y)
    real = arc_tangent_of_point(x, _sum_of_products(below[0], above[0], -below[1], above[1]))
    imag = inverse_hyperbolic_sine(_sum_of_products(below[0], above[1], -below[1], above[0]))
    return real, np.copysign(imag, y)


def acos(x: Array, y: Array) -> Parts:
    """2 arctan(Re √(1 − z) / Re √(1 + z)) + i arsinh(Im(conj(√(1 + z)) √(1 − z)))."""
    below, above = square_root(1 - x, -y), square_root(1 + x, y)
    imag = inverse_hyperbolic_sine(_sum_of_products(above[0], below[1], -above[1], below[0]))
    return 2 * arc_tangent_of_point(below[0], above[0]), np.copysign(imag, -y)


def acosh(x: Array, y: Array) -> Parts:
    """arsinh(Re(conj(√(z − 1)) √(z + 1))) + 2i arctan(Im √(z − 1) / Re √(z + 1))."""
    below, above = square_root(x - 1, y), square_root(x + 1, y)
    real = inverse_hyperbolic_sine(_sum_of_products(below[0], above[0], below[1], above[1]))
    return real, 2 * arc_tangent_of_point(below[1], above[0])


def atanh(x: Array, y: Array) -> Parts:
    """¼ log1p(4x / ((1 − x)² + y²)) + ½ i arg((1 − x)(1 + x) − y² + 2iy), of |x| with its sign put back."""
    a = np.abs(x)
    huge = np.maximum(a, np.abs(y)) > 2.0**100
    b, c = np.where(huge, 0.0, a), np.where(huge, 0.0, y)
    u = 1 - b
    real = 0.25 * log_plus_one(4 * b / (u * u + c * c))
    imag = 0.5 * arc_tangent_of_point(2 * c, _sum_of_products(u, 1 + b, -c, c))
    # Far out atanh z is 1 / z ± iπ/2.
    size = absolute(a, y)
    real = np.where(huge, np.where(np.isinf(size), 0.0, (a / size) / size), real)
    imag = np.where(huge, np.copysign(_HALF_PI, y), imag)
    imag = np.where(y == 0, np.copysign(imag, y), imag)
    nan = np.isnan(x) | np.isnan(y)
    return np.where(nan, np.nan, np.copysign(real, x)), np.where(nan, np.nan, imag)


_HALF_PI = float(arc_tangent(np.array([np.inf]))[0])


def atan2(a: Array, b: Array, c: Array, d: Array) -> Parts:
    """−i log((rhs + i lhs) / √(lhs² + rhs²)) of lhs = a + ib and rhs = c + id.

    It differs from arctan w = −i artanh(iw), w = lhs / rhs, which keeps small results accurate, by a multiple of π.
    """
    squares = [multiply(*pair, *pair) for pair in ((a, b), (c, d))]
    root = square_root(squares[0][0] + squares[1][0], squares[0][1] + squares[1][1])
    real, imag = log(*divide(c - b, d + a, *root))
    by_log = imag, -real
    w = divide(a, b, c, d)
    imag, real = atanh(-w[1], w[0])
    turns = np.rint((by_log[0] - real) / (2 * _HALF_PI))
    by_arctan = real + 2 * _HALF_PI * turns, -imag
    finite = np.isfinite(by_arctan[0]) & np.isfinite(by_arctan[1])
    return np.where(finite, by_arctan[0], by_log[0]), np.where(finite, by_arctan[1], by_log[1])


def _rotated(function: _Function) -> _Function:
    """f(z) = −i g(iz) of g, as sin z is of sinh z."""

    def rotated(x: Array, y: Array) -> Parts:
        real, imag = function(-y, x)
        return imag, -real

    return rotated


hyperbolic_sine = partial(_hyperbolic, sinh, cosh)
hyperbolic_cosine = partial(_hyperbolic, cosh, sinh)


_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""

Function = Callable[..., Any]


def _formula(function: Function, dtype: Any = np.float64, usual: Function | None = None) -> Function:
    """A formula with results of `dtype`, from a function of flat f64 numbers, or of complex numbers' parts in f64.

    Where there is a usual function, it decides all elements that the other would not round to another f32.
    """

    def of_piece(*operands: Array) -> Array:
        parts = [
            np.ascontiguousarray(part, np.float64)
            for operand in operands
            for part in ((operand.real, operand.imag) if operand.dtype.kind == "c" else (operand,))
        ]
        if usual is not None:
            result: Array = usual(*parts)
            again = near_a_middle(result)
            if again.size:
                result[again] = function(*(part[again] for part in parts))
            return result
        value = function(*parts)
        return from_parts(*value) if isinstance(value, tuple) else value

    def compute(*operands: Array) -> Array:
        flat = (np.ascontiguousarray(operand).reshape(-1) for operand in operands)
        return in_pieces(of_piece, dtype, *flat, piece=_TILE).reshape(operands[0].shape)

    return compute


def _usual_logistic(x: Array) -> Array:
    power = np.exp(-x)
    power += 1
    return np.divide(1, power, out=power)


_FUNCTIONS: dict[str, tuple[Function | None, Function | None, _Function | None]] = {
    "acos": (trigonometry.arc_cosine, np.arccos, acos),
    "acosh": (exponentials.inverse_hyperbolic_cosine, np.arccosh, acosh),
    "asin": (trigonometry.arc_sine, np.arcsin, asin),
    "asinh": (exponentials.inverse_hyperbolic_sine, np.arcsinh, _rotated(asin)),
    "atan2": (trigonometry.arc_tangent_of_point, np.arctan2, atan2),
    "atanh": (exponentials.inverse_hyperbolic_tangent, np.arctanh, atanh),
    "cbrt": (trigonometry.cube_root, np.cbrt, None),
    "cosh": (exponentials.cosh, np.cosh, hyperbolic_cosine),
    "cosine": (trigonometry.cos, np.cos, lambda x, y: hyperbolic_cosine(-y, x)),
    "divide": (None, None, divide),
    "erf": (trigonometry.error_function, trigonometry.plain_error_function, None),
    "exp2": (exponentials.exponential_of_two, np.exp2, None),
    "exponential": (exponentials.exponential, np.exp, exponential),
    "exponential-minus-one": (exponentials.exponential_minus_one, np.expm1, expm1),
    "log": (exponentials.log, np.log, log),
    "log-plus-one": (exponentials.log_plus_one, np.log1p, log1p),
    "log2": (exponentials.log_to_base_two, np.log2, None),
    "logistic": (exponentials.logistic, _usual_logistic, logistic),
    "multiply": (None, None, multiply),
    "power": (exponentials.power, np.power, power),
    "rsqrt": (trigonometry.reciprocal_square_root, lambda x: 1 / np.sqrt(x), rsqrt),
    "sign": (None, None, sign),
    "sine": (trigonometry.sin, np.sin, _rotated(hyperbolic_sine)),
    "sinh": (exponentials.sinh, np.sinh, hyperbolic_sine),
    "sqrt": (None, None, square_root),
    "tan": (trigonometry.tan, np.tan, _rotated(hyperbolic_tangent)),
    "tanh": (exponentials.tanh, np.tanh, hyperbolic_tangent),
}
"""By opcode: of floats, what the C library has of the same, or what is made of little more; of complex numbers."""

QUICK_FORMULAS: dict[str, Function] = {
    name: _formula(function, usual=usual) for name, (function, usual, _) in _FUNCTIONS.items() if function is not None
}
"""Formulas of floats whose results are rounded to f32 or to narrower types: the same results."""

EXACT_FORMULAS: dict[Kind, dict[str, Function]] = {
    Kind.FLOAT: {
        **{name: _formula(function) for name, (function, *_) in _FUNCTIONS.items() if function is not None},
        "divide": np.divide,
        "multiply": np.multiply,
    },
    Kind.COMPLEX: {
        **{name: _formula(of_parts, np.complex128) for name, (*_, of_parts) in _FUNCTIONS.items() if of_parts},
        "abs": _formula(absolute),
    },
}
"""By the kind of the first operand and the opcode; what is missing is exact anyway, as addition of floats is."""
