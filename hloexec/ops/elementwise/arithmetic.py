"""Arithmetic of two operands, and operations on the bits of integers.

Types of 1, 2 and 4 bits compute in 8 and wrap when they are narrowed; only formulas that see the upper bits of a word
need the true width, which they take from `operand_shapes`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from math import copysign
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import ArrayShape, ArrayShapes
from hloexec.core.values import Array
from hloexec.ops import intervals
from hloexec.ops.elementwise import functions
from hloexec.ops.elementwise.declaration import (
    ANY_TYPE,
    FLOAT,
    FLOAT_OR_COMPLEX,
    INTEGRAL,
    LOGICAL,
    NUMBER,
    elementwise,
)
from hloexec.ops.elementwise.fast.formulas import (
    divide_scalars,
    larger_scalar,
    on_scalars,
    remainder_scalars,
    shift_scalar_left,
    shift_scalar_right,
    smaller_scalar,
)
from hloexec.ops.elementwise.formula import ByKind, Formula, choose_by_mask, mask_of, power
from hloexec.ops.intervals import POSITIVE, UNKNOWN, Bounds, Demand
from hloexec.ops.resources import in_pieces
from hloexec.ops.traits import Pole, Rounding, finite_and_not_zero


@on_scalars(divide_scalars)
def divide_integers(lhs: Array, rhs: Array) -> Array:
    """⌊|lhs / rhs|⌋ with the sign of the quotient; x / 0 = −1 (all ones); INT_MIN / −1 = INT_MIN (it wraps)."""
    if _is_one_divisor(lhs, rhs):
        return _quotient(lhs, rhs.dtype.type(rhs.item(0)))
    divisor, zero = rhs, None
    if np.count_nonzero(rhs) != rhs.size:
        zero = rhs == 0
        divisor = np.where(zero, np.ones_like(rhs), rhs)
    if lhs.itemsize <= 4:
        # Far faster, and exact: a quotient that is not whole is 2^-32 or more away from the next whole number, and
        # smaller than 2^32, so that an f64 of 53 bits does not round onto it. INT_MIN / -1 wraps in the second cast.
        quotient = np.divide(lhs, divisor, dtype=np.float64).astype(np.int64).astype(lhs.dtype)
    else:
        # NumPy rounds down; a multiple of the divisor needs no rounding.
        quotient = (lhs - np.fmod(lhs, divisor)) // divisor
    return quotient if zero is None else np.where(zero, np.array(-1).astype(lhs.dtype), quotient)


def _is_one_divisor(lhs: Array, rhs: Array) -> bool:
    """Whether rhs is a positive number, repeated by strides of 0; NumPy divides by one number without dividing."""
    return rhs.size > 0 and not any(rhs.strides) and rhs.size <= lhs.size and rhs.ndim <= lhs.ndim and rhs.item(0) > 0


def _quotient(lhs: Array, divisor: Any) -> Array:
    """lhs divided by a positive number: ⌈x / y⌉ = ⌊(x + y − 1) / y⌋, whose sum does not overflow for x < 0."""
    if lhs.dtype.kind == "u":
        return np.asarray(lhs // divisor)
    raised = np.asarray(lhs >> lhs.dtype.type(8 * lhs.itemsize - 1))
    raised &= divisor - lhs.dtype.type(1)
    raised += lhs
    raised //= divisor
    return raised


@on_scalars(remainder_scalars)
def remainder_integers(lhs: Array, rhs: Array) -> Array:
    """lhs − rhs · (lhs / rhs), which has the sign of lhs; x rem 0 = x; INT_MIN rem −1 = 0."""
    if _is_one_divisor(lhs, rhs):
        divisor = rhs.dtype.type(rhs.item(0))
        rest = _quotient(lhs, divisor)
        rest *= divisor
        return np.subtract(lhs, rest, out=rest)
    if np.count_nonzero(rhs) == rhs.size:
        result: Array = np.fmod(lhs, rhs)
        return result
    zero = rhs == 0
    return np.where(zero, lhs, np.fmod(lhs, np.where(zero, np.ones_like(rhs), rhs)))


def integer_power(base: Array, exponent: Array) -> Array:
    """base to the power exponent, wrapping; 0⁰ = 1.

    A negative exponent gives the reciprocal's integer part: ±1 for base ±1, else 0 (for base 0, too). By squaring: one
    step per bit of the largest exponent.
    """
    remaining = exponent
    if exponent.dtype.kind == "i":
        negative = exponent < 0
        if negative.any():
            odd = (exponent & 1) == 1
            unit = np.where(np.abs(base) == 1, np.where(odd, base, np.ones_like(base)), np.zeros_like(base))
            return np.where(negative, unit, integer_power(base, np.where(negative, np.zeros_like(exponent), exponent)))
    result = np.ones_like(base)
    factor = base
    while True:
        result = np.where((remaining & 1) == 1, result * factor, result)
        remaining = remaining >> 1
        if not remaining.any():
            return result
        factor = factor * factor


def _as_unsigned(array: Array) -> Array:
    """The same bits as unsigned integers."""
    return array.view(f"u{array.dtype.itemsize}")


def _as_signed(array: Array) -> Array:
    """The same bits as signed integers."""
    return array.view(f"i{array.dtype.itemsize}")


def _bits_of(array: Array, shape: ArrayShape) -> Array:
    """The bits of each element, unsigned, with those beyond the element type's width cleared."""
    bits = _as_unsigned(array)
    width = shape.element_type.bits
    return bits if width >= 8 else bits & np.uint8((1 << width) - 1)


