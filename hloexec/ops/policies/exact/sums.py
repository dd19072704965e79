"""Sums and products of many numbers, matrix products among them, for the `exact` policy.

Sums and products of many numbers as pairs of f64, along a tree that only the number of terms decides.

A tree of depth d adds d · 2⁻¹⁰⁰ of the sum of magnitudes to the error. Products keep their exponents apart, and
overflow only where the result does.

Arrays are f64 `[features, elements]`, a feature's elements in a row; what is one number per feature is `[features, 1]`.
What is infinite or NaN comes out as f64 arithmetic gives it.

Matrix products that do not depend on BLAS: as if computed without error, and rounded once.

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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType, part_type
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import from_parts, narrow, widen
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import (
    EXACT_UNITS,
    Pair,
    can_be_certain,
    doubtful,
    rounded_to_odd,
    scaled,
    two_product,
    two_sum,
    units_of,
)
from hloexec.ops.resources import for_each, in_blocks, matmul

_CHUNK = 1 << 17
"""Terms that are widened at a time."""
_ROW = 1 << 16
"""Longer rows are added up in pieces of this length first."""
_PIECE = 1 << 10
"""Terms that are added up in plain f64, in any order, before their sums are."""

Terms: TypeAlias = tuple[Array, ...]
"""Numbers in as many parts as a combination needs, the terms along the last axis."""


def add_pairs(x: Pair, y: Pair) -> Pair:
    """x + y; what is infinite or NaN has the low part 0."""
    return kept_finite(doubled.add(x, y), x[0] + y[0])


def kept_finite(pair: Pair, plain: Array) -> Pair:
    """The pair, or (plain, 0) where the plain value is infinite or NaN: arithmetic of pairs makes NaN of either."""
    finite = np.isfinite(plain)
    return pair if finite.all() else doubled.where(finite, pair, (plain, 0.0))


def _multiply(x: Terms, y: Terms) -> Terms:
    """The product of pairs times powers of two, the high parts kept in [½, 1)."""
    high, low = kept_finite(doubled.multiply((x[0], x[1]), (y[0], y[1])), x[0] * y[0])
    mantissa, exponent = np.frexp(high)
    shift = exponent.astype(np.int64)
    return mantissa, low * doubled.power_of_two(-shift), x[2] + y[2] + shift


def _product_terms(array: Array) -> Terms:
    mantissa, exponent = np.frexp(array)
    return mantissa, np.zeros_like(array), exponent.astype(np.int64)


def _product_value(terms: Terms) -> Array:
    high, low, exponent = terms
    return scaled(high + low, np.clip(exponent, -2040, 2040))


_Combination: TypeAlias = Callable[[Any, Any], Terms]
_Operation: TypeAlias = tuple[Callable[[Array], Terms], _Combination, Callable[[Terms], Array]]

_OPERATIONS: dict[str, _Operation] = {
    "add": (lambda array: (array, np.zeros_like(array)), add_pairs, lambda terms: terms[0] + terms[1]),
    "add for f32": (
        lambda array: (array, np.zeros_like(array)),
        add_pairs,
        lambda terms: rounded_to_odd((terms[0], terms[1])),
    ),
    "multiply": (_product_terms, _multiply, _product_value),
}


def can_reduce_exactly(name: str, element_type: ElementType) -> bool:
    """Whether `reduce_exactly` has this operation on this element type."""
    return (element_type.is_floating and name in _OPERATIONS) or (element_type.is_complex and name == "add")


def reduce_exactly(
    name: str, array: Array, dimensions: Sequence[int], init_value: Array, result_type: ElementType
) -> Array:
    """All elements along `dimensions` added or multiplied, with `init_value` (a scalar) too, and rounded once."""
    if array.dtype.kind == "c":
        parts = (array.real, init_value.real), (array.imag, init_value.imag)
        reduced = (_reduced(name, part, dimensions, init, part_type(result_type)) for part, init in parts)
        return narrow(from_parts(*reduced), result_type)
    return narrow(_reduced(name, array, dimensions, init_value, result_type), result_type)


def _reduced(name: str, array: Array, dimensions: Sequence[int], init_value: Array, result_type: ElementType) -> Array:
    kept = [dimension for dimension in range(array.ndim) if dimension not in dimensions]
    sizes = [array.shape[dimension] for dimension in kept]
    length = prod(array.shape[dimension] for dimension in dimensions)
    rows = array.transpose(*kept, *sorted(dimensions)).reshape(prod(sizes), length)
    init = float(widen(init_value.reshape(1))[0])
    result = np.empty(prod(sizes))
    step = max(1, _CHUNK // max(1, length))
    is_for_f32 = name == "add" and can_be_certain(result_type)
    is_quick = is_for_f32 and array.dtype.itemsize <= 4
    operation = _OPERATIONS["add for f32" if is_for_f32 else name]

    def reduce(start: int, stop: int) -> None:
        some = rows[start:stop]
        if is_quick:
            result[start:stop], again = _added_quickly(some, init, result_type)
            if again.size:
                result[start + again] = _reduced_rows(operation, some[again], init)
        else:
            result[start:stop] = _reduced_rows(operation, some, init)
        if name == "add":
            _keep_negative_zeros(result[start:stop], some, init)

    in_blocks(reduce, len(result), step)
    return result.reshape(sizes)


def _added_quickly(rows: Array, init: float, result_type: ElementType) -> tuple[Array, Array]:
    """The sums of rows of f32 numbers, or of narrower ones, in plain f64, and which of them need more digits.

    Sums of n numbers in any order are off by less than n · 2⁻⁵³ of the sum of their magnitudes, for n up to 2²⁰. That
    sum, in f32, is off by less than a half, or infinite, as rows are cut into pieces.
    """
    rows = widen(rows)
    count = rows.shape[1] // _PIECE
    whole = count * _PIECE
    value, size = np.full(len(rows), init), np.full(len(rows), abs(init))
    for part in (rows[:, :whole].reshape(len(rows), count, _PIECE), rows[:, whole:].reshape(len(rows), 1, -1)):
        value += part.sum(axis=-1, dtype=np.float64).sum(axis=-1)
        size += np.abs(part).sum(axis=-1).sum(axis=-1, dtype=np.float64)
    # Twice the bound, for the margin, and twice that, for the size.
    error = size * ((_PIECE + count + 3) * 2.0**-51)
    again = doubtful(value, error, result_type)
    again |= np.isnan(value)
    places = np.flatnonzero(again)
    units = units_of(rows[places]).min(axis=-1, initial=units_of(np.array([init], np.float32))[0])
    return value, places[~(size[places] < EXACT_UNITS * units)]


def _reduced_rows(operation: _Operation, rows: Array, init: float) -> Array:
    to_terms, combine, value = operation
    widened = (widen(rows[:, start : start + _ROW]).astype(np.float64) for start in range(0, rows.shape[1], _ROW))
    pieces = [_fold(to_terms(piece), combine) for piece in widened]
    pieces.append(to_terms(np.full((len(rows), 1), init)))
    together = tuple(np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True))
    return value(_fold(together, combine))[:, 0]


def _fold(terms: Terms, combine: _Combination) -> Terms:
    """Combine the first half of the terms with the second until one is left; an odd one waits."""
    while (length := terms[0].shape[-1]) > 1:
        half = length // 2
        combined = combine(*(tuple(part[..., start : start + half] for part in terms) for start in (0, half)))
        if length % 2:
            pairs = zip(combined, terms, strict=True)
            combined = tuple(np.concatenate([new, old[..., -1:]], axis=-1) for new, old in pairs)
        terms = combined
    return terms


def sum_pairs(terms: Pair) -> Pair:
    """The sums of pairs along the last axis, which keeps the length 1; of none, 0."""
    if terms[0].shape[-1] == 0:
        nothing = np.zeros((*terms[0].shape[:-1], 1))
        return nothing, nothing
    high, low = _fold(terms, add_pairs)
    return high, low


def _keep_negative_zeros(result: Array, rows: Array, init: float) -> None:
    """A sum of nothing but −0 is −0, which pairs do not remember."""
    if init == 0 and np.signbit(init) and (result == 0).any():
        negative = (rows == 0).all(axis=1) & np.signbit(widen(rows)).all(axis=1)
        result[negative] = -0.0


def add_by_key(target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`target[keys] += pieces` in place, each row of the target summed as pairs and rounded once.

    `target` is `[rows, ...]`, `pieces` `[keys, ...]`. Neighbours of one key are added up, in order, until one is left.
    """
    if target.dtype.kind == "c":
        for ours, theirs in ((target.real, pieces.real), (target.imag, pieces.imag)):
            ours[...] = _added_by_key(ours, keys, theirs)
        return
    target[...] = narrow(_added_by_key(widen(target), keys, widen(pieces)), element_type)


