"""Multipliers of integers: exact modulo the width of the result, with BLAS where that is faster.

BLAS multiplies floats, which represent a sum of products exactly while it is small enough; wider integers are
multiplied digit by digit. `ops.contraction.matrix_product` defines multipliers.
"""

from __future__ import annotations

from functools import reduce
from operator import iadd

import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind, element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.blas import matmul
from hloexec.ops.common import widen

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

    def prepare(self, operand: Array) -> tuple[Array, ...]:
        return (widen(operand).astype(self.scratch_dtype, copy=False),)

    def product(self, lhs: tuple[Array, ...], rhs: tuple[Array, ...]) -> Array:
        return matmul(lhs[0], rhs[0])


@frozen
class _ExactIntegerMultiplier(_DirectIntegerMultiplier):
    """Integer products by BLAS: floats that hold every partial sum of `length` products exactly."""

    length: int

    def product(self, lhs: tuple[Array, ...], rhs: tuple[Array, ...]) -> Array:
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

    def prepare(self, operand: Array) -> tuple[Array, ...]:
        bits = widen(operand).astype(np.int64).view(np.uint64)
        mask = np.uint64((1 << _LIMB_BITS) - 1)
        return tuple(((bits >> np.uint64(_LIMB_BITS * i)) & mask).astype(_F64) for i in range(self.limbs))

    def product(self, lhs: tuple[Array, ...], rhs: tuple[Array, ...]) -> Array:
        parts = (
            _exact_integer_matmul(lhs[i], rhs[j], 1 << (53 - 2 * _LIMB_BITS)).view(np.uint64)
            << np.uint64(_LIMB_BITS * (i + j))
            for i in range(self.limbs)
            for j in range(self.limbs - i)
        )
        return reduce(iadd, parts)
