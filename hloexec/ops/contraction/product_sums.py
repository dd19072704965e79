"""Matrices to which products are added, one after the other.

Computing a product of few terms takes less time than reading and writing its sum. Products are therefore collected
until several of them can be added, in order, to one block of the sum after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.contraction.fast.dot import MatrixProduct
from hloexec.ops.contraction.plain_products import products_plus
from hloexec.ops.contraction.product_blocks import FEW_TERMS, blocks_of
from hloexec.ops.movement.copying import in_order
from hloexec.ops.registry import MemoryOrder

_MOST_WAITING = 16
"""More products at a time are hardly faster."""


@frozen
class AddedProduct:
    """The kernel for a product of two matrices plus a matrix: the product is rounded, then the sum."""

    product: MatrixProduct
    orders: tuple[MemoryOrder | None, MemoryOrder | None] = (None, None)
    """How the operands of the product lie in memory; see `in_order`."""
    is_transposed: bool = False
    """Whether the transpose of the product is added."""
    is_addend_first: bool = False
    """Which operand of the sum the matrix is, which decides between two NaNs."""
    overwrites: ClassVar[int] = 2

    def __call__(self, lhs: Array, rhs: Array, addend: Array, out: Array | None = None) -> Array:
        return self.sum([self.operands(lhs, rhs)], addend, out)

    def operands(self, lhs: Array, rhs: Array) -> tuple[Array, Array]:
        """The operands as they are multiplied."""
        return self.product.as_matrices(in_order(lhs, self.orders[0]), in_order(rhs, self.orders[1]))

    def sum(self, products: Sequence[tuple[Array, Array]], addend: Array, out: Array | None = None) -> Array:
        """`addend` plus the products, one after the other; `out` may be `addend`."""
        if not self.is_transposed:
            return products_plus(products, addend, out, is_addend_first=self.is_addend_first)
        target = None if out is None else out.T
        return products_plus(products, addend.T, target, is_addend_first=self.is_addend_first).T

    def waiting_bytes(self, lhs: Shape, rhs: Shape, addend: Shape) -> int:
        """What operands take that wait; 0 where to wait is of no use."""
        assert isinstance(lhs, ArrayShape) and isinstance(addend, ArrayShape)
        rows, columns = reversed(addend.dimensions) if self.is_transposed else addend.dimensions
        terms = lhs.dimensions[0 if self.product.transposes_lhs else 1]
        is_worth_it = 0 < terms <= FEW_TERMS and not blocks_of(rows, terms, columns).is_whole
        return _MOST_WAITING * (lhs.byte_size + rhs.byte_size) if is_worth_it else 0


class ProductSum:
    """A matrix to which products are added, with those that wait to be; the bits are as if they did not wait."""

    __slots__ = ("_added", "_total", "_total_is_own", "_waiting")

    def __init__(self, added: AddedProduct, start: Array) -> None:
        self._added = added
        self._total = start
        self._total_is_own = False
        self._waiting: list[tuple[Array, Array]] = []

    def add(self, lhs: Array, rhs: Array) -> None:
        """Add a product, of copies of its operands."""
        lhs, rhs = self._added.operands(lhs, rhs)
        self._waiting.append((lhs.copy(order="K"), rhs.copy(order="K")))
        if len(self._waiting) == _MOST_WAITING:
            self.total()

    def total(self) -> Array:
        """The sum of all that was added."""
        if self._waiting:
            out = self._total if self._total_is_own else None
            self._total = self._added.sum(self._waiting, self._total, out)
            self._total_is_own = True
            self._waiting.clear()
        return self._total
