"""Operations that create or split complex numbers, and formulas of complex arithmetic that NumPy lacks.

Special values follow C99's Annex G, as in NumPy's functions; XLA gives NaN for some of them. c64 is computed in c128
and rounded once when it is narrowed (`in_double`), so only c128 depends on the accuracy of the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.precision import part_type
from hloexec.core.values import Array
from hloexec.ops.common import operands_shape, require
from hloexec.ops.complex_parts import from_parts, with_infinities
from hloexec.ops.elementwise.declaration import FLOAT, FLOAT_OR_COMPLEX, elementwise
from hloexec.ops.rounding import Rounding


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
def logistic(operand: Array) -> Array:
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


def _real(operand: Array) -> Array:
    return operand.real if operand.dtype.kind == "c" else operand


def _imag(operand: Array) -> Array:
    return operand.imag if operand.dtype.kind == "c" else np.zeros_like(operand)


def _infer_complex(real: Shape, imag: Shape) -> ArrayShape:
    common = operands_shape("complex", (real, imag), FLOAT)
    require(
        common.element_type.bits >= 32,
        f"the operands of complex must be of f32 or f64, but have shapes {real} and {imag}",
    )
    return common.with_element_type(element_type(f"c{2 * common.element_type.bits}"))


_part = partial(elementwise, operands=1, kinds=FLOAT_OR_COMPLEX, result=part_type, rounding=Rounding.NONE)
_part("real", _real, "The real part; of floats, the operand (XLA: Real).")
_part("imag", _imag, "The imaginary part; of floats, zeros (XLA: Imag).")
elementwise(
    "complex",
    from_parts,
    "real + i imag, of f32 or f64 parts (XLA: Complex).",
    operands=2,
    kinds=FLOAT,
    infer=_infer_complex,
    rounding=Rounding.NONE,
)
