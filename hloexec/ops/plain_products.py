"""Matrix products that BLAS computes as they stand, in the ways that are fastest for OpenBLAS.

OpenBLAS copies both operands of a product into an order of its own, block by block, before it multiplies. Where one of
them has few rows, copying the other takes longer than everything else. With its AVX-512 kernels OpenBLAS leaves the
copy out for small products.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hloexec.openblas import openblas_kernels
from hloexec.ops.blas import one_blas_thread
from hloexec.ops.threads import in_blocks
from hloexec.values import Array

__all__ = ["add_product", "plain_matrix_product"]

_FEW_ROWS = 32
_TURNED_ELEMENTS = 1 << 16

_COPYLESS_KERNELS = frozenset({"skylakex", "cooperlake", "sapphirerapids"})
_COPYLESS_PRODUCTS = 1_000_000
"""So many multiplications these kernels do without a copy."""
_COPYLESS_TURNED_ELEMENTS, _COPYLESS_TURNED_LENGTH = 1200, 64
"""Where rhs is transposed, only for results of at most so many elements; sums of fewer terms make too many slabs."""
_SLAB_PRODUCTS = 3 << 19
"""Two threads that copy are as fast with more as one that does not."""
_SLAB_COLUMNS = 16

_OWN_THREADS_PRODUCTS, _BLOCK_PRODUCTS = 1 << 26, 1 << 23
"""Sums of products of up to so many multiplications are spread over our own threads, in blocks of so many."""
_SMALL_PRODUCTS, _ONE_THREAD_PRODUCTS = 1 << 18, 1 << 23
"""Smaller products OpenBLAS leaves to one thread by itself. Up to the larger number it is told to: its other threads
would save little, and wait for more work for a tenth of a second, in which they keep a core from everything else.
"""
_TILE_LENGTH, _TILE_COLUMNS = 256, 128
_TILES = 4
"""Tiles that a thread multiplies at a time, side by side."""
_TILED_ELEMENTS = 1 << 20
"""Smaller matrices stay in the cache."""


def plain_matrix_product(lhs: Array, rhs: Array) -> Array:
    """lhs · rhs of a type that BLAS multiplies.

    The order of the sums depends on shapes, strides and the kernels of BLAS. Where `lhs` has few rows and `rhs` is
    large, it is computed in tiles, or in slabs where that is small enough; where `rhs` is a transposed matrix, as the
    transpose of rhsᵀ · lhsᵀ: OpenBLAS's AVX-512 kernels take up to half the time for that.
    """
    if lhs.ndim == 2 and 2 <= lhs.shape[0] <= _FEW_ROWS and rhs.size >= _TURNED_ELEMENTS:
        if _can_be_tiled(lhs, rhs):
            return _in_tiles(lhs, rhs)
        slabs = _slabs(lhs, rhs)
        if slabs > 1:
            return _in_slabs(lhs, rhs, slabs)
        if _is_transposed(rhs):
            return np.ascontiguousarray(np.matmul(rhs.T, lhs.T).T)
    products = lhs.size * rhs.shape[-1]
    if not _SMALL_PRODUCTS < products <= _ONE_THREAD_PRODUCTS:
        product: Array = np.matmul(lhs, rhs)
        return product
    with one_blas_thread():
        return np.matmul(lhs, rhs)  # type: ignore[no-any-return]


def add_product(result: Array, addend: Array, lhs: Array, rhs: Array, block_bytes: int) -> None:
    """result = addend + lhs · rhs, of matrices of one type that BLAS multiplies; `result` may be `addend`.

    Some rows at a time, so many that they take `block_bytes`: they stay in the cache until they are added. Small
    products are spread over our own threads, as those of BLAS take long to wake, or keep the cores from others.
    """
    (length, columns), terms = result.shape, lhs.shape[1]
    rows = max(1, min(length, block_bytes // max(1, columns * result.itemsize)))

    def add(start: int, stop: int) -> None:
        np.add(np.matmul(lhs[start:stop], rhs), addend[start:stop], out=result[start:stop])

    with np.errstate(all="ignore"):
        if length * columns * terms > _OWN_THREADS_PRODUCTS:
            for start in range(0, length, rows):
                add(start, min(start + rows, length))
        else:
            with one_blas_thread():
                in_blocks(add, length, min(rows, max(1, _BLOCK_PRODUCTS // max(1, columns * terms))))


def _is_transposed(matrix: Array) -> bool:
    """Whether a matrix lies in memory column by column, and its columns are not short."""
    length, columns = matrix.shape
    return 2 * length >= columns and matrix.strides == (matrix.itemsize, length * matrix.itemsize)


def _slabs(lhs: Array, rhs: Array) -> int:
    """The number of slabs, each some columns of rhs, in which BLAS multiplies without a copy; 1 for the whole."""
    is_turned = not rhs.flags.c_contiguous
    if rhs.dtype != np.float32 or (is_turned and not rhs.flags.f_contiguous):
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


def _in_slabs(lhs: Array, rhs: Array, count: int) -> Array:
    """lhs · rhs, some columns of rhs after the other."""
    rows, (length, columns) = lhs.shape[0], rhs.shape
    result = np.empty((rows, columns), rhs.dtype)
    if rhs.flags.c_contiguous:
        slabs = rhs.reshape(length, count, -1).transpose(1, 0, 2)
    else:
        slabs = rhs.T.reshape(count, -1, length).transpose(0, 2, 1)
    np.matmul(lhs, slabs, result.reshape(rows, count, -1).transpose(1, 0, 2))
    return result


def _can_be_tiled(lhs: Array, rhs: Array) -> bool:
    length, columns = rhs.shape
    return (
        rhs.size >= _TILED_ELEMENTS
        and rhs.dtype == np.float32
        and not length % _TILE_LENGTH
        and not columns % _TILE_COLUMNS
        and (rhs.flags.c_contiguous or rhs.flags.f_contiguous)
        and lhs.shape[0] * _TILE_LENGTH * _TILE_COLUMNS <= _COPYLESS_PRODUCTS
        and openblas_kernels() in _COPYLESS_KERNELS
    )


def _in_tiles(lhs: Array, rhs: Array) -> Array:
    """lhs · rhs as sums of products of tiles of rhs, each so small that BLAS does not copy it."""
    rows, (length, columns) = lhs.shape[0], rhs.shape
    down, across = length // _TILE_LENGTH, columns // _TILE_COLUMNS
    pieces = np.ascontiguousarray(lhs.T).reshape(down, 1, _TILE_LENGTH, rows)
    if rhs.flags.c_contiguous:
        tiles = rhs.reshape(down, _TILE_LENGTH, across, _TILE_COLUMNS).transpose(0, 2, 3, 1)
    else:
        tiles = rhs.T.reshape(across, _TILE_COLUMNS, down, _TILE_LENGTH).transpose(2, 0, 1, 3)
    result = np.empty((rows, columns), rhs.dtype)

    def work(start: int, stop: int) -> None:
        products = np.matmul(tiles[:, start:stop], pieces)
        sums = np.add.reduce(products, axis=0).reshape(-1, rows)
        result[:, start * _TILE_COLUMNS : stop * _TILE_COLUMNS] = sums.T

    in_blocks(work, across, _TILES)
    return result