def _shift_right_arithmetic(operand: Array, amount: Array, *, operand_shapes: ArrayShapes) -> Array:
    element_type = operand_shapes[0].element_type
    value = _as_signed(operand)
    if element_type.kind is Kind.UNSIGNED and element_type.bits < 8:
        unused = 8 - element_type.bits
        value = (value << unused) >> unused
    return np.right_shift(value, _as_signed(amount)).view(operand.dtype)


@on_scalars(shift_scalar_right)
def _shift_right_logical(operand: Array, amount: Array, *, operand_shapes: ArrayShapes) -> Array:
    shifted = np.right_shift(_bits_of(operand, operand_shapes[0]), _bits_of(amount, operand_shapes[1]))
    return shifted.view(operand.dtype)


@on_scalars(shift_scalar_left)
def _shift_left(operand: Array, amount: Array) -> Array:
    return np.left_shift(_as_unsigned(operand), _as_unsigned(amount)).view(operand.dtype)


def _popcnt(operand: Array, *, operand_shapes: ArrayShapes) -> Array:
    bits = _bits_of(operand, operand_shapes[0])
    return in_pieces(np.bitwise_count, bits.dtype, bits).astype(bits.dtype, copy=False).view(operand.dtype)


def _count_leading_zeros(operand: Array, *, operand_shapes: ArrayShapes) -> Array:
    count = partial(_leading_zeros, operand_shapes[0].element_type.bits)
    counted = in_pieces(count, _as_unsigned(operand).dtype, _bits_of(operand, operand_shapes[0]))
    return counted.astype(_as_unsigned(operand).dtype, copy=False).view(operand.dtype)


def _leading_zeros(width: int, bits: Array) -> Array:
    """The number of zeros above the highest bit of unsigned integers of `width` bits, as unsigned integers."""
    # The exponent of a float tells where its highest bit is. Without the bit below that one, rounding cannot carry.
    # One half stands for no bit at all, and changes no other exponent.
    if bits.itemsize < 4:
        number = bits.astype(np.float32)
    else:
        highest = bits >> 1
        np.invert(highest, out=highest)
        highest &= bits
        number = highest.astype(f"f{bits.itemsize}")
    number += number.dtype.type(0.5)
    mantissa_bits, exponent_of_half = (23, 126) if number.itemsize == 4 else (52, 1022)
    exponent = number.view(f"u{number.itemsize}")
    exponent >>= mantissa_bits
    np.subtract(width + exponent_of_half, exponent, out=exponent)
    return exponent


def _mulhi(lhs: Array, rhs: Array, *, operand_shapes: ArrayShapes) -> Array:
    width = operand_shapes[0].element_type.bits
    if width < 64:
        wide = np.int64 if lhs.dtype.kind == "i" else np.uint64
        return ((lhs.astype(wide) * rhs.astype(wide)) >> width).astype(lhs.dtype)
    high = _mulhi_unsigned(_as_unsigned(lhs), _as_unsigned(rhs)).view(lhs.dtype)
    if lhs.dtype.kind == "i":
        # Read as unsigned, a negative factor is 2⁶⁴ too large: that added the other factor to the upper half.
        high = high - np.where(lhs < 0, rhs, np.int64(0)) - np.where(rhs < 0, lhs, np.int64(0))
    return high


