"""Sums of many products of matrices, several of them computed as one.

a + l₁·r₁ + l₂·r₂ is a + (l₁ l₂)·(r₁ over r₂). A product of few terms takes as long as reading and writing the sum does;
one of many terms computes.
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.ops.plain_products import add_product
from hloexec.values import Array

__all__ = ["ProductForm", "ProductSum"]

_MOST_TERMS = 512
"""Longer products are no faster for each term."""
_MOST_PRODUCTS = 64
_WAITING_BYTES = 1 << 20
"""Operands that wait may take so much memory, or half of what the sum takes."""
_BLOCK_BYTES = 4 << 20


@attrs.frozen
class ProductForm:
    """lhsᵀ · rhs, of matrices [terms, rows] and [terms, columns]; either may be given as its transpose."""

    rows: int
    columns: int
    terms: int
    turns_lhs: bool
    turns_rhs: bool
    dtype: np.dtype[np.floating]

    @property
    def group(self) -> int:
        """How many products are computed as one: a power of two."""
        size = self.dtype.itemsize
        waiting = self.terms * (self.rows + self.columns) * size
        most_bytes = max(_WAITING_BYTES, self.rows * self.columns * size // 2)
        most = min(_MOST_PRODUCTS, _MOST_TERMS // max(1, self.terms), most_bytes // max(1, waiting))
        return 1 << max(0, most.bit_length() - 1)


class ProductSum:
    """A matrix to which products are added.

    A group of products is one sum of all of their terms, in the order in which BLAS adds them up; groups are added one
    after the other. So the order of all sums follows from the number of products alone.
    """

    __slots__ = ("_count", "_form", "_full", "_lhs", "_rhs", "_total", "_total_is_own")

    def __init__(self, form: ProductForm, start: Array) -> None:
        self._form = form
        self._full = form.group * form.terms
        self._lhs = np.empty((self._full, form.rows), form.dtype)
        self._rhs = np.empty((self._full, form.columns), form.dtype)
        self._count = 0
        """How many terms wait."""
        self._total = start
        self._total_is_own = False

    def add(self, lhs: Array, rhs: Array) -> None:
        """Add a product; its operands are copied."""
        start, stop = self._count, self._count + self._form.terms
        self._lhs[start:stop] = lhs.T if self._form.turns_lhs else lhs
        self._rhs[start:stop] = rhs.T if self._form.turns_rhs else rhs
        self._count = stop
        if stop == self._full:
            self._add_group()

    def total(self) -> Array:
        """The sum of all that was added."""
        if self._count:
            self._add_group()
        return self._total

    def _add_group(self) -> None:
        result = (
            self._total if self._total_is_own else np.empty((self._form.rows, self._form.columns), self._form.dtype)
        )
        add_product(result, self._total, self._lhs[: self._count].T, self._rhs[: self._count], _BLOCK_BYTES)
        self._total, self._total_is_own, self._count = result, True, 0
