"""Arithmetic of two operands: add, subtract, multiply, divide, remainder, power, atan2, maximum, minimum."""

from __future__ import annotations

import operator
from functools import partial
from math import copysign
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.elementwise import complex_numbers, ranges
from hloexec.ops.elementwise.choosing import choose_by_mask, mask_of
from hloexec.ops.elementwise.declaration import ANY_TYPE, FLOAT, FLOAT_OR_COMPLEX, INTEGRAL, NUMBER, elementwise
from hloexec.ops.elementwise.fast.formulas import larger_scalar, on_scalars, smaller_scalar
from hloexec.ops.elementwise.formula import ByKind
from hloexec.ops.elementwise.integers import divide_integers, integer_power, remainder_integers
from hloexec.ops.elementwise.powers import power
from hloexec.ops.intervals import POSITIVE, UNKNOWN, Bounds
from hloexec.ops.rounding import Rounding
from hloexec.ops.traits import Pole, finite_and_not_zero

_MANY = 1 << 10
"""Fewer numbers are not worth a call of their own."""


@on_scalars(larger_scalar)
def maximum(lhs: Array, rhs: Array) -> Array:
    """The larger one; NaN where either is NaN; max(−0, +0) = +0; complex numbers compare by (real, imag)."""
    return _extremum(lhs, rhs, np.maximum, np.bitwise_and)


@on_scalars(smaller_scalar)
def minimum(lhs: Array, rhs: Array) -> Array:
    """The smaller one; NaN where either is NaN; min(+0, −0) = −0; complex numbers compare by (real, imag)."""
    return _extremum(lhs, rhs, np.minimum, np.bitwise_or)


# What NumPy's functions are for integers, of which there is one zero.
on_scalars(larger_scalar)(np.maximum)
on_scalars(smaller_scalar)(np.minimum)


def fill_maximum(lhs: Array, rhs: Array, out: Array) -> None:
    """`maximum` into an array that shares no memory with the operands."""
    _extremum(lhs, rhs, np.maximum, np.bitwise_and, out)


def fill_minimum(lhs: Array, rhs: Array, out: Array) -> None:
    """`minimum` into an array that shares no memory with the operands."""
    _extremum(lhs, rhs, np.minimum, np.bitwise_or, out)


def _extremum(lhs: Array, rhs: Array, select: Any, combine: Any, out: Array | None = None) -> Array:
    """`select` for all but zeros of different signs, among which NumPy's choice is arbitrary.

    Equal numbers have equal bits, zeros aside; AND of the bits of two zeros gives −0 only where both are, OR where
    either is.
    """
    result = _selected(lhs, rhs, select, out)
    if result.dtype.kind == "f" and _may_be_zero(lhs) and _may_be_zero(rhs):
        if select is np.maximum and (_is_positive_zero(lhs) or _is_positive_zero(rhs)):
            # What is zero now was −0 or +0 against +0, and −0 + 0 = +0.
            return np.add(result, 0, out=result)
        # Equal numbers that are not zero need nothing.
        ties = None if result.all() else lhs == rhs
        if ties is not None and ties.any():
            bits = f"i{result.dtype.itemsize}"
            left, right = (operand.astype(result.dtype, copy=False).view(bits) for operand in (lhs, rhs))
            if ties.size < _MANY:
                combine(left, right, out=result.view(bits), where=ties)
            else:
                both = combine(left, right)
                choose_by_mask(mask_of(ties, both.dtype), both, result.view(bits), both)
                result[...] = both.view(result.dtype)
    return result


def _selected(lhs: Array, rhs: Array, select: Any, out: Array | None) -> Array:
    """`select(lhs, rhs)`; of many numbers and one by NumPy's loop for two arrays, which takes a third of the time."""
    if lhs.size == rhs.size:
        return np.asarray(select(lhs, rhs, out=out))
    one, many = (lhs, rhs) if lhs.size < rhs.size else (rhs, lhs)
    if one.size == 1 and one.ndim <= many.ndim and many.size >= _MANY and one.dtype == many.dtype:
        out = np.empty_like(many) if out is None else out
        out[...] = one
        lhs, rhs = (out, rhs) if one is lhs else (lhs, out)
    return np.asarray(select(lhs, rhs, out=out))


def _may_be_zero(array: Array) -> bool:
    """False where the array is one number, repeated by strides of 0, that is not zero."""
    return not array.size or any(array.strides) or bool(array.item(0) == 0)


def _is_positive_zero(array: Array) -> bool:
    """Whether the array is +0, repeated by strides of 0."""
    return array.size > 0 and not any(array.strides) and not array.item(0) and copysign(1, array.item(0)) > 0


