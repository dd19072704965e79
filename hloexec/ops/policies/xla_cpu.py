"""What XLA:CPU computes of f32, bit for bit: fused multiply-adds, and its own approximations of functions.

The `xla-cpu` policy runs on these instead of NumPy's functions. Source: measured, XLA:CPU of jaxlib 0.10 on x86-64.

Compilers emit a · b + c as a fused multiply-add with one rounding, which NumPy lacks. The product of two f32 numbers is
exact in f64, so f64 arithmetic takes two roundings, of which the first matters only if its result is a tie of the
second.

The functions are polynomials and rational functions on a reduced argument. Coefficients are those of S. Moshier's
Cephes library (expf, logf, log1p) and of Eigen (tanh, erf), rounded to f32. The order of operations matters: every
product that has a sum as its only user is fused with it, as in the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.ops.threads import in_pieces

_DROPPED_BITS = np.int64((1 << 29) - 1)
"""Those of an f64's significand that f32 has no room for."""
_TIE = np.int64(1 << 28)


def multiply_add(factor: Any, other_factor: Any, addend: Any) -> Array:
    """factor · other_factor + addend of f32 numbers, rounded once to f32 (results below 2⁻¹²⁶ perhaps twice).

    Where the sum, rounded to f64, is halfway between two f32, it takes the last bit's step towards what was lost:
    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    product = np.multiply(factor, other_factor, dtype=np.float64)
    total = np.array(product + addend, ndmin=1)
    ties = (total.view(np.int64) & _DROPPED_BITS) == _TIE
    if ties.any():
        where = np.nonzero(ties)
        addends = np.broadcast_to(np.asarray(addend, np.float64), total.shape)
        product = np.broadcast_to(product, total.shape)
        _, lost = two_sum(product[where], addends[where])
        step = np.sign(lost) * np.sign(total[where])
        total.view(np.int64)[where] += np.nan_to_num(step).astype(np.int64)
    sizes = np.broadcast_shapes(*(np.shape(value) for value in (factor, other_factor, addend)))
    return np.asarray(total, np.float32).reshape(sizes)


def _horner(coefficients: tuple[float, ...], argument: Array) -> Array:
    """Σ coefficients[k] · argumentⁿ⁻¹⁻ᵏ of f32 by Horner's rule with fused multiply-adds."""
    result: Any = np.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = multiply_add(result, argument, np.float32(coefficient))
    return np.asarray(result)


_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""

_f32 = np.float32

# ln 2 as a number of few bits, whose multiples are exact, and the rest.
_LN_2_HIGH = _f32(0.693359375)
_LN_2_LOW = _f32(-2.12194440e-4)