def _mulhi_unsigned(lhs: Array, rhs: Array) -> Array:
    """The upper 64 bits of the product of two u64, by schoolbook multiplication of 32-bit halves."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    lhs_low, lhs_high, rhs_low, rhs_high = lhs & mask, lhs >> half, rhs & mask, rhs >> half
    carry = (lhs_low * rhs_low) >> half
    middle = lhs_high * rhs_low + carry
    other = lhs_low * rhs_high + (middle & mask)
    result: Array = lhs_high * rhs_high + (middle >> half) + (other >> half)
    return result


_bitwise = partial(elementwise, operands=2, kinds=LOGICAL, commutes=True)
_bitwise("and", np.bitwise_and, "lhs AND rhs, bit by bit (XLA: And).", keeps_unit=True)
_bitwise("or", np.bitwise_or, "lhs OR rhs, bit by bit (XLA: Or).")
_bitwise("xor", np.bitwise_xor, "lhs XOR rhs, bit by bit (XLA: Xor).")
elementwise(
    "not",
    np.invert,
    "NOT operand, bit by bit; pred is negated (XLA: Not).",
    operands=1,
    kinds=LOGICAL,
    is_involution=True,
)


def _numpys(formula: Formula, kind: Kind) -> Callable[[object, ElementType], Formula | None]:
    """NumPy's function for the kind of integers of which it is the operation as it stands.

    It gives 0, or the sign, for amounts beyond its type's width, and integers narrower than that have no bits beyond
    their own, or copies of the sign.
    """
    return lambda _, element_type: formula if element_type.kind is kind else None


_shift = partial(
    elementwise,
    operands=2,
    kinds=INTEGRAL,
    demands=lambda use: [(1, Demand(0, use.shapes[0].element_type.bits - 1, is_defined_beyond=True))],
    is_shift=True,
)
_shift(
    "shift-left",
    _shift_left,
    "lhs · 2^rhs, wrapping; 0 where rhs, read as unsigned, is the width or more (XLA: ShiftLeft).",
    chosen=_numpys(np.left_shift, Kind.UNSIGNED),
)
_shift(
    "shift-right-arithmetic",
    _shift_right_arithmetic,
    "⌊lhs / 2^rhs⌋ of lhs read as signed; the sign where rhs, read as unsigned, is the width or more "
    "(XLA: ShiftRightArithmetic).",
    chosen=_numpys(np.right_shift, Kind.SIGNED),
)
_shift(
    "shift-right-logical",
    _shift_right_logical,
    "⌊lhs / 2^rhs⌋ of lhs read as unsigned; 0 where rhs, read as unsigned, is the width or more "
    "(XLA: ShiftRightLogical).",
    chosen=_numpys(np.right_shift, Kind.UNSIGNED),
)
elementwise(
    "mulhi",
    _mulhi,
    "The upper half of the product, which has twice the width (XLA: MulHi).",
    operands=2,
    kinds=INTEGRAL,
    commutes=True,
)
_counting = partial(elementwise, operands=1, kinds=INTEGRAL)
_counting("popcnt", _popcnt, "The number of bits set (XLA: PopulationCount).")
_counting("count-leading-zeros", _count_leading_zeros, "The number of zero bits above the highest one (XLA: Clz).")


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
    bounds=intervals.rising(operator.add),
    demands_for=intervals.add_demands,
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
    demands=intervals.subtract_mask_demands,
    demands_for=intervals.subtract_demands,
    cancels=True,
    same_unit=True,
    flushes_denormals=True,
)
_of_two(
    "multiply",
    np.multiply,
    "lhs · rhs; integers wrap; of pred, lhs AND rhs (XLA: Mul).",
    kinds=ANY_TYPE,
    bounds=intervals.multiply_bounds,
    demands=intervals.multiply_mask_demands,
    demands_for=intervals.multiply_demands,
    keeps_relative_errors=True,
    commutes=True,
    is_product=True,
    nonzero=finite_and_not_zero,
    flushes_denormals=True,
)
_of_two(
    "divide",
    ByKind(np.divide, divide_integers, functions.divide),
    "lhs / rhs; of integers towards zero, x / 0 = −1 (all ones), INT_MIN / −1 = INT_MIN (XLA: Div).",
    kinds=NUMBER,
    rounding=Rounding.FUNCTION,
    is_reproducible=True,
    bounds=lambda _, x, y: Bounds(0, x.high / y.low) if y.low > 0 and x.low >= 0 else UNKNOWN,
    demands=intervals.divisor_demands,
    demands_for=intervals.divide_demands,
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
    demands=intervals.divisor_demands,
    demands_for=lambda _, demand: [(0, POSITIVE)] if demand.low >= 0 else [],
    invalid="remainder of a division by zero",
    keeps_unit=True,
    jumps=True,
)
_of_two(
    "power",
    ByKind(power, integer_power, functions.power),
    "lhs to the power rhs; special values as in C's pow; integers wrap, and a negative exponent gives 0 except for "
    "bases ±1 (XLA: Pow; StableHLO: power).",
    kinds=NUMBER,
    rounding=Rounding.FUNCTION,
    is_reproducible=True,
    bounds=intervals.power_bounds,
    demands=intervals.power_base_demands,
    demands_for=intervals.power_demands,
    pole=Pole(0, lambda x: x == 0, "zero to a negative power"),
    invalid="negative number to a fractional power",
    nonzero=lambda x, y: finite_and_not_zero(x) & np.isfinite(y),
    flushes_denormals=True,
)
_of_two(
    "atan2",
    ByKind(np.arctan2, complex_=functions.atan2),
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
    demands_for=intervals.same_demands,
    commutes=True,
    same_unit=True,
    flushes_denormals=True,
)
_extreme(
    "maximum",
    maximum,
    "The larger one; NaN propagates, max(−0, +0) = +0 (XLA: Max).",
    chosen=lambda _, element_type: None if element_type.is_inexact else np.maximum,
    bounds=intervals.rising(max),
    fill=fill_maximum,
)
_extreme(
    "minimum",
    minimum,
    "The smaller one; NaN propagates, min(+0, −0) = −0 (XLA: Min).",
    chosen=lambda _, element_type: None if element_type.is_inexact else np.minimum,
    bounds=intervals.rising(min),
    fill=fill_minimum,
)
