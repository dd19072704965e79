"""How a region is divided into blocks of rows, on how many cores, and where the scratch of a block lies."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.core.structs import frozen
from hloexec.engine.plan.regions.block_program import BlockProgram
from hloexec.ops.resources import ALIGNMENT, LEAST_BYTES, aligned, core_count

_BLOCK_BYTES = 1 << 24
"""What a block's rows take in all arrays together, to stay in the cache."""
_VALUE_BYTES = 1 << 19
"""What a block takes in most of its arrays. Less would stay in a core's own cache, but each call would be over so soon
that the threads wait for Python's lock more than they compute: on two cores, a chain of 17 calls on 64 MB takes 83 ms
in pieces of 128 kB, 55 ms in pieces of 256 kB, 48 ms in pieces of 512 kB and 54 ms in pieces of 1 MB.
"""
_ROOMY_VALUE_BYTES = 1 << 20
"""The same where scratch takes no memory of its own: on two cores, such a chain takes 22.8 ms in pieces of 1 MB and
24.7 ms in pieces of 512 kB, a layer norm with a softmax 28 ms and 43 ms: its reductions need the lock more often.
"""
_ROOM = 12
"""How many times as large as scratch an array must be to have it in its last rows."""
_LAST_PARTS = 8
"""Blocks of these rows, which need scratch elsewhere, are so many times smaller."""
_BLOCKS = 8
"""Minimum number of blocks, if there is enough work, for an even distribution."""
_SMALL_BLOCK_BYTES = 1 << 19
"""What such a block takes in one array."""
_HALF_BYTES = 1 << 17
"""What half of all rows take in one array where one block would leave a core without work, at least."""
_COLUMNS_BYTES = 1 << 21
"""The same for blocks that lie column by column: many of their values are of few columns, so that calls are over soon.
Where this would leave a thread without work, one thread computes blocks of half the size, in as little memory as two
would need: where other processes keep half of a core busy, two threads take 1.2 times as long for calls of 11 µs.
"""
_LITTLE_WORK = 1 << 22
"""Where all parts together make no more bytes, dispatching blocks to other threads takes longer than computing them."""
_ROUNDING = 4
"""How many times as long an instruction takes whose result is rounded to bf16, at least."""

_SKEW = 5 * ALIGNMENT
"""Buffers do not lie at equal distances from pages: where the addresses that a loop reads and writes agree in their
lowest 12 bits, processors take a load for one of what was just stored, and `exp` takes up to 1.6 times as long.
"""


@frozen(eq=False)
class Layout:
    """How many rows a block has, and where its buffers begin in the scratch of a thread."""

    block: int
    offsets: Sequence[int]
    bytes: int
    """What scratch takes for each thread."""
    threads: int

    @property
    def scratch_bytes(self) -> int:
        return self.bytes * self.threads


@frozen(eq=False)
class Room:
    """An output so large that its last rows can be scratch until all others are computed."""

    output: int
    """Which one."""
    rows: int
    """How many rows are the last."""
    before: Layout
    """Of all others."""
    last: Layout


def divided(
    program: BlockProgram, rows: int, row_bytes: int, work: int, output_bytes: Sequence[int]
) -> tuple[Layout, Room | None]:
    """The blocks of a region of so many rows, each of which takes `row_bytes` in all arrays together, if all parts
    together make `work` bytes, and the outputs are of these: the usual ones, and others that take less memory where an
    output has room for scratch. Where an input is overwritten instead of that output, the blocks are the usual ones."""
    usual = program.usual_row_bytes()
    weight = _ROUNDING if program.is_rounded else 1
    is_shared = not program.is_by_columns or rows * usual >= 2 * _COLUMNS_BYTES
    threads = core_count() if is_shared else 1
    if program.is_by_columns:
        value_bytes = small_bytes = _COLUMNS_BYTES if is_shared else _COLUMNS_BYTES // 2
    else:
        value_bytes, small_bytes = _VALUE_BYTES, _SMALL_BLOCK_BYTES // weight
    least = small_bytes // usual if weight * work > _LITTLE_WORK else rows
    if is_shared and weight * work > _LITTLE_WORK and rows * usual >= 2 * _HALF_BYTES // weight:
        least = min(least, -(-rows // 2))
    most = min(_BLOCK_BYTES // max(row_bytes, 1), max(-(-rows // _BLOCKS), least), rows)
    found = _laid_out(program, rows, min(most, value_bytes // usual), threads)
    if program.is_by_columns or found.scratch_bytes < LEAST_BYTES:
        # Scratch by columns has no rows; and so little of it threads keep.
        return found, None
    return found, _room(program, rows, min(most, _ROOMY_VALUE_BYTES // usual), threads, output_bytes)


def _laid_out(program: BlockProgram, rows: int, most: int, threads: int) -> Layout:
    """Blocks of about so many rows."""
    block = max(1, most)
    blocks = -(-rows // block)
    # Of an odd number of blocks, one is left over when two cores have computed the others.
    block = block if blocks == 1 else -(-rows // (blocks + blocks % 2))
    sizes = [aligned(size * block) + _SKEW for size in program.places.buffers]
    starts, end = program.places.packed(sizes)
    # A whole number of cache lines, so that two threads share none.
    taken = _SKEW + aligned(end)
    return Layout(block, [_SKEW + start for start in starts], taken, min(threads, -(-rows // block)))


def _room(program: BlockProgram, rows: int, most: int, threads: int, output_bytes: Sequence[int]) -> Room | None:
    """The room for scratch in the largest output, if it is large enough."""
    before = _laid_out(program, rows, most, threads)
    needed, largest = before.scratch_bytes + ALIGNMENT, max(output_bytes)
    if largest < _ROOM * needed:
        return None
    last = _laid_out(program, rows, before.block // _LAST_PARTS, threads)
    return Room(output_bytes.index(largest), -(-needed * rows // largest), before, last)