_of_two = partial(elementwise, operands=2)
_of_two(
    "add",
    np.add,
    "lhs + rhs; integers wrap; of pred, lhs OR rhs (XLA: Add).",
    kinds=ANY_TYPE,
    bounds=ranges.rising(operator.add),
    demands_for=ranges.add_demands,
    commutes=True,
    cancels=True,
    same_unit=True,
    flushes_denormals=True,
)
_of_two(
    "subtract",
    np.subtract,
    "lhs − rhs; integers wrap (XLA: Sub).",
    kinds=NUMBER,
    bounds=lambda _, x, y: Bounds(x.low - y.high, x.high - y.low),
    demands=ranges.subtract_mask_demands,
    demands_for=ranges.subtract_demands,
    cancels=True,
    same_unit=True,
    flushes_denormals=True,
)
_of_two(
    "multiply",
    np.multiply,
    "lhs · rhs; integers wrap; of pred, lhs AND rhs (XLA: Mul).",
    kinds=ANY_TYPE,
    bounds=ranges.multiply_bounds,
    demands=ranges.multiply_mask_demands,
    demands_for=ranges.multiply_demands,
    keeps_relative_errors=True,
    commutes=True,
    is_product=True,
    nonzero=finite_and_not_zero,
    flushes_denormals=True,
)
_of_two(
    "divide",
    ByKind(np.divide, divide_integers, complex_numbers.divide),
    "lhs / rhs; of integers towards zero, x / 0 = −1 (all ones), INT_MIN / −1 = INT_MIN (XLA: Div).",
    kinds=NUMBER,
    rounding=Rounding.FUNCTION,
    is_reproducible=True,
    bounds=lambda _, x, y: Bounds(0, x.high / y.low) if y.low > 0 and x.low >= 0 else UNKNOWN,
    demands=ranges.divisor_demands,
    demands_for=ranges.divide_demands,
    keeps_relative_errors=True,
    pole=Pole(1, lambda y: y == 0, "division by zero"),
    invalid="zero divided by zero",
    nonzero=finite_and_not_zero,
    is_quotient=True,
    flushes_denormals=True,
)
_of_two(
    "remainder",
    ByKind(np.fmod, remainder_integers),
    "lhs − rhs · truncate(lhs / rhs), exact, with the sign of lhs; of integers x rem 0 = x (XLA: Rem).",
    kinds=FLOAT | INTEGRAL,
    rounding=Rounding.NONE,
    bounds=lambda _, x, y: Bounds(0, min(x.high, y.high)) if x.low >= 0 and y.low > 0 else UNKNOWN,
    demands=ranges.divisor_demands,
    demands_for=lambda _, demand: [(0, POSITIVE)] if demand.low >= 0 else [],
    invalid="remainder of a division by zero",
    keeps_unit=True,
    jumps=True,
)
_of_two(
    "power",
    ByKind(power, integer_power, complex_numbers.power),
    "lhs to the power rhs; special values as in C's pow; integers wrap, and a negative exponent gives 0 except for "
    "bases ±1 (XLA: Pow; StableHLO: power).",
    kinds=NUMBER,
    rounding=Rounding.FUNCTION,
    is_reproducible=True,
    bounds=ranges.power_bounds,
    demands=ranges.power_base_demands,
    demands_for=ranges.power_demands,
    pole=Pole(0, lambda x: x == 0, "zero to a negative power"),
    invalid="negative number to a fractional power",
    nonzero=lambda x, y: finite_and_not_zero(x) & np.isfinite(y),
    flushes_denormals=True,
)
_of_two(
    "atan2",
    ByKind(np.arctan2, complex_=complex_numbers.atan2),
    "The angle of the point (x = rhs, y = lhs), in [−π, π]; complex: −i log((rhs + i lhs) / √(lhs² + rhs²)) "
    "(XLA: Atan2).",
    kinds=FLOAT_OR_COMPLEX,
    rounding=Rounding.FUNCTION,
    is_reproducible=True,
    jumps=True,
)
_extreme = partial(
    _of_two,
    kinds=ANY_TYPE,
    rounding=Rounding.NONE,
    demands_for=ranges.same_demands,
    commutes=True,
    same_unit=True,
    flushes_denormals=True,
)
_extreme(
    "maximum",
    maximum,
    "The larger one; NaN propagates, max(−0, +0) = +0 (XLA: Max).",
    chosen=lambda _, element_type: None if element_type.is_inexact else np.maximum,
    bounds=ranges.rising(max),
    fill=fill_maximum,
)
_extreme(
    "minimum",
    minimum,
    "The smaller one; NaN propagates, min(+0, −0) = −0 (XLA: Min).",
    chosen=lambda _, element_type: None if element_type.is_inexact else np.minimum,
    bounds=ranges.rising(min),
    fill=fill_minimum,
)
