"""Fast variants of dot, for operands that BLAS multiplies.

Products of small matrices and vectors are NumPy's `dot`: it calls the same routines of BLAS as `matmul`, with the same
arguments, but takes a third of the time to get there. That the bits are the same is checked for each kind of product
before it is used.

Matrices to which products are added, one after the other.

Computing a product of few terms takes less time than reading and writing its sum. Products are therefore collected
until several of them can be added, in order, to one block of the sum after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import ClassVar

import attrs
import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import in_order
from hloexec.ops.contraction.dot import DotAttributes, free_dimensions
from hloexec.ops.contraction.plain_products import (
    FEW_TERMS,
    blocks_of,
    is_one_call,
    plain_matrix_product,
    products_plus,
)
from hloexec.ops.registry import MemoryOrder, fast
from hloexec.ops.resources import hold_blas, matmul

_MOST_PRODUCTS = 1 << 15
"""Number of multiplications that take longer than calling for them."""


Product = Callable[..., Array]


def small_product(general: Product, lhs: Dimensions, rhs: Dimensions, dtype: DType) -> Product | None:
    """What the kernel `general` does, for small operands of these sizes: `[m, k]` or `[k]` and `[k, n]` or `[k]`,
    multiplied along their neighbouring dimensions. None for others."""
    rows, terms, columns = (lhs[:-1] or (1,))[0], rhs[0], (rhs[1:] or (1,))[0]
    if rows * terms * columns > _MOST_PRODUCTS or min(*lhs, *rhs) < 2 or not _agrees(lhs, rhs, dtype):
        return None
    may_be_transpose = len(lhs) == len(rhs) == 2 and rows == columns

    def multiplied(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
        ours, theirs = lhs.flags, rhs.flags
        is_plain = ours.c_contiguous and theirs.c_contiguous
        if out is not None or not (is_plain or (ours.forc and theirs.forc)):
            return general(lhs, rhs, out)
        if may_be_transpose and not is_plain and np.may_share_memory(lhs, rhs):
            # BLAS has another routine for those.
            return general(lhs, rhs)
        hold_blas()
        return np.asarray(lhs.dot(rhs))

    return multiplied


@cache
def _agrees(lhs: Dimensions, rhs: Dimensions, dtype: DType) -> bool:
    """Whether `dot` gives the bits of `matmul`, in whatever order the operands lie."""
    hold_blas()
    rows, columns = lhs[:-1] or (1,), rhs[1:] or (1,)
    first = np.sin(np.arange(1, 1 + rows[0] * rhs[0], dtype=dtype)).reshape(lhs)
    second = np.sin(np.arange(2, 2 + columns[0] * rhs[0], dtype=dtype) * 3).reshape(rhs)
    for one, other in product(_layouts(first), _layouts(second)):
        matrices = one if one.ndim > 1 else one.reshape(1, -1), other if other.ndim > 1 else other.reshape(-1, 1)
        expected = matmul(*matrices)
        if np.asarray(one.dot(other)).tobytes() != expected.tobytes():
            return False
    return True


def _layouts(array: Array) -> list[Array]:
    return [array, np.asfortranarray(array)] if array.ndim > 1 else [array]


@fast("dot")
class FastDot:
    """For operands of one type that BLAS multiplies along one dimension."""

    @staticmethod
    def bind(
        *, attributes: DotAttributes, shape: ArrayShape, operand_shapes: ArrayShapes
    ) -> Callable[..., Array] | None:
        """The kernel for operands of one type that BLAS multiplies along one dimension; None for all others."""
        types = {operand.element_type for operand in (*operand_shapes, shape)}
        contracting = (*attributes.lhs_contracting_dims, *attributes.rhs_contracting_dims)
        is_usual = attributes.algorithm == "unset"
        if len(types) > 1 or next(iter(types)).name not in ("f32", "f64") or not is_usual or len(contracting) != 2:
            return None
        if attributes.lhs_batch_dims or any(operand.rank != 2 for operand in operand_shapes):
            return _views_multiplied(attributes, shape, *operand_shapes)
        rows, columns = shape.dimensions
        terms = operand_shapes[0].dimensions[contracting[0]]
        general = MatrixProduct(contracting[0] == 0, contracting[1] == 1, is_one_call(rows, terms, columns))
        return attrs.evolve(general, quick=_quick_where_small(general, attributes, *operand_shapes[:2]))


@frozen
class MatrixProduct:
    """The kernel for lhs · rhs of matrices of one type that BLAS multiplies; either may have to be transposed first."""

    transposes_lhs: bool
    transposes_rhs: bool
    is_one_call: bool
    """Whether it takes a single call of BLAS."""
    quick: Callable[..., Array] | None = None
    """The same with less before the call, where there is such a kernel."""

    def __call__(self, lhs: Array, rhs: Array, out: Array | None = None) -> Array:
        multiply = matmul if self.is_one_call else plain_matrix_product
        return multiply(*self.as_matrices(lhs, rhs), out)

    def as_matrices(self, lhs: Array, rhs: Array) -> tuple[Array, Array]:
        """The operands as `[rows, terms]` and `[terms, columns]`."""
        return lhs.T if self.transposes_lhs else lhs, rhs.T if self.transposes_rhs else rhs


def _views_multiplied(
    numbers: DotAttributes, shape: ArrayShape, lhs: ArrayShape, rhs: ArrayShape
) -> Callable[[Array, Array], Array]:
    """What `contract` does with operands of these shapes, of a type that BLAS multiplies, and one contracting pair."""
    batch = len(numbers.lhs_batch_dims)
    lhs_order = (
        *numbers.lhs_batch_dims,
        *free_dimensions(lhs.rank, numbers.lhs_batch_dims, numbers.lhs_contracting_dims),
        *numbers.lhs_contracting_dims,
    )
    rhs_order = (
        *numbers.rhs_batch_dims,
        *numbers.rhs_contracting_dims,
        *free_dimensions(rhs.rank, numbers.rhs_batch_dims, numbers.rhs_contracting_dims),
    )
    items = tuple(lhs.dimensions[dim] for dim in numbers.lhs_batch_dims)
    terms = lhs.dimensions[numbers.lhs_contracting_dims[0]]
    rows = math.prod(lhs.dimensions[dim] for dim in lhs_order[batch:-1])
    columns = math.prod(rhs.dimensions[dim] for dim in rhs_order[batch + 1 :])
    lhs_sizes, rhs_sizes, sizes = (*items, rows, terms), (*items, terms, columns), shape.dimensions
    multiply = matmul if not batch and is_one_call(rows, terms, columns) else plain_matrix_product

    def multiplied(lhs: Array, rhs: Array, _: Array | None = None) -> Array:
        product = multiply(_viewed(lhs, lhs_order, lhs_sizes), _viewed(rhs, rhs_order, rhs_sizes))
        return product.reshape(sizes)

    is_flat = not batch and lhs.rank <= 2 and rhs.rank <= 2
    return (_quick_where_small(multiplied, numbers, lhs, rhs) if is_flat else None) or multiplied


def _quick_where_small(
    general: Callable[..., Array], numbers: DotAttributes, lhs: ArrayShape, rhs: ArrayShape
) -> Callable[..., Array] | None:
    """The kernel for small matrices and vectors of one type that BLAS multiplies along one dimension."""
    turns_lhs = lhs.rank == 2 and numbers.lhs_contracting_dims == (0,)
    turns_rhs = rhs.rank == 2 and numbers.rhs_contracting_dims == (1,)

    def of_turned(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
        return general(lhs.T if turns_lhs else lhs, rhs.T if turns_rhs else rhs, out)

    ours = lhs.dimensions[::-1] if turns_lhs else lhs.dimensions
    theirs = rhs.dimensions[::-1] if turns_rhs else rhs.dimensions
    quick = small_product(of_turned, ours, theirs, lhs.element_type.storage)
    if quick is None or not (turns_lhs or turns_rhs):
        return quick
    return lambda lhs, rhs, out=None: quick(lhs.T if turns_lhs else lhs, rhs.T if turns_rhs else rhs, out)


def _viewed(array: Array, order: Dimensions, sizes: Dimensions) -> Array:
    """The array with its dimensions in another order, and then merged; a view where strides allow."""
    matrices = array.transpose(order).reshape(sizes) if len(order) > 1 else array.reshape(sizes)
    # As in `_matrices`.
    return matrices if array.itemsize in matrices.strides[-2:] else np.ascontiguousarray(matrices)


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