def _added_by_key(target: Array, keys: Array, pieces: Array) -> Array:
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    total: Pair = pieces[order].astype(np.float64), np.zeros(pieces.shape)
    while True:
        begins = np.concatenate(([True], keys[1:] != keys[:-1]))
        if begins.all():
            break
        places = np.arange(len(keys))
        odd = (places - np.maximum.accumulate(np.where(begins, places, 0))) % 2 == 1
        second = np.flatnonzero(odd)
        first = second - 1
        neighbours = ((total[0][places], total[1][places]) for places in (first, second))
        total[0][first], total[1][first] = add_pairs(*neighbours)
        keys, total = keys[~odd], (total[0][~odd], total[1][~odd])
    result = target.astype(np.float64)
    high, low = add_pairs(total, (result[keys], 0.0))
    result[keys] = high + low
    return result


def mean_and_variance(x: Array) -> tuple[Pair, Pair]:
    """The mean of each row, and the mean square of the distances from it."""
    count = float(x.shape[1])
    mean = _divide_pairs(sum_pairs(pair(x)), pair(count))
    distance = _subtract_pairs(pair(x), mean)
    return mean, _divide_pairs(sum_pairs(_multiply_pairs(distance, distance)), pair(count))


def normalized(x: Array, mean: Pair, variance: Pair, epsilon: float, scale: Array, offset: Array) -> Array:
    """scale · (x − mean) / √(variance + epsilon) + offset."""
    deviation = _square_root(add_pairs(variance, pair(epsilon)))
    normal = _divide_pairs(_multiply_pairs(pair(scale), _subtract_pairs(pair(x), mean)), deviation)
    return _value(add_pairs(normal, pair(offset)))


