"""Arithmetic of two operands: add, subtract, multiply, divide, remainder, power, atan2, maximum, minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.dtypes import Kind
from hloexec.ops.elementwise import ANY_TYPE, FLOAT, FLOAT_OR_COMPLEX, INTEGRAL, NUMBER, Formula, elementwise
from hloexec.ops.elementwise_complex import complex_atan2, complex_divide, complex_power
from hloexec.ops.elementwise_integer import divide_integers, integer_power, remainder_integers
from hloexec.values import Array

__all__ = ["maximum", "minimum"]


def maximum(lhs: Array, rhs: Array) -> Array:
    """The larger one; NaN where either is NaN; max(−0, +0) = +0; complex numbers compare by (real, imag)."""
    return _extremum(lhs, rhs, np.maximum, np.bitwise_and)


def minimum(lhs: Array, rhs: Array) -> Array:
    """The smaller one; NaN where either is NaN; min(+0, −0) = −0; complex numbers compare by (real, imag)."""
    return _extremum(lhs, rhs, np.minimum, np.bitwise_or)


def _extremum(lhs: Array, rhs: Array, select: Any, combine: Any) -> Array:
    """`select` for all but zeros of different signs, among which NumPy's choice is arbitrary.

    Equal numbers have equal bits, zeros aside; AND of the bits of two zeros gives −0 only where both are, OR where
    either is.
    """
    result = np.asarray(select(lhs, rhs))
    if result.dtype.kind == "f":
        ties = lhs == rhs
        if ties.any():
            bits = f"u{result.dtype.itemsize}"
            combine(lhs.view(bits), rhs.view(bits), out=result.view(bits), where=ties)
    return result


def _by_kind(*, real: Formula, integral: Formula | None = None, complex_: Formula | None = None) -> Formula:
    """The formula that the kind of the (compute-type) operands selects."""
    formulas = {"f": real, "i": integral, "u": integral, "c": complex_}

    def compute(lhs: Array, rhs: Array) -> Array:
        formula = formulas[lhs.dtype.kind]
        assert formula is not None, "the shape rule admits no operands of this kind"
        return formula(lhs, rhs)  # type: ignore[no-any-return]

    return compute


_ARITHMETIC: tuple[tuple[str, Formula, frozenset[Kind], str], ...] = (
    ("add", np.add, ANY_TYPE, "lhs + rhs; integers wrap; of pred, lhs OR rhs (XLA: Add)."),
    ("subtract", np.subtract, NUMBER, "lhs − rhs; integers wrap (XLA: Sub)."),
    ("multiply", np.multiply, ANY_TYPE, "lhs · rhs; integers wrap; of pred, lhs AND rhs (XLA: Mul)."),
    (
        "divide",
        _by_kind(real=np.divide, integral=divide_integers, complex_=complex_divide),
        NUMBER,
        "lhs / rhs; of integers towards zero, x / 0 = −1 (all ones), INT_MIN / −1 = INT_MIN (XLA: Div).",
    ),
    (
        "remainder",
        _by_kind(real=np.fmod, integral=remainder_integers),
        FLOAT | INTEGRAL,
        "lhs − rhs · truncate(lhs / rhs), exact, with the sign of lhs; of integers x rem 0 = x (XLA: Rem).",
    ),
    (
        "power",
        _by_kind(real=np.power, integral=integer_power, complex_=complex_power),
        NUMBER,
        "lhs to the power rhs; special values as in C's pow; integers wrap, and a negative exponent gives 0 except for "
        "bases ±1 (XLA: Pow; StableHLO: power).",
    ),
    (
        "atan2",
        _by_kind(real=np.arctan2, complex_=complex_atan2),
        FLOAT_OR_COMPLEX,
        "The angle of the point (x = rhs, y = lhs), in [−π, π]; complex: −i log((rhs + i lhs) / √(lhs² + rhs²)) "
        "(XLA: Atan2).",
    ),
    ("maximum", maximum, ANY_TYPE, "The larger one; NaN propagates, max(−0, +0) = +0 (XLA: Max)."),
    ("minimum", minimum, ANY_TYPE, "The smaller one; NaN propagates, min(+0, −0) = −0 (XLA: Min)."),
)
for _name, _compute, _kinds, _documentation in _ARITHMETIC:
    elementwise(_name, _compute, _documentation, operands=2, kinds=_kinds)
