"""Matrix products that do not depend on BLAS: as if computed without error, and rounded once.

Products of f32 numbers, or of narrower ones, are exact in f64, and the sums of nearly all elements round to the same
number in whatever order BLAS adds. The few others, and the products of wider numbers, take more digits.

For these, operands are scaled, row by row and column by column, into (−1, 1) and cut into slices of `width` bits, whole
numbers t with a = Σ tₛ 2^(−width (s + 1)). The width is such that any sum of `length` products of slices is a whole
number below 2^52: BLAS adds it up exactly in whatever order. Products of slices i and j with i + j = level weigh the
same. Levels are added up, the heavy ones first, as pairs of f64, until what is left out cannot be seen in the result.
Few elements that cancel too far for it are summed exactly one by one. Source: K. Ozaki, T. Ogita, S. Oishi, S. M. Rump,
"Error-free transformations of matrix multiplication by using fast routines of matrix multiplication" (2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.precision import part_type
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.blas import matmul
from hloexec.ops.common import narrow, widen
from hloexec.ops.policies.exact.certainty import EXACT_UNITS, can_be_certain, doubtful, units_of
from hloexec.ops.policies.exact.doubled import rounded_to_odd, scaled, two_product, two_sum
from hloexec.ops.threads import for_each

_LENGTH = 1 << 10
"""Longer sums are made in pieces of this length, which leave 21 bits for a slice."""
_ADDABLE_LEVELS = 6
"""Slices but the first are at most 2^(width − 1): on these levels all products add up to at most 2^53."""
_BLOCK_ELEMENTS = 1 << 21
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK = 1 << 8
_SUMMED_ALONE = 2000
"""Summing one element exactly costs as much as one level of about so many elements."""
_LEVELS = 3
"""How many levels the product of f32 numbers takes, usually."""
_PAIR_BITS = 100
"""Sums of pairs are good to 2⁻¹⁰⁰ of the largest of up to sixteen terms."""

_BITS = {"f64": 60, "c64": 46, "c128": 60}
"""How far below an element an error may be, where it is not 2⁻²⁰ ULP."""

Terms: TypeAlias = tuple[Array, ...]


@frozen
class ExactMultiplier:
    """What is multiplied: operands in terms (of which an algorithm may ask for several), and which pairs count."""

    terms: Callable[[Array], Terms]
    pairs: tuple[tuple[int, int], ...] = ((0, 0),)
    sum_type: ElementType | None = None
    """Where set, the sum is rounded to this type before it is rounded to the result's."""


def exact_matrix_product(lhs: Array, rhs: Array, result_type: ElementType, multiplier: ExactMultiplier) -> Array:
    """`[batch..., m, k]` times `[batch..., k, n]` in f64 or c128, off by 2⁻²⁰ ULP of the result type (2⁻⁷ of f64)."""
    is_complex = lhs.dtype.kind == "c" or rhs.dtype.kind == "c"
    result = np.zeros((*lhs.shape[:-1], rhs.shape[-1]), np.complex128 if is_complex else np.float64)
    bits = _BITS.get(result_type.name, result_type.mantissa_bits + 23)
    rounded_to = part_type(multiplier.sum_type or result_type)

    def multiply(block: tuple[Array, Array, Array]) -> None:
        part, left, right = block
        _multiply_block(part, multiplier.terms(left), multiplier.terms(right), multiplier.pairs, rounded_to, bits)

    if result.size and lhs.shape[-1]:
        with np.errstate(all="ignore"):
            for_each(multiply, list(_blocks(result, lhs, rhs)))
    return result if multiplier.sum_type is None else widen(narrow(result, multiplier.sum_type))


