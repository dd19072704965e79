"""The numerics of contractions: how two stacks of matrices are multiplied, and how often the result is rounded.

Everything here computes `[batch..., m, k]` times `[batch..., k, n]`. A `Multiplier` defines how: it prepares each
operand (widens it, rounds it, splits it into parts that BLAS multiplies as needed) and multiplies prepared operands.
Operands are prepared block by block, so that a bf16 weight is never widened as a whole; the blocks depend on shapes and
element types alone.

BLAS multiplies floats, which represent a sum of products exactly while it is small enough; wider integers are
multiplied digit by digit. `ops.contraction.matrix_product` defines multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import iadd
from typing import Protocol

import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind, element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays
from hloexec.ops.common import converted_into, narrow, narrow_into, rounds_directly, widen
from hloexec.ops.contraction.plain_products import (
    batch_blocks,
    blocks_of,
    even_step,
    multiply_block,
    plain_matrix_product,
)
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.policies.exact.sums import ExactMultiplier, exact_matrix_product
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.resources import empty, for_each, in_blocks, matmul

_DIRECT_INTEGER_PRODUCTS = 1 << 15
"""Up to this many multiplications, NumPy's own integer loop is faster than preparing operands for BLAS."""
_LIMB_BITS = 16

_F32 = np.dtype(np.float32)
_F64 = np.dtype(np.float64)