_SQRT_HALF = _f32(0.707106781186547524)
_LOG_POLYNOMIALS = (
    (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1),
    (-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
    (2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)


def log(operand: Array) -> Array:
    """ln x = ln m + e ln 2 for x = m 2ᵉ, √½ ≤ m < √2; ln(1 + r) = r − r²/2 + r³ P(r)."""
    bits = np.maximum(operand, np.finfo(_f32).smallest_normal).view(np.int32)
    exponent = ((bits >> 23) - 126).astype(_f32)
    significand = ((bits & 0x7FFFFF) | 0x3F000000).view(_f32)
    is_low = significand < _SQRT_HALF
    exponent -= is_low
    rest = (significand - _f32(1)) + np.where(is_low, significand, _f32(0))
    square = rest * rest
    cube = square * rest
    first, second, third = (_horner(coefficients, rest) for coefficients in _LOG_POLYNOMIALS)
    series = multiply_add(multiply_add(first, cube, second), cube, third)
    series = multiply_add(series, cube, _LN_2_LOW * exponent)
    result = multiply_add(_LN_2_HIGH, exponent, multiply_add(_f32(-0.5), square, rest) + series)
    result = np.where(operand > 0, result, np.where(operand == 0, _f32(-np.inf), _f32(np.nan)))
    return np.where(operand == np.inf, operand, result)


_LOG_PLUS_ONE_SMALL = _f32(0.41421356237309503)
_LOG_PLUS_ONE_NUMERATOR = (
    4.5270000866445199635215e-5, 4.9854102823193375972212e-1, 6.5787325942061044846969, 2.9911919328553073277375e1,
    6.0949667980987787057556e1, 5.7112963590585538103336e1, 2.0039553499201281259648e1,
)  # fmt: skip
_LOG_PLUS_ONE_DENOMINATOR = (
    1.0, 1.5062909083469192043167e1, 8.3047565967967209469434e1, 2.2176239823732856465394e2,
    3.0909872225312059774938e2, 2.1642788614495947685003e2, 6.0118660497603843919306e1,
)  # fmt: skip


def log_plus_one(operand: Array) -> Array:
    """ln(1 + x) = x − x²/2 + x³ P(x)/Q(x) for |x| < √2 − 1; beyond that ln of the rounded sum."""
    square = operand * operand
    ratio = _horner(_LOG_PLUS_ONE_NUMERATOR, operand) / _horner(_LOG_PLUS_ONE_DENOMINATOR, operand)
    small = operand + multiply_add(_f32(-0.5), square, operand * square * ratio)
    return np.where(np.abs(operand) < _LOG_PLUS_ONE_SMALL, small, log(_f32(1) + operand))


_EXP_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
)  # fmt: skip


def exponential(operand: Array) -> Array:
    """eˣ = 2ⁿ eʳ for x = n ln 2 + r, x clamped to [−87.8, 88.8] and n to [−127, 127]; eʳ = 1 + r + r² P(r)."""
    held = np.clip(operand, _f32(-87.8), _f32(88.8))
    whole = np.clip(np.floor(multiply_add(held, _f32(1.44269504088896341), _f32(0.5))), _f32(-127), _f32(127))
    rest = multiply_add(-_LN_2_LOW, whole, multiply_add(-_LN_2_HIGH, whole, held))
    series = _f32(1) + multiply_add(_horner(_EXP_POLYNOMIAL, rest), rest * rest, rest)
    power = ((np.nan_to_num(whole).astype(np.int32) + 127) << 23).view(_f32)
    return np.asarray(series * power)


def exponential_minus_one(operand: Array) -> Array:
    """eˣ − 1, where |x| ≤ ½ as tanh(x/2) · (eˣ + 1)."""
    power = exponential(operand)
    half = operand * _f32(0.5)
    result = np.where(np.abs(operand) > _f32(0.5), power - _f32(1), tanh(half) * (power + _f32(1)))
    return np.where(np.abs(half) < np.finfo(_f32).smallest_normal, operand, result)


def logistic(operand: Array) -> Array:
    """1 / (1 + e⁻ˣ)."""
    return _f32(1) / (_f32(1) + exponential(-operand))


_TANH_BOUND = _f32(7.9988117)
_TANH_NUMERATOR = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def tanh(operand: Array) -> Array:
    """x P(x²)/Q(x²) with x clamped to ±7.9988; x itself where |x| < 0.0004, ±1 from 20 on."""
    magnitude = np.abs(operand)
    held = np.clip(operand, -_TANH_BOUND, _TANH_BOUND)
    square = held * held
    ratio = held * _horner(_TANH_NUMERATOR, square) / _horner(_TANH_DENOMINATOR, square)
    result = np.where(magnitude < _f32(0.0004), operand, ratio)
    return np.where(magnitude >= 20, np.copysign(_f32(1), operand), result)


_ERF_IS_ONE_FROM = _f32(3.832507)
_ERF_NUMERATOR = (0.00022905065, 0.003408291, 0.050955694, 0.18520832, 1.1283791)
_ERF_DENOMINATOR = (-1.1791603e-07, 2.3547966e-05, 0.0010179626, 0.01407047, 0.11098505, 0.49746925, 1.0)


def erf(operand: Array) -> Array:
    """x P(x²)/Q(x²); ±1 from 3.8325 on."""
    square = operand * operand
    ratio = operand * _horner(_ERF_NUMERATOR, square) / _horner(_ERF_DENOMINATOR, square)
    return np.where(np.abs(operand) >= _ERF_IS_ONE_FROM, np.copysign(_f32(1), operand), ratio)


def _in_tiles(function: Callable[[Array], Array], operand: Array) -> Array:
    return in_pieces(function, _f32, np.ascontiguousarray(operand), piece=_TILE)


XLA_CPU_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "erf": partial(_in_tiles, erf),
    "exponential": partial(_in_tiles, exponential),
    "exponential-minus-one": partial(_in_tiles, exponential_minus_one),
    "log": partial(_in_tiles, log),
    "log-plus-one": partial(_in_tiles, log_plus_one),
    "logistic": partial(_in_tiles, logistic),
    "tanh": partial(_in_tiles, tanh),
}
"""By opcode: from f32 to f32."""