def _blocks(result: Array, lhs: Array, rhs: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Parts of the result and of the operands that make them, small enough to be cut into slices."""
    rows, columns, length = lhs.shape[-2], rhs.shape[-1], lhs.shape[-1]
    step = min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, _BLOCK_ELEMENTS // length))
    if result.ndim > 2 and (result.ndim > 3 or rows > step or columns > step):
        for index in range(result.shape[0]):
            yield from _blocks(result[index], lhs[index], rhs[index])
    elif result.ndim > 2:
        count = max(1, _BLOCK_ELEMENTS // max(rows * length, columns * length, rows * columns))
        for start in range(0, result.shape[0], count):
            chosen = slice(start, start + count)
            yield result[chosen], lhs[chosen], rhs[chosen]
    else:
        for top in range(0, rows, step):
            for left in range(0, columns, step):
                down, across = slice(top, top + step), slice(left, left + step)
                yield result[down, across], lhs[down], rhs[:, across]


def _multiply_block(
    result: Array, lhs: Terms, rhs: Terms, pairs: tuple[tuple[int, int], ...], rounded_to: ElementType, bits: int
) -> None:
    """Fill part of a result. Several pairs of terms, and the parts of complex numbers, are one longer sum."""
    left = np.concatenate([lhs[i] for i, _ in pairs], axis=-1) if len(pairs) > 1 else lhs[0]
    right = np.concatenate([rhs[j] for _, j in pairs], axis=-2) if len(pairs) > 1 else rhs[0]
    is_exact_in_f64 = all(operand.dtype in (np.float32, np.complex64) for operand in (left, right))
    target = rounded_to if is_exact_in_f64 and can_be_certain(rounded_to) else None
    if result.dtype.kind != "c":
        result[...] = _real_product(
            left.astype(np.float64, copy=False), right.astype(np.float64, copy=False), bits, target
        )
        return
    left, right = left.astype(np.complex128, copy=False), right.astype(np.complex128, copy=False)
    both = np.concatenate([left.real, left.imag], axis=-1)
    result.real = _real_product(both, np.concatenate([right.real, -right.imag], axis=-2), bits, target)
    result.imag = _real_product(both, np.concatenate([right.imag, right.real], axis=-2), bits, target)


def _real_product(lhs: Array, rhs: Array, bits: int, target: ElementType | None) -> Array:
    """The product of f64 matrices, good to 2^−bits of each element, or good enough to be rounded to the target, where
    there is one: then they hold f32 numbers."""
    multiply = (
        partial(_finite_product, bits=bits) if target is None else partial(_certain_product, bits=bits, target=target)
    )
    if np.isfinite(lhs).all() and np.isfinite(rhs).all():
        return multiply(lhs, rhs)
    finite = multiply(np.where(np.isfinite(lhs), lhs, 0.0), np.where(np.isfinite(rhs), rhs, 0.0))
    limits = _product_of_limits(lhs, rhs)
    return np.where(limits == 0, finite, limits)


def _certain_product(lhs: Array, rhs: Array, bits: int, target: ElementType) -> Array:
    """The product of f32 numbers: each element rounds to the target as the sum without error does.

    Elements of `_finite_product` are off by less than the margin of `doubtful`.
    """
    value, size = _plain_product(lhs, rhs)
    again = doubtful(value, size * (2.0**-52 * (min(lhs.shape[-1], _LENGTH) + 3)), target)
    if again.any():
        units = (units_of(x.astype(np.float32)).min(axis=axis, keepdims=True) for x, axis in ((lhs, -1), (rhs, -2)))
        again &= ~(size < EXACT_UNITS * np.multiply(*units, dtype=np.float64))
    if np.count_nonzero(again) * _SUMMED_ALONE > _LEVELS * value.size:
        accurate = _finite_product(lhs, rhs, bits)
        value = np.where(again, accurate, value)
        again &= doubtful(accurate, 0.0, target)
    _sum_alone(value, again, lhs, rhs, to_odd=True)
    return value


def _plain_product(lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """The product of f32 numbers in f64, and a bound on the sum of the magnitudes of its terms.

    That is the product of the norms of the row and the column (Cauchy and Schwarz). BLAS adds up to `_LENGTH` terms, in
    any order, which is off by less than their number times 2⁻⁵³ times the sum of their magnitudes.
    """
    length = lhs.shape[-1]
    value = matmul(lhs[..., :_LENGTH], rhs[..., :_LENGTH, :])
    if length > _LENGTH:
        low = np.zeros_like(value)
        for start in range(_LENGTH, length, _LENGTH):
            piece = slice(start, start + _LENGTH)
            value, error = two_sum(value, matmul(lhs[..., piece], rhs[..., piece, :]))
            low += error
        value += low
    rows = np.sqrt(np.einsum("...ik,...ik->...i", lhs, lhs))
    columns = np.sqrt(np.einsum("...kj,...kj->...j", rhs, rhs))
    return value, np.asarray(rows[..., :, np.newaxis] * columns[..., np.newaxis, :])


def _product_of_limits(lhs: Array, rhs: Array) -> Array:
    """±∞ or NaN where infinities and NaN make the product so, else 0.

    Products of small whole numbers count the infinite terms of either sign and those that are NaN: exact in any order.
    """
    left_nan, right_nan = np.isnan(lhs) * 1.0, np.isnan(rhs) * 1.0
    left_sign, right_sign = (np.where(np.isnan(operand), 0.0, np.sign(operand)) for operand in (lhs, rhs))
    left_inf, right_inf = np.where(np.isinf(lhs), left_sign, 0.0), np.where(np.isinf(rhs), right_sign, 0.0)
    signed = left_inf @ right_sign + (left_sign - left_inf) @ right_inf
    count = np.abs(left_inf) @ np.abs(right_sign) + np.abs(left_sign - left_inf) @ np.abs(right_inf)
    nan = left_nan @ np.ones_like(rhs) + np.ones_like(lhs) @ right_nan
    nan += np.abs(left_inf) @ (rhs == 0) + (lhs == 0) @ np.abs(right_inf)
    both_signs = np.abs(signed) != count
    return np.where((nan > 0) | both_signs, np.nan, np.where(count > 0, np.copysign(np.inf, signed), 0.0))


class _Slices:
    """An operand scaled into (−1, 1) along its contracted axis, cut slice by slice as they are asked for."""

    def __init__(self, operand: Array, axis: int, width: int) -> None:
        largest = np.max(np.abs(operand), axis=axis, keepdims=True)
        self.exponent = np.frexp(largest)[1].astype(np.int64)
        self.is_zero = largest == 0
        self.scaled = scaled(operand, -self.exponent)
        self._rest = self.scaled
        self._unit = 2.0**width
        self.cut: list[Array] = []
        """The slices so far."""

    def __getitem__(self, number: int) -> Array | None:
        """Slice `number`, as whole numbers; None where the operand has fewer."""
        while len(self.cut) <= number and not self.is_whole:
            moved = self._rest * self._unit
            self.cut.append(np.rint(moved))
            # What is left lies within ±½, and is as exact as the operand.
            moved -= self.cut[-1]
            self._rest = moved
        return self.cut[number] if number < len(self.cut) else None

    @property
    def is_whole(self) -> bool:
        """Whether the slices so far are all there is."""
        return not self._rest.any()


def _finite_product(lhs: Array, rhs: Array, bits: int) -> Array:
    length = lhs.shape[-1]
    width = (52 - (min(length, _LENGTH) - 1).bit_length()) // 2
    left, right = _Slices(lhs, -1, width), _Slices(rhs, -2, width)
    # Of each element: the sum, its errors, and theirs, which are zero unless terms of very different size cancel.
    high, low, tail = np.zeros((3, *lhs.shape[:-1], rhs.shape[-1]))
    nonzero = ~(left.is_zero | right.is_zero)
    level = 0
    while True:
        for product in _level_products(left, right, level):
            product *= 2.0 ** (-width * (level + 2))
            high, error = two_sum(high, product)
            low, error = two_sum(low, error)
            tail += error
        value = high + (low + tail)
        is_last = left.is_whole and right.is_whole and level >= len(left.cut) + len(right.cut) - 2
        # A slice of level i is at most 2^(−width i), so that these are more than the levels i + j that are left out.
        left_out = length * (level + 3) * 2.0 ** (-width * (level + 1)) * ~np.asarray(is_last)
        left_out = left_out + np.where(tail == 0, 0.0, length * 2.0**-_PAIR_BITS)
        unsettled = (np.abs(value) < left_out * 2.0**bits) & nonzero
        count = np.count_nonzero(unsettled)
        if is_last or count * _SUMMED_ALONE <= high.size * (level + 1):
            break
        level += 1
    _sum_alone(value, unsettled, left.scaled, right.scaled)
    return scaled(value, np.clip(left.exponent + right.exponent, -2040, 2040))


def _level_products(left: _Slices, right: _Slices, level: int) -> Iterator[Array]:
    """The products of slices that weigh the same, exactly, in few whole numbers whose sum they are."""
    pairs = [(left[i], right[level - i]) for i in range(level + 1)]
    present = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    for start in range(0, left.scaled.shape[-1], _LENGTH):
        piece = slice(start, start + _LENGTH)
        total: Array | None = None
        for ours, theirs in present:
            product = matmul(ours[..., piece], theirs[..., piece, :])
            if level >= _ADDABLE_LEVELS:
                yield product
            else:
                total = product if total is None else np.add(total, product, out=total)
        if total is not None:
            yield total


def _sum_alone(value: Array, doubtful: Array, lhs: Array, rhs: Array, *, to_odd: bool = False) -> None:
    """Replace doubtful elements by the sums of their products, rounded once: `math.fsum` is exact."""
    for index in np.argwhere(doubtful).tolist():
        matrix, row, column = tuple(index[:-2]), index[-2], index[-1]
        product, rest = two_product(lhs[matrix][row], rhs[matrix][:, column])
        terms = [*product, *rest]
        total = math.fsum(terms)
        if to_odd:
            total = rounded_to_odd((np.array(total), math.fsum([*terms, -total]))).item()
        value[tuple(index)] = total
