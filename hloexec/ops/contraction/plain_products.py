"""Matrix products that BLAS computes directly, in the forms that are fastest for OpenBLAS.

OpenBLAS copies both operands of a product into its own order, block by block, before it multiplies. If one of them has
few rows, copying the other takes longer than everything else. With its AVX-512 kernels, OpenBLAS skips the copy for
small products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from hloexec.core.openblas import openblas_kernels
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.blas import matmul
from hloexec.ops.contraction.product_blocks import LEAST_SHARED, batch_blocks, blocks_of
from hloexec.ops.threads import for_each, in_blocks

_FEW_ROWS = 32
_TURNED_ELEMENTS = 1 << 16

_COPYLESS_KERNELS = frozenset({"skylakex", "cooperlake", "sapphirerapids"})
_COPYLESS_PRODUCTS = 1_000_000
"""Number of multiplications that these kernels do without a copy."""
_COPYLESS_TURNED_ELEMENTS, _COPYLESS_TURNED_LENGTH = 1200, 64
"""Where rhs is transposed, only for results of at most so many elements; sums of fewer terms make too many slabs."""
_SLAB_PRODUCTS = 3 << 19
"""Two threads that copy are as fast with more as one that does not."""
_SLAB_COLUMNS = 16

_TILE_LENGTH, _TILE_COLUMNS, _TURNED_TILE_COLUMNS = 256, 128, 32
"""Where columns of the matrix lie one after the other, few of them take half the time."""
_TILED_COLUMNS = 512
"""What a thread multiplies at a time, in tiles side by side."""
_TILE_ELEMENTS = _TILE_LENGTH * _TILE_COLUMNS
_WIDE_LENGTH, _WIDE_COLUMNS, _WIDE_TILES = 32, 1024, 8
"""The same of a matrix in row-major order, one below the other: its rows are read for as long as can be."""
_WIDE_ELEMENTS = 1 << 21
"""What such a matrix has that a core's own cache does not hold, at least."""
_TILED_ELEMENTS = 1 << 20
"""Smaller matrices stay in the cache."""
_SEVERAL = 8
"""Number of items of a stack that keep all cores busy with one item each."""


