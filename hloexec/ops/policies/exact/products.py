"""Matrix products that do not depend on BLAS: as if computed without error, and rounded once.

Operands are scaled, row by row and column by column, into (−1, 1) and cut into slices of `width` bits, whole numbers t
with a = Σ tₛ 2^(−width (s + 1)). The width is such that any sum of `length` products of slices is a whole number below
2^52: BLAS adds it up exactly in whatever order. Products of slices i and j with i + j = level weigh the same. Levels
are added up, the heavy ones first, as pairs of f64, until what is left out cannot be seen in the result. Few elements
that cancel too far for it are summed exactly one by one. Source: K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication" (2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.ops.blas import matmul
from hloexec.ops.common import narrow, widen
from hloexec.ops.policies.exact.doubled import scaled, two_product, two_sum
from hloexec.values import Array

__all__ = ["ExactMultiplier", "exact_matrix_product"]

_LENGTH = 1 << 10
"""Longer sums are made in pieces of this length, which leave 21 bits for a slice."""
_ADDABLE_LEVELS = 6
"""Slices but the first are at most 2^(width − 1): on these levels all products add up to at most 2^53."""
_BLOCK_ELEMENTS = 1 << 21
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK = 1 << 10
_SUMMED_ALONE = 2000
"""Summing one element exactly costs as much as one level of about so many elements."""
_PAIR_BITS = 100
"""Sums of pairs are good to 2⁻¹⁰⁰ of the largest of up to sixteen terms."""

_BITS = {"f64": 60, "c64": 46, "c128": 60}
"""How far below an element an error may be, where it is not 2⁻²⁰ ULP."""

Terms: TypeAlias = tuple[Array, ...]


@attrs.frozen
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
    if result.size and lhs.shape[-1]:
        with np.errstate(all="ignore"):
            for part, left, right in _blocks(result, lhs, rhs):
                _multiply_block(part, multiplier.terms(left), multiplier.terms(right), multiplier.pairs, bits)
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


def _multiply_block(result: Array, lhs: Terms, rhs: Terms, pairs: tuple[tuple[int, int], ...], bits: int) -> None:
    """Fill part of a result. Several pairs of terms, and the parts of complex numbers, are one longer sum."""
    left = np.concatenate([lhs[i] for i, _ in pairs], axis=-1) if len(pairs) > 1 else lhs[0]
    right = np.concatenate([rhs[j] for _, j in pairs], axis=-2) if len(pairs) > 1 else rhs[0]
    if result.dtype.kind != "c":
        result[...] = _real_product(left.astype(np.float64, copy=False), right.astype(np.float64, copy=False), bits)
        return
    left, right = left.astype(np.complex128, copy=False), right.astype(np.complex128, copy=False)
    both = np.concatenate([left.real, left.imag], axis=-1)
    result.real = _real_product(both, np.concatenate([right.real, -right.imag], axis=-2), bits)
    result.imag = _real_product(both, np.concatenate([right.imag, right.real], axis=-2), bits)


def _real_product(lhs: Array, rhs: Array, bits: int) -> Array:
    """The product of f64 matrices, good to 2^−bits of each element."""
    if np.isfinite(lhs).all() and np.isfinite(rhs).all():
        return _finite_product(lhs, rhs, bits)
    finite = _finite_product(np.where(np.isfinite(lhs), lhs, 0.0), np.where(np.isfinite(rhs), rhs, 0.0), bits)
    limits = _product_of_limits(lhs, rhs)
    return np.where(limits == 0, finite, limits)


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
        doubtful = (np.abs(value) < left_out * 2.0**bits) & nonzero
        count = np.count_nonzero(doubtful)
        if is_last or count * _SUMMED_ALONE <= high.size * (level + 1):
            break
        level += 1
    if count:
        _sum_alone(value, doubtful, left.scaled, right.scaled)
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


def _sum_alone(value: Array, doubtful: Array, lhs: Array, rhs: Array) -> None:
    """Replace doubtful elements by the sums of their products, rounded once: `math.fsum` is exact."""
    for index in np.argwhere(doubtful).tolist():
        matrix, row, column = tuple(index[:-2]), index[-2], index[-1]
        product, rest = two_product(lhs[matrix][row], rhs[matrix][:, column])
        value[tuple(index)] = math.fsum([*product, *rest])
