"""Matrix products that BLAS computes directly, in the forms that are fastest for OpenBLAS.

OpenBLAS copies both operands of a product into its own order, block by block, before it multiplies. If one of them has
few rows, copying the other takes longer than everything else. With its AVX-512 kernels, OpenBLAS skips the copy for
small products.

The bits of a product depend on the blocks that BLAS is given, because its kernels round rows and columns at the edge of
a block differently. Blocks are therefore determined by shapes alone, and any other way of computing the same product
(adding it to a matrix, for example) uses the same blocks. The sum itself is never divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from hloexec.core.process import openblas_kernels
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.resources import empty, for_each, in_blocks, matmul

_BATCH_BYTES = 1 << 20
"""What the matrices of one block of a batch take: handing less to another thread takes longer than multiplying it."""
_LEAST_PRODUCTS = 1 << 22
"""Number of multiplications worth another thread."""
LEAST_SHARED = 2 * _LEAST_PRODUCTS
"""Products of fewer multiplications are one block."""
_BLOCK_SIZE = 256
"""Number of rows or columns from which BLAS is about as fast, per row, as for many more."""
_LEAST_SIZE = 64
_ALIGNMENT = 16
_BLOCK_PRODUCTS, _MOST_WANTED = 1 << 25, 16
"""Number of multiplications of a block where the product is large enough for many, and how many are enough."""
_BLOCK_ROWS, _BLOCK_COLUMNS, _FEW_ROWS_COLUMNS = 128, 256, 512
"""Copying fewer rows or columns for each block takes too long; more columns where there are too few rows to divide."""
_BLOCK_ELEMENTS, _FEW_BLOCKS = 1 << 17, 4
"""Larger blocks are faster by less than more blocks are on more cores; a few blocks may be smaller."""
_MOST_LINES = 4096
"""Number of rows or columns of a block from which more do not help."""
FEW_TERMS = 32
"""Products of so few terms take less time than their results take to go through memory."""
_FEW_TERMS_COLUMNS, _FEW_TERMS_PRODUCTS = 256, 1_000_000
"""So their blocks are as small as OpenBLAS's AVX-512 kernels multiply without copying the operands before."""
_LEAST_FEW_TERMS = 1 << 19
"""Of fewer multiplications even several products that wait for one another are one block."""
_FEW_TERMS_ELEMENTS = 1 << 18


@frozen
class Blocks:
    """The blocks of a product `[rows, columns]`."""

    rows: int
    terms: int
    columns: int
    row_step: int
    column_step: int

    @cached_property
    def is_whole(self) -> bool:
        """Whether there is one block only."""
        return self.row_step >= self.rows and self.column_step >= self.columns

    def on_all_cores(self, function: Callable[[slice, slice], object], count: int = 1) -> None:
        """Call `function(rows, columns)` for each block, on all cores where `count` such products are worth that."""
        across = -(-self.columns // self.column_step)
        down = -(-self.rows // self.row_step)

        def work(start: int, stop: int) -> None:
            for number in range(start, stop):
                row, column = number // across * self.row_step, number % across * self.column_step
                function(slice(row, row + self.row_step), slice(column, column + self.column_step))

        in_blocks(work, down * across, -(-_LEAST_PRODUCTS // (self.row_step * self.terms * self.column_step * count)))


@lru_cache(maxsize=4096)
def blocks_of(rows: int, terms: int, columns: int) -> Blocks:
    """The blocks of a product `[rows, terms]` · `[terms, columns]` of a type that BLAS multiplies."""
    row_step, column_step = max(rows, 1), max(columns, 1)
    has_few_terms = terms <= FEW_TERMS and min(rows, columns) >= 2 * _LEAST_SIZE
    if has_few_terms and rows * columns * terms > _LEAST_FEW_TERMS:
        elements = min(_FEW_TERMS_PRODUCTS // terms, _FEW_TERMS_ELEMENTS)
        column_step = min(columns, _FEW_TERMS_COLUMNS)
        row_step = _in_pairs(rows, elements // column_step)
    elif rows * columns * terms >= LEAST_SHARED:
        row_step, column_step = _large_steps(rows, columns, rows * columns * terms)
    return Blocks(rows, terms, columns, row_step, column_step)


def _large_steps(rows: int, columns: int, products: int) -> tuple[int, int]:
    """The rows and columns of each block of a large product.

    BLAS copies the rows and the columns of each block into an order of its own. Of all divisions into as many blocks,
    the one whose blocks are closest to squares copies least.
    """
    wanted = min(max(2, products // _BLOCK_PRODUCTS), _MOST_WANTED)
    wanted += wanted % 2
    if rows < 2 * _LEAST_SIZE:
        across = max(columns // _FEW_ROWS_COLUMNS, min(2, columns // _LEAST_SIZE))
        return max(1, rows), _in_even_parts(columns, min(across, wanted))
    wanted = min(wanted, max(_FEW_BLOCKS, rows * columns // _BLOCK_ELEMENTS))
    most_down, most_across = max(2, rows // _BLOCK_ROWS), max(1, columns // _BLOCK_COLUMNS)

    def order(division: tuple[int, int]) -> tuple[int, float, int]:
        down, across = division
        return -(down * across // 2), down / rows + across / columns, across

    divisions = [(down, min(most_across, wanted // down)) for down in range(1, min(most_down, wanted) + 1)]
    down, across = min(divisions, key=order)
    return _in_even_parts(rows, down), _in_even_parts(columns, across)


def _in_even_parts(size: int, parts: int) -> int:
    """The step that makes about so many parts of `size`, each of at most `_MOST_LINES`."""
    parts = max(1, parts, -(-size // _MOST_LINES))
    return -(-size // (parts * _ALIGNMENT)) * _ALIGNMENT if parts > 1 else max(1, size)


def even_step(size: int, products: int) -> int:
    """How many of `size` rows make a block, where each takes so many multiplications."""
    if size < 2 * _LEAST_SIZE or size * products < LEAST_SHARED:
        return max(1, size)
    return _in_pairs(size, max(min(_BLOCK_SIZE, -(-size // 2)), -(-_LEAST_PRODUCTS // products)))


def _in_pairs(size: int, step: int) -> int:
    """About `step`, so that `size` makes an even number of blocks of similar size: none is left to a core alone."""
    pairs = -(-size // (2 * step))
    return -(-size // (2 * pairs * _ALIGNMENT)) * _ALIGNMENT


def batch_blocks(sizes: Sequence[int], item_bytes: int) -> list[tuple[int | slice, ...]]:
    """The indices of blocks of a batch of these dimensions, whose items take so many bytes."""
    size, *others = sizes
    part_bytes = item_bytes * prod(others)
    if part_bytes > _BATCH_BYTES and others:
        behind = batch_blocks(others, item_bytes)
        return [(index, *block) for index in range(size) for block in behind]
    step = max(1, _BATCH_BYTES // max(1, part_bytes))
    return [(slice(start, start + step),) for start in range(0, size, step)]


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