def integer_multiplier(lhs: Array, rhs: Array, result_type: ElementType) -> _DirectIntegerMultiplier | _LimbMultiplier:
    """The multiplier for integers `[batch..., m, k]` and `[batch..., k, n]`, exact modulo the result's width."""
    length = lhs.shape[-1]
    if lhs.size * rhs.shape[-1] <= _DIRECT_INTEGER_PRODUCTS:
        return _DirectIntegerMultiplier(result_type.compute)
    largest_product = max(1, _largest_magnitude(lhs) * _largest_magnitude(rhs))
    for dtype, bits in ((_F32, 24), (_F64, 53)):
        exact_length = (1 << bits) // largest_product
        if exact_length >= min(length, 512):
            return _ExactIntegerMultiplier(dtype, exact_length)
    return _LimbMultiplier(max(1, result_type.bits // _LIMB_BITS))


def _largest_magnitude(array: Array) -> int:
    """A bound of the absolute values: of the type where it is narrow, of the elements otherwise."""
    entry = element_type_of(array.dtype)
    if entry.kind is Kind.PRED:
        return 1
    if entry.bits <= 8:
        return 1 << (entry.bits if entry.kind is Kind.UNSIGNED else entry.bits - 1)
    return max(int(array.max()), -int(array.min())) if array.size else 1


def _exact_integer_matmul(lhs: Array, rhs: Array, length: int) -> Array:
    """The product of whole numbers held in floats, as wrapping int64; `length` products add up exactly in the float."""
    parts = (
        matmul(lhs[..., start : start + length], rhs[..., start : start + length, :]).astype(np.int64)
        for start in range(0, max(1, lhs.shape[-1]), length)
    )
    return reduce(iadd, parts)


@frozen
class _DirectIntegerMultiplier:
    """Integer products in NumPy's own loop, which wraps as the result does; for small operands."""

    scratch_dtype: DType

    def prepare(self, operand: Array) -> Arrays:
        return (widen(operand).astype(self.scratch_dtype, copy=False),)

    def product(self, lhs: Arrays, rhs: Arrays) -> Array:
        return matmul(lhs[0], rhs[0])


@frozen
class _ExactIntegerMultiplier(_DirectIntegerMultiplier):
    """Integer products by BLAS: floats that hold every partial sum of `length` products exactly."""

    length: int

    def product(self, lhs: Arrays, rhs: Arrays) -> Array:
        return _exact_integer_matmul(lhs[0], rhs[0], self.length)


@frozen
class _LimbMultiplier:
    """Products of wide integers modulo 2^(16·limbs): both operands as digits of 16 bits, multiplied exactly by BLAS.

    Digits i and j contribute to bits from 16·(i + j) up; pairs beyond the width of the result vanish. The product of
    two digits has 32 bits, so that 2^21 of them add up exactly in an f64.
    """

    limbs: int

    @property
    def scratch_dtype(self) -> DType:
        return _F64

    def prepare(self, operand: Array) -> Arrays:
        bits = widen(operand).astype(np.int64).view(np.uint64)
        mask = np.uint64((1 << _LIMB_BITS) - 1)
        return tuple(((bits >> np.uint64(_LIMB_BITS * i)) & mask).astype(_F64) for i in range(self.limbs))

    def product(self, lhs: Arrays, rhs: Arrays) -> Array:
        parts = (
            _exact_integer_matmul(lhs[i], rhs[j], 1 << (53 - 2 * _LIMB_BITS)).view(np.uint64)
            << np.uint64(_LIMB_BITS * (i + j))
            for i in range(self.limbs)
            for j in range(self.limbs - i)
        )
        return reduce(iadd, parts)


_BLOCK_BYTES = 4 << 20
"""Scratch for one prepared block: small enough to stay in a last-level cache."""
_BLOCK_BYTES_LIMIT = 64 << 20
"""What a block may grow to where smaller ones would starve BLAS of rows."""
_BLOCK_ROWS = 256
"""Rows (or columns) that keep BLAS busy."""
_SHARED_ELEMENTS = 1 << 17
"""Elements to widen that are worth another thread."""

_FIRST_TERMS = ((0, 0),)
HIGH_AND_MIDDLE = ((1, 0), (0, 1), (0, 0))
"""The products that three passes add up, of operands in two terms."""
WITHOUT_THE_SMALLEST = ((1, 1), (2, 0), (0, 2), *HIGH_AND_MIDDLE)
"""Those of six passes, of operands in three terms."""
_PASSES = {1: (1, _FIRST_TERMS), 3: (2, HIGH_AND_MIDDLE), 6: (3, WITHOUT_THE_SMALLEST)}


class Multiplier(Protocol):
    """How to multiply: `product(prepare(lhs), prepare(rhs))` is the result before it is rounded."""

    @property
    def scratch_dtype(self) -> DType:
        """The type that operands are prepared in."""

    def prepare(self, operand: Array) -> Arrays:
        """The operand in the parts that `product` multiplies; a tuple of only itself where there is nothing to do."""

    def product(self, lhs: Arrays, rhs: Arrays) -> Array:
        """The product of prepared operands, in a type that `narrow` takes to the result's."""


@frozen
class OperandSplit:
    """How a float operand is rounded before it is multiplied.

    It becomes the sum of `terms` numbers, each the rest that the ones before leave, rounded by `round_to`; the products
    of the given `pairs` of terms are added up in that order.
    """

    round_to: Callable[[Array], Array]
    terms: int = 1
    pairs: tuple[tuple[int, int], ...] = _FIRST_TERMS
    only_f32: bool = False
    """Whether operands of other types are left alone."""

    def parts(self, operand: Array) -> Iterator[Array]:
        """The terms of an f32 operand, or of one that f32 holds; others are left alone."""
        wide = widen(operand)
        if wide.dtype != _F32 or (self.only_f32 and operand.dtype != _F32):
            yield from (operand, *[np.zeros_like(operand)] * (self.terms - 1))
        else:
            yield from terms_of(wide, self)


@frozen
class FloatMultiplier:
    """Floating-point or complex products: one BLAS call per pair of terms, added up in the type of these."""

    scratch_dtype: DType
    split: OperandSplit | None = None
    sum_type: ElementType | None = None
    """Where set, the sum is rounded to this type before it is rounded to the result's."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The terms of the two operands that are multiplied, in the order in which their products are added up."""
        return _FIRST_TERMS if self.split is None else self.split.pairs

    def is_plain(self, *dtypes: DType) -> bool:
        """Whether operands and result of these types need neither preparing nor rounding."""
        return self.split is None and self.sum_type is None and all(dtype == self.scratch_dtype for dtype in dtypes)

    def gives(self, dtype: DType) -> bool:
        """Whether one BLAS call on prepared operands gives the result in this type, without further rounding."""
        return self.pairs == _FIRST_TERMS and self.sum_type is None and dtype == self.scratch_dtype

    def prepare(self, operand: Array) -> Arrays:
        wide = widen(operand)
        if self.split is None or (self.split.only_f32 and operand.dtype != _F32):
            return (wide.astype(self.scratch_dtype, copy=False),)
        return tuple(terms_of(wide.astype(self.scratch_dtype, copy=False), self.split))

    def product(self, lhs: Arrays, rhs: Arrays) -> Array:
        total, *others = (plain_matrix_product(lhs[i], rhs[j]) for i, j in self.pairs)
        for other in others:
            total += other
        return total if self.sum_type is None else widen(narrow(total, self.sum_type))


def exactly(multiplier: Multiplier | ExactMultiplier) -> Multiplier | ExactMultiplier:
    """The multiplier for the `exact` policy: the same products added up without error; integers' are so anyway."""
    if not isinstance(multiplier, FloatMultiplier):
        return multiplier
    return ExactMultiplier(multiplier.prepare, multiplier.pairs, multiplier.sum_type)


def matrix_product(lhs: Array, rhs: Array, result_type: ElementType, multiplier: Multiplier | ExactMultiplier) -> Array:
    """`[batch..., m, k]` times `[batch..., k, n]` as `[batch..., m, n]` of `result_type`, rounded once.

    The batch dimensions of both must be the same. Strides are free.
    """
    if isinstance(multiplier, ExactMultiplier):
        return convert(exact_matrix_product(lhs, rhs, result_type, multiplier), result_type)
    result = empty((*lhs.shape[:-1], rhs.shape[-1]), result_type.storage)
    multiply_into(result, lhs, rhs, result_type, multiplier)
    return result


def default_multiplier(lhs: Array, rhs: Array, result_type: ElementType, f32_split: OperandSplit | None) -> Multiplier:
    """The multiplier for operands `[batch..., m, k]` and `[batch..., k, n]` whose instruction says nothing special.

    Anything complex accumulates in complex numbers, anything floating in f32 or, where f64 takes part, in f64; integers
    are exact modulo the width of the result. `f32_split` is what the policy does to f32 operands.
    """
    types = (element_type_of(lhs.dtype), element_type_of(rhs.dtype), result_type)
    if any(entry.is_floating or entry.is_complex for entry in types):
        dtype = float_accumulation(*types)
        if f32_split is None or dtype.kind == "c" or (f32_split.terms > 1 and dtype != _F32):
            return FloatMultiplier(dtype)
        return FloatMultiplier(dtype, f32_split)
    return integer_multiplier(lhs, rhs, result_type)


def float_accumulation(*types: ElementType) -> DType:
    """f32, f64, c64 or c128: as wide as the widest of the types, complex where one of them is."""
    return np.result_type(np.float32, *(entry.accumulate for entry in types if entry.is_floating or entry.is_complex))


def operand_split(numerics: NumericsPolicy) -> OperandSplit | None:
    """What a policy does to f32 operands of contractions of default precision; None where it leaves them alone."""
    bits = numerics.contraction_operand_mantissa_bits
    if bits is None:
        return None
    terms, pairs = _PASSES[numerics.contraction_passes]
    # Several terms are prepared of both operands alike; a narrow one has all of itself in the first.
    return OperandSplit(_operand_rounding(numerics, bits), terms, pairs, only_f32=terms == 1)


def _operand_rounding(numerics: NumericsPolicy, bits: int) -> Callable[[Array], Array]:
    """Tensor cores leave out the last bits of operands that nothing has rounded to TF32 before: so does every other
    policy that rounds at random."""
    if numerics.rounding_seed is not None and not numerics.keeps_formats:
        return partial(_cut_by_seed, bits=bits)
    return partial(cut_mantissa if numerics.cuts_operands else round_mantissa, bits=bits)


def round_mantissa(array: Array, bits: int) -> Array:
    """The f32 array with only `bits` explicit bits of its significands kept: rounded to nearest, ties to even."""
    dropped = 23 - bits
    pattern = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return _kept(pattern + (((pattern >> dropped) & 1) + ((1 << (dropped - 1)) - 1)), array, bits)


def cut_mantissa(array: Array, bits: int) -> Array:
    """The f32 array with only `bits` explicit bits of its significands kept: rounded towards zero."""
    return _kept(np.array(array, np.float32, order="C").view(np.uint32), array, bits)


def _cut_by_seed(array: Array, bits: int) -> Array:
    """What tensor cores leave of an operand where the run's seed is odd, else either of the numbers next to it."""
    from hloexec.ops.policies.chance import has_odd_seed
    from hloexec.ops.policies.random_rounding import cut_by_chance

    return cut_mantissa(array, bits) if has_odd_seed() else cut_by_chance(array, bits)


def _kept(pattern: Array, array: Array, bits: int) -> Array:
    """f32 numbers with the other bits of their patterns cleared; what is NaN in `array` stays as it is there."""
    pattern &= np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    numbers = pattern.view(np.float32)
    nan = np.isnan(array)
    if nan.any():
        numbers[nan] = array[nan]
    return numbers


def multiply_into(result: Array, lhs: Array, rhs: Array, result_type: ElementType, multiplier: Multiplier) -> None:
    """Fill `result` with a product, as `matrix_product` gives it.

    Block by block, each small enough once it is prepared. Blocks follow from shapes and element types alone; where
    there are several, the cores share them, and each prepares its operands, multiplies and rounds in its own cache.
    """
    if isinstance(multiplier, FloatMultiplier) and multiplier.is_plain(lhs.dtype, rhs.dtype, result.dtype):
        plain_matrix_product(lhs, rhs, result)
        return
    if result.ndim > 2:
        count = max(1, math.prod(result.shape[:-2]))
        item_bytes = multiplier.scratch_dtype.itemsize * (lhs.size + rhs.size + result.size) // count
        if item_bytes > _BLOCK_BYTES:
            for index in np.ndindex(result.shape[:-2]):
                multiply_into(result[index], lhs[index], rhs[index], result_type, multiplier)
            return

        def multiply(index: tuple[int | slice, ...]) -> None:
            operands = _prepare(lhs[index], multiplier), _prepare(rhs[index], multiplier)
            _multiply_prepared(result[index], *operands, result_type, multiplier)

        for_each(multiply, batch_blocks(result.shape[:-2], item_bytes))
        return
    (rows, length), columns = lhs.shape, rhs.shape[1]
    row_step, column_step = _block_sizes(lhs, rhs, result_type, multiplier)
    if columns >= rows:
        column_step = min(column_step, even_step(columns, rows * length))
        for start in range(0, rows, row_step):
            part = slice(start, start + row_step)
            _in_strips(result[part], lhs[part], rhs, result_type, multiplier, column_step, axis=1)
    else:
        row_step = min(row_step, even_step(rows, columns * length))
        for start in range(0, columns, column_step):
            part = slice(start, start + column_step)
            _in_strips(result[:, part], lhs, rhs[:, part], result_type, multiplier, row_step, axis=0)


def _in_strips(
    result: Array, lhs: Array, rhs: Array, result_type: ElementType, multiplier: Multiplier, step: int, *, axis: int
) -> None:
    """Some rows of lhs (axis 0) or columns of rhs (axis 1) at a time, times all of the other operand.

    Where only the other operand needs preparing, the blocks are those of products that need none.
    """
    whole = _prepare_on_all_cores((rhs, lhs)[axis], multiplier)
    if _is_ready((lhs, rhs)[axis], result_type, multiplier):
        left, right = (whole[0], rhs) if axis else (lhs, whole[0])
        blocks = blocks_of(*left.shape, right.shape[1])
        blocks.on_all_cores(lambda rows, columns: matmul(left[rows], right[:, columns], result[rows, columns]))
        return

    def multiply(start: int, stop: int) -> None:
        strip = (slice(None),) * axis + (slice(start, stop),)
        part = _prepare((lhs, rhs)[axis][strip], multiplier)
        operands = (whole, part) if axis else (part, whole)
        _multiply_prepared(result[strip], *operands, result_type, multiplier)

    in_blocks(multiply, result.shape[axis], step)


def _is_ready(operand: Array, result_type: ElementType, multiplier: Multiplier) -> bool:
    """Whether BLAS multiplies this operand as it is, and gives the result as it is wanted."""
    if not isinstance(multiplier, FloatMultiplier):
        return False
    return multiplier.is_plain(operand.dtype) and multiplier.gives(result_type.storage)


def _multiply_prepared(
    result: Array, lhs: Arrays, rhs: Arrays, result_type: ElementType, multiplier: Multiplier
) -> None:
    if isinstance(multiplier, FloatMultiplier) and multiplier.gives(result_type.storage):
        matmul(lhs[0], rhs[0], result)
        return
    if isinstance(multiplier, FloatMultiplier) and multiplier.gives(multiplier.scratch_dtype) and lhs[0].ndim == 2:
        product = np.empty(result.shape, multiplier.scratch_dtype)
        multiply_block(lhs[0], rhs[0], product)
    else:
        product = multiplier.product(lhs, rhs)
    if result_type.is_floating and rounds_directly(product.dtype, result_type):
        narrow_into(product, result)
    else:
        result[...] = convert(product, result_type)


def _block_sizes(lhs: Array, rhs: Array, result_type: ElementType, multiplier: Multiplier) -> tuple[int, int]:
    """How many rows of `lhs` and columns of `rhs` make a block.

    An operand that needs no preparing is not divided, nor is a result that needs no rounding. The blocks of the other
    are large, since all of them are prepared anew for each block of rows; with few rows or columns there is one such
    block at most, and small ones stay in the cache.
    """
    itemsize = multiplier.scratch_dtype.itemsize
    (rows, length), columns = lhs.shape, rhs.shape[1]
    few = min(rows, columns) <= _BLOCK_ROWS
    block_bytes = _BLOCK_BYTES if few else _BLOCK_BYTES_LIMIT
    most = max(_BLOCK_ROWS if not few else 1, block_bytes // max(1, length * itemsize))
    in_floats = multiplier if isinstance(multiplier, FloatMultiplier) else None
    row_step = rows if in_floats and in_floats.is_plain(lhs.dtype) else most
    column_step = columns if in_floats and in_floats.is_plain(rhs.dtype) else most
    if in_floats is None or not in_floats.gives(result_type.storage):
        row_step, column_step = min(row_step, rows), min(column_step, columns)
        column_step = min(column_step, max(_BLOCK_ROWS, _BLOCK_BYTES_LIMIT // max(1, row_step * itemsize)))
        row_step = min(row_step, max(_BLOCK_ROWS, _BLOCK_BYTES_LIMIT // max(1, column_step * itemsize)))
    return max(1, row_step), max(1, column_step)


def _prepare(operand: Array, multiplier: Multiplier) -> Arrays:
    """The prepared operand; a transposed one is read and written in the order in which it lies in memory."""
    if abs(operand.strides[-2]) >= abs(operand.strides[-1]):
        return multiplier.prepare(operand)
    return tuple(part.swapaxes(-1, -2) for part in multiplier.prepare(operand.swapaxes(-1, -2)))


def _prepare_on_all_cores(operand: Array, multiplier: Multiplier) -> Arrays:
    """`_prepare`, of a matrix of 16-bit numbers so large that the cores share it, where it only has to be widened."""
    is_widened = isinstance(multiplier, FloatMultiplier) and multiplier.split is None and operand.itemsize == 2
    if not is_widened or operand.size < _SHARED_ELEMENTS:
        return _prepare(operand, multiplier)
    is_turned = abs(operand.strides[0]) < abs(operand.strides[1])
    source = operand.T if is_turned else operand
    wide = np.empty(source.shape, multiplier.scratch_dtype)
    step = -(-_SHARED_ELEMENTS * len(source) // (2 * source.size))
    in_blocks(lambda start, stop: converted_into(source[start:stop], wide[start:stop]), len(source), step)
    return (wide.T if is_turned else wide,)


def terms_of(operand: Array, split: OperandSplit) -> Iterator[Array]:
    """The terms whose sum approximates `operand`; what is not finite stands in the first alone."""
    rest = operand
    for _ in range(split.terms):
        term = split.round_to(rest)
        yield term
        rest = np.where(np.isfinite(term), rest - term, 0).astype(operand.dtype, copy=False)
