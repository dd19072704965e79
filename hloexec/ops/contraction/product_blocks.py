"""Dividing matrix products into blocks that cores compute in parallel.

The bits of a product depend on the blocks that BLAS is given, because its kernels round rows and columns at the edge of
a block differently. Blocks are therefore determined by shapes alone, and any other way of computing the same product
(adding it to a matrix, for example) uses the same blocks. The sum itself is never divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import prod

from hloexec.core.structs import frozen
from hloexec.ops.threads import in_blocks

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