def gradients(
    x: Array, g: Array, scale: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """grad_operand, grad_scale and grad_offset; see batch-norm-grad."""
    count = pair(float(max(1, x.shape[1])))
    deviation = _square_root(add_pairs(pair(variance), pair(epsilon)))
    normal = _divide_pairs(_subtract_pairs(pair(x), pair(mean)), deviation)
    grad_offset = sum_pairs(pair(g))
    grad_scale = sum_pairs(_multiply_pairs(pair(g), normal))
    along = _multiply_pairs(normal, _divide_pairs(grad_scale, count))
    rest = _subtract_pairs(_subtract_pairs(pair(g), _divide_pairs(grad_offset, count)), along)
    grad_operand = _multiply_pairs(_divide_pairs(pair(scale), deviation), rest)
    return _value(grad_operand), _value(grad_scale), _value(grad_offset)


def pair(value: Array | float) -> Pair:
    """An f64 as a pair."""
    high = np.asarray(value, np.float64)
    return high, np.zeros_like(high)


def _value(x: Pair) -> Array:
    return np.asarray(x[0] + x[1])


def _subtract_pairs(x: Pair, y: Pair) -> Pair:
    return add_pairs(x, (-y[0], -y[1]))


def _multiply_pairs(x: Pair, y: Pair) -> Pair:
    return kept_finite(doubled.multiply(x, y), x[0] * y[0])


def _divide_pairs(x: Pair, y: Pair) -> Pair:
    return kept_finite(doubled.divide(x, y), x[0] / y[0])


def _square_root(x: Pair) -> Pair:
    return kept_finite(doubled.square_root(x), np.sqrt(x[0]))


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
