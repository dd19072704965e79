"""How products of matrices are cut into blocks that cores compute side by side.

OpenBLAS's own threads wait for one another at the end of each product, and go on waiting for the next for a while,
which takes a core from whatever else would run. Blocks that prepare, multiply and round on one thread each need
neither. How large they are follows from shapes alone, so that results do not depend on how many cores there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from hloexec.ops.blas import one_blas_thread
from hloexec.ops.threads import in_blocks

__all__ = ["batch_blocks", "even_step", "on_all_cores"]

_BATCH_BYTES = 1 << 20
"""What the matrices of one block of a batch take: handing less to another thread takes longer than multiplying it."""
_LEAST_PRODUCTS = 1 << 23
"""So many multiplications are worth handing to another thread."""
_BLOCK_SIZE = 256
"""So many rows or columns BLAS multiplies about as fast, each, as it does many more."""
_LEAST_SIZE = 64
_ALIGNMENT = 16


def on_all_cores(function: Callable[[int, int], object], count: int, block: int) -> None:
    """`in_blocks`, with products of matrices that stay on their threads; a single block may have all those of BLAS."""
    if count <= block:
        function(0, count)
        return
    with one_blas_thread():
        in_blocks(function, count, block)


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
