"""How products of matrices are cut into blocks that cores compute side by side.

OpenBLAS's own threads wait for one another at the end of each product, and go on waiting for the next for a while,
which takes a core from whatever else would run. Blocks that prepare, multiply and round on one thread each need
neither. How large they are follows from shapes alone. Where they are too few for all cores, BLAS has the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from hloexec.ops.blas import one_blas_thread
from hloexec.ops.threads import core_count, in_blocks
from hloexec.values import Array

__all__ = ["batch_blocks", "even_step", "is_worth_sharing", "on_all_cores"]

_BATCH_BYTES = 1 << 20
"""What the matrices of one block of a batch take: handing less to another thread takes longer than multiplying it."""
_LEAST_PRODUCTS = 1 << 22
"""So many multiplications are worth handing to another thread."""
_MOST_PRODUCTS = 1 << 36
"""So many take a second: BLAS's own threads share what they copy, and to wait afterwards costs them little of that."""
_BLOCK_SIZE = 512
"""So many rows or columns BLAS multiplies about as fast, each, as it does many more."""
_LEAST_SIZE = 64
_ALIGNMENT = 16
_FEW_ROWS = 32
"""Products of so few rows read their other operand, and `plain_matrix_product` has ways of its own for them."""


def on_all_cores(function: Callable[[int, int], object], count: int, block: int) -> None:
    """`in_blocks`, with products of matrices that stay on their threads.

    Where there are not more blocks than half the cores, they come one after the other, and BLAS has all of its threads.
    """
    if 2 * -(-count // block) <= core_count():
        for start in range(0, count, block):
            function(start, min(start + block, count))
        return
    with one_blas_thread():
        in_blocks(function, count, block)


def is_worth_sharing(lhs: Array, rhs: Array) -> bool:
    """Whether lhs · rhs, of a type that BLAS multiplies, is worth cutting into blocks."""
    products = lhs.size * rhs.shape[-1]
    return 2 * _LEAST_PRODUCTS <= products <= _MOST_PRODUCTS and (lhs.ndim > 2 or lhs.shape[0] > _FEW_ROWS)


def even_step(size: int, products: int) -> int:
    """How many of `size` rows make a block, where each takes so many multiplications."""
    if size < 2 * _LEAST_SIZE or size * products < 2 * _LEAST_PRODUCTS:
        return max(1, size)
    step = max(min(_BLOCK_SIZE, -(-size // 2)), -(-_LEAST_PRODUCTS // products))
    # An even number of blocks of about one size, so that none is left to a core alone.
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
