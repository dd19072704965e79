"""The exact value of each mathematical function: in f64 or c128 for narrower types, with mpmath for f64 and c128.

f64 results are within one or two ULP of f64, 2⁻²⁸ ULP of f32, and decide what is infinite, NaN or zero. Where an f64
result is finite and the operands are f64, mpmath's 160 bits replace it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from conformance.cell import Array

MP = mpmath.MPContext()
MP.prec = 160

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


REAL_UNARY: dict[str, tuple[Callable[[Array], Array], Callable[[Any], Any], float, float]] = {
    "acos": (np.arccos, MP.acos, -1, 1),
    "acosh": (np.arccosh, MP.acosh, 1, 50),
    "asin": (np.arcsin, MP.asin, -1, 1),
    "asinh": (np.arcsinh, MP.asinh, -50, 50),
    "atanh": (np.arctanh, MP.atanh, -1, 1),
    "cbrt": (np.cbrt, lambda x: MP.sign(x) * MP.cbrt(abs(x)), -1000, 1000),
    "cosine": (np.cos, MP.cos, -100, 100),
    "cosh": (np.cosh, MP.cosh, -80, 80),
    "erf": (_erf, MP.erf, -5, 5),
    "exponential": (np.exp, MP.exp, -80, 80),
    "exp2": (np.exp2, lambda x: MP.power(2, x), -120, 120),
    "exponential-minus-one": (np.expm1, MP.expm1, -2, 80),
    "log": (np.log, MP.log, 0, 1000),
    "log2": (np.log2, lambda x: MP.log(x, 2), 0, 1000),
    "log-plus-one": (np.log1p, MP.log1p, -1, 100),
    "logistic": (_logistic, lambda x: 1 / (1 + MP.exp(-x)), -80, 80),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / MP.sqrt(x), 0, 1000),
    "sine": (np.sin, MP.sin, -100, 100),
    "sinh": (np.sinh, MP.sinh, -80, 80),
    "sqrt": (np.sqrt, MP.sqrt, 0, 1000),
    "tan": (np.tan, MP.tan, -100, 100),
    "tanh": (np.tanh, MP.tanh, -10, 10),
}
"""Opcode: in f64, with mpmath, and the interval of random operands."""

REAL_BINARY: dict[str, tuple[Callable[[Array, Array], Array], Callable[[Any, Any], Any]]] = {
    "power": (np.power, MP.power),
    "atan2": (np.arctan2, MP.atan2),
}

_EXACT_COMPLEX: dict[str, Callable[[Any], Any]] = {
    "acos": MP.acos,
    "acosh": MP.acosh,
    "asin": MP.asin,
    "asinh": MP.asinh,
    "atanh": MP.atanh,
    "cosine": MP.cos,
    "cosh": MP.cosh,
    "exponential": MP.exp,
    "exponential-minus-one": MP.expm1,
    "log": MP.log,
    "log-plus-one": lambda z: MP.log(1 + z),
    "logistic": lambda z: 1 / (1 + MP.exp(-z)),
    "rsqrt": lambda z: 1 / MP.sqrt(z),
    "sign": lambda z: z / abs(z) if z else z,
    "sine": MP.sin,
    "sinh": MP.sinh,
    "sqrt": MP.sqrt,
    "tan": MP.tan,
    "tanh": MP.tanh,
}
COMPLEX_UNARY: dict[str, Callable[[Array], Any]] = {
    name: lambda z, exact=exact: [exact(MP.mpc(complex(value))) for value in z.ravel()]  # type: ignore[misc]
    for name, exact in _EXACT_COMPLEX.items()
}
_EXACT_COMPLEX_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: MP.exp(b * MP.log(a)),
    "atan2": lambda a, b: -1j * MP.log((b + 1j * a) / MP.sqrt(a * a + b * b)),
}
COMPLEX_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    name: lambda a, b, exact=exact: [  # type: ignore[misc]
        exact(MP.mpc(complex(x)), MP.mpc(complex(y))) for x, y in zip(a.ravel(), b.ravel(), strict=True)
    ]
    for name, exact in _EXACT_COMPLEX_BINARY.items()
}


def reference(in_double: Callable[..., Array], exact: Callable[..., Any] | None) -> Callable[..., Array]:
    """The function's exact results: those of `exact` (mpmath) where they are finite, where it is given."""

    def compute(*operands: Array) -> Array:
        result = np.asarray(in_double(*operands))
        if exact is None:
            return result
        refined = result.copy().ravel()
        flat = [np.broadcast_to(operand, result.shape).ravel() for operand in operands]
        # Zeros have signs in f64 and none in mpmath.
        ordinary = np.isfinite(refined) & (refined != 0) & np.logical_and.reduce([operand != 0 for operand in flat])
        for index in np.flatnonzero(ordinary):
            value = exact(*(MP.mpf(float(operand[index])) for operand in flat))
            refined[index] = float(value) if MP.isfinite(value) and not isinstance(value, MP.mpc) else refined[index]
        return refined.reshape(result.shape)

    return compute


def _quotient(a: int, b: int) -> int:
    """Towards zero; all ones where b is zero."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift(formula: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    """The count is unsigned."""
    return lambda a, b, bits: formula(a, b % (1 << bits), bits)


def _power(a: int, b: int, bits: int) -> int:
    if b < 0:
        return a ** (b % 2) if abs(a) == 1 else 0
    return pow(a, b, 1 << bits)


INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b, bits: a + b,
    "subtract": lambda a, b, bits: a - b,
    "multiply": lambda a, b, bits: a * b,
    "divide": lambda a, b, bits: _quotient(a, b),
    "remainder": lambda a, b, bits: a if b == 0 else a - b * _quotient(a, b),
    "power": _power,
    "maximum": lambda a, b, bits: max(a, b),
    "minimum": lambda a, b, bits: min(a, b),
    "and": lambda a, b, bits: a & b,
    "or": lambda a, b, bits: a | b,
    "xor": lambda a, b, bits: a ^ b,
    "mulhi": lambda a, b, bits: a * b >> bits,
    "shift-left": _shift(lambda a, b, bits: a << b if b < bits else 0),
    "shift-right-arithmetic": _shift(lambda a, b, bits: _signed(a, bits) >> min(b, bits - 1)),
    "shift-right-logical": _shift(lambda a, b, bits: a % (1 << bits) >> b if b < bits else 0),
    "not": lambda a, bits: ~a,
    "negate": lambda a, bits: -a,
    "abs": lambda a, bits: abs(a),
    "sign": lambda a, bits: (a > 0) - (a < 0),
    "popcnt": lambda a, bits: (a % (1 << bits)).bit_count(),
    "count-leading-zeros": lambda a, bits: bits - (a % (1 << bits)).bit_length(),
}
"""Each operation on integers of `bits` bits, before it wraps."""


def _signed(a: int, bits: int) -> int:
    return (a + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