def plain_matrix_product(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
    """lhs · rhs, of matrices of one type that BLAS multiplies, or of stacks `[batch..., m, k]` and `[batch..., k, n]`.

    The result is in `out` where that is given. The order of the sums depends on shapes, on which dimension of either
    operand is the minor one, and on the kernels of BLAS.
    """
    result = empty((*lhs.shape[:-1], rhs.shape[-1]), lhs.dtype) if out is None else out
    if lhs.ndim > 2:
        _multiply_stacks(lhs, rhs, result)
    elif _can_be_tiled(lhs, rhs):
        _multiply_in_tiles(lhs, rhs, result)
    else:
        blocks = blocks_of(len(lhs), len(rhs), rhs.shape[1])
        if not blocks.is_whole:
            blocks.on_all_cores(lambda rows, columns: multiply_block(lhs[rows], rhs[:, columns], result[rows, columns]))
        elif (slabs := _slabs(lhs, rhs)) > 1:
            _multiply_in_slabs(lhs, rhs, slabs, result)
        else:
            multiply_block(lhs, rhs, result)
    return result


def is_one_call(rows: int, terms: int, columns: int) -> bool:
    """Whether `plain_matrix_product` of matrices of these sizes is one call of `matmul`, in whatever order they lie."""
    return blocks_of(rows, terms, columns).is_whole and not _has_few_rows(rows, terms * columns)


def products_plus(
    products: Sequence[tuple[Array, Array]], addend: Array, out: Array | None = None, *, is_addend_first: bool = False
) -> Array:
    """addend + lhs · rhs + …, of matrices of one type and products of one shape, in `out`, which may be `addend`.

    The same bits as if each product was rounded and then added, of NaNs, too, where `is_addend_first` says which
    operand of the sums the addend is; but they are added block by block, while a block lies in the cache.
    """

    def combine(part: Array, addend: Array, target: Array | None) -> Array:
        total: Array = np.add(addend, part, out=target) if is_addend_first else np.add(part, addend, out=target)
        return total

    lhs, rhs = products[0]
    blocks = blocks_of(len(lhs), len(rhs), rhs.shape[1])
    if blocks.is_whole or _can_be_tiled(lhs, rhs):
        for lhs, rhs in products:
            addend = out = combine(plain_matrix_product(lhs, rhs), addend, out)
        return addend
    result = empty(addend.shape, addend.dtype) if out is None else out

    def add(rows: slice, columns: slice) -> None:
        total, target = addend[rows, columns], result[rows, columns]
        part = np.empty(target.shape, target.dtype)
        # Several sums are faster where rows of the block follow one another in memory.
        sums = target if len(products) == 1 else np.empty_like(part)
        for lhs, rhs in products:
            multiply_block(lhs[rows], rhs[:, columns], part)
            total = combine(part, total, sums)
        if sums is not target:
            target[...] = sums

    blocks.on_all_cores(add, len(products))
    return result


def _multiply_stacks(lhs: Array, rhs: Array, result: Array) -> None:
    """Fill a stack, item by item where these are large and few, else with several items at a time."""
    count = prod(result.shape[:-2])
    if not count:
        return
    if count < _SEVERAL and lhs.shape[-2] * lhs.shape[-1] * rhs.shape[-1] >= LEAST_SHARED:
        for index in np.ndindex(result.shape[:-2]):
            plain_matrix_product(lhs[index], rhs[index], result[index])
        return
    parts = batch_blocks(result.shape[:-2], lhs.itemsize * (lhs.size + rhs.size + result.size) // count)
    for_each(lambda index: matmul(lhs[index], rhs[index], result[index]), parts)


def multiply_block(lhs: Array, rhs: Array, result: Array) -> None:
    """Fill a block by one call of BLAS.

    rhsᵀ · lhsᵀ takes OpenBLAS's AVX-512 kernels less time where rhs is transposed, and lhs has few rows.
    """
    is_turned = 2 * rhs.shape[0] >= rhs.shape[1] and rhs.strides[0] == rhs.itemsize
    if is_turned and _has_few_rows(lhs.shape[0], rhs.size):
        result[...] = matmul(rhs.T, lhs.T).T
    else:
        matmul(lhs, rhs, result)


def _has_few_rows(rows: int, other_size: int) -> bool:
    """Whether copying the other operand, of so many elements, would take longer than everything else."""
    return 2 <= rows <= _FEW_ROWS and other_size >= _TURNED_ELEMENTS


def _slabs(lhs: Array, rhs: Array) -> int:
    """The number of slabs, each some columns of rhs, in which BLAS multiplies without a copy; 1 for the whole."""
    is_turned = not rhs.flags.c_contiguous
    is_dense = rhs.flags.c_contiguous or rhs.flags.f_contiguous
    if rhs.dtype != np.float32 or not is_dense or not _has_few_rows(lhs.shape[0], rhs.size):
        return 1
    return _fewest_slabs(lhs.shape[0], *rhs.shape, is_turned) if openblas_kernels() in _COPYLESS_KERNELS else 1


@lru_cache(maxsize=4096)
def _fewest_slabs(rows: int, length: int, columns: int, is_turned: bool) -> int:
    """`_slabs` by sizes: 1 where no number of slabs will do, too."""
    if not _COPYLESS_PRODUCTS < rows * length * columns <= _SLAB_PRODUCTS:
        return 1
    if is_turned and length < _COPYLESS_TURNED_LENGTH:
        return 1
    most_columns = _COPYLESS_PRODUCTS // (rows * length)
    if is_turned:
        most_columns = min(most_columns, _COPYLESS_TURNED_ELEMENTS // rows)
    counts = range(2, columns // _SLAB_COLUMNS + 1)
    return next((count for count in counts if not columns % count and columns // count <= most_columns), 1)


def _multiply_in_slabs(lhs: Array, rhs: Array, count: int, result: Array) -> None:
    """Fill a product, some columns of rhs after the other."""
    rows, length = lhs.shape[0], rhs.shape[0]
    if rhs.flags.c_contiguous:
        slabs = rhs.reshape(length, count, -1).transpose(1, 0, 2)
    else:
        slabs = rhs.T.reshape(count, -1, length).transpose(0, 2, 1)
    parts = result.reshape(rows, count, -1).transpose(1, 0, 2) if result.flags.c_contiguous else None
    product = matmul(lhs, slabs, parts)
    if parts is None:
        result[...] = product.transpose(1, 0, 2).reshape(result.shape)


def _can_be_tiled(lhs: Array, rhs: Array) -> bool:
    length, columns = rhs.shape
    is_worth_it = (
        2 <= lhs.shape[0] <= _FEW_ROWS
        and rhs.size >= _TILED_ELEMENTS
        and rhs.dtype == np.float32
        and lhs.shape[0] * _TILE_ELEMENTS <= _COPYLESS_PRODUCTS
        and openblas_kernels() in _COPYLESS_KERNELS
    )
    is_dense = rhs.flags.c_contiguous or rhs.flags.f_contiguous
    is_even = not (length % _TILE_LENGTH or columns % _TILE_COLUMNS)
    return is_worth_it and ((is_dense and is_even) or _has_wide_tiles(rhs))


def _has_wide_tiles(rhs: Array) -> bool:
    return rhs.flags.c_contiguous and rhs.size >= _WIDE_ELEMENTS and rhs.shape[1] >= _WIDE_COLUMNS // 2


def _multiply_in_tiles(lhs: Array, rhs: Array, result: Array) -> None:
    """Fill a product with sums of products of tiles of rhs, each so small that BLAS does not copy it."""
    if _has_wide_tiles(rhs):
        _multiply_in_wide_tiles(lhs, rhs, result)
        return
    rows, (length, columns) = lhs.shape[0], rhs.shape
    width = _TILE_COLUMNS if rhs.flags.c_contiguous else _TURNED_TILE_COLUMNS
    down, across = length // _TILE_LENGTH, columns // width
    pieces = np.ascontiguousarray(lhs.T).reshape(down, 1, _TILE_LENGTH, rows)
    if rhs.flags.c_contiguous:
        tiles = rhs.reshape(down, _TILE_LENGTH, across, width).transpose(0, 2, 3, 1)
    else:
        tiles = rhs.T.reshape(across, width, down, _TILE_LENGTH).transpose(2, 0, 1, 3)

    def work(start: int, stop: int) -> None:
        products = matmul(tiles[:, start:stop], pieces)
        sums = np.add.reduce(products, axis=0).reshape(-1, rows)
        result[:, start * width : stop * width] = sums.T

    in_blocks(work, across, _TILED_COLUMNS // width)


def _multiply_in_wide_tiles(lhs: Array, rhs: Array, result: Array) -> None:
    """The same where rows of rhs lie one after the other: tiles of few rows, which are read from memory as they lie."""
    (rows, length), columns = lhs.shape, rhs.shape[1]
    count, rest = divmod(length, _WIDE_LENGTH)
    pieces = lhs[:, : length - rest].reshape(rows, count, _WIDE_LENGTH).transpose(1, 0, 2).copy()
    tiles = rhs[: length - rest].reshape(count, _WIDE_LENGTH, columns)

    def work(start: int, stop: int) -> None:
        total = matmul(lhs[:, length - rest :], rhs[length - rest :, start:stop])
        for first in range(0, count, _WIDE_TILES):
            place = slice(first, first + _WIDE_TILES)
            total += np.add.reduce(matmul(pieces[place], tiles[place, :, start:stop]), axis=0)
        result[:, start:stop] = total

    parts = 2 * -(-columns // (2 * _WIDE_COLUMNS))
    in_blocks(work, columns, -(-columns // (parts * _SLAB_COLUMNS)) * _SLAB_COLUMNS)
