"""Functions of f32 made of 2ˣ, log₂ x, 1/x and 1/√x, each correct to the last place: the `fast-functions` policy.

GPUs have instructions for these four, and compilers that are told to be fast make the others of them: what is added
around them is rounded to f32, and its rounding is what makes the result differ: eˣ = 2^(x·log₂ e) loses as many bits as
x has in front of its point, eˣ − 1 and ln(1 + x) all of them near zero. The instructions themselves err by a few last
places, as each processor does in its own way; here they are rounded correctly. Source: NVIDIA, "PTX ISA" (ex2.approx,
lg2.approx, rcp.approx, rsqrt.approx) and "CUDA C++ Programming Guide", "Intrinsic functions" (__expf, __logf, __powf,
__fdividef).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.elementwise.powers import power

_f32 = np.float32
_LOG2_E = _f32(1.4426950408889634)
_LN_2 = _f32(0.6931471805599453)


def _ex2(operand: Array) -> Array:
    return np.exp2(operand, dtype=np.float64).astype(np.float32)


def _lg2(operand: Array) -> Array:
    return np.log2(operand, dtype=np.float64).astype(np.float32)


def _exponential(operand: Array) -> Array:
    return _ex2(operand * _LOG2_E)


def _log(operand: Array) -> Array:
    return _lg2(operand) * _LN_2


def _divided(dividend: Array | np.float32, divisor: Array) -> Array:
    return dividend * (_f32(1) / divisor)


def _power(base: Array, exponent: Array) -> Array:
    """Of bases that are not positive as ever: the instructions are for others."""
    return np.where(base > 0, _ex2(exponent * _lg2(base)), power(base, exponent))


def _root(operand: Array) -> Array:
    """x · 1/√x, which is no number for 0 and ∞."""
    product = operand * (1 / np.sqrt(operand, dtype=np.float64)).astype(np.float32)
    return np.where((operand == 0) | (operand == np.inf), operand, product)


FAST_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "divide": _divided,
    "exponential": _exponential,
    "exp2": _ex2,
    "exponential-minus-one": lambda operand: _exponential(operand) - _f32(1),
    "log": _log,
    "log2": _lg2,
    "log-plus-one": lambda operand: _log(_f32(1) + operand),
    "logistic": lambda operand: _f32(1) / (_f32(1) + _exponential(-operand)),
    "power": _power,
    "sqrt": _root,
    "tanh": lambda operand: _f32(1) - _divided(_f32(2), _exponential(operand + operand) + _f32(1)),
}
"""By opcode: from f32 to f32."""
