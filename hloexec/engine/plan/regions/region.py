"""Running a region: several instructions on one block of rows after the other, on all cores.

Within a block, each instruction writes to a scratch buffer that the next ones read while it is still in the processor's
cache; values that are used outside go to rows of whole arrays. `plan.regions.block_program` generates the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import Kernel
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.regions.block_program import BlockProgram, Part, laid_out
from hloexec.engine.plan.regions.rows import Rows, in_columns
from hloexec.engine.plan.steps import PartError
from hloexec.ops.resources import ALIGNMENT, LEAST_BYTES, aligned, core_count, empty, in_blocks
from hloexec.ops.traits import behind_prefix, prefix_length

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
    layout = _laid_out(program, rows, min(most, value_bytes // usual), threads)
    if program.is_by_columns or layout.scratch_bytes < LEAST_BYTES:
        # Scratch by columns has no rows; and so little of it threads keep.
        return layout, None
    return layout, _room(program, rows, min(most, _ROOMY_VALUE_BYTES // usual), threads, output_bytes)


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


_here = threading.local()
"""`arena`: a little scratch of a thread, kept from one region to the next."""


def _kept(size: int) -> Array:
    """Scratch of at least so many bytes; what lay there before is lost."""
    arena: Array | None = getattr(_here, "arena", None)
    if arena is None or arena.nbytes < size:
        arena = _here.arena = np.empty(size, np.uint8)
    return arena


class Region:
    """The function of a region's step: from the arrays that it takes from outside to those that are needed outside."""

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[int],
        outputs: Sequence[int],
        shapes: Sequence[Any],
        rows: int,
        overwritten: int | None = None,
        repeated: frozenset[int] = frozenset(),
    ) -> None:
        """`repeated` are inputs that broadcasts have made, which take little of the cache.

        `overwritten` is the place of an input of the shape of the first output, whose rows it may take.
        """
        self.parts = tuple(parts)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.rows = rows
        self._slot_shapes = shapes
        self._shapes = [shapes[slot] for slot in outputs]
        self._is_whole = [shapes[slot].rank == 0 for slot in inputs]
        self._lengths = [
            0 if is_whole else prefix_length(shapes[slot].dimensions, rows)
            for slot, is_whole in zip(inputs, self._is_whole, strict=True)
        ]
        program = BlockProgram(parts, inputs, outputs, shapes, rows, repeated)
        self.is_by_columns = program.is_by_columns
        self.operations = program.operations
        self._views = program.views
        self._preamble = program.preamble
        self.bounds = program.bounds
        self._revealed: Region | None = None
        self._count = len(program.places.values)
        self._places = program.places.in_buffers
        self.output_places = program.output_places
        self.output_sizes = [(rows, *behind_prefix(shape.dimensions, rows)) for shape in self._shapes]
        self.overwrites = overwritten if overwritten is not None and program.may_overwrite(overwritten) else None
        """The input whose rows the first output may take."""
        live = program.places.packed(program.places.buffers)[1] + sum(
            program.places.values[place].row_bytes
            for place in (*self.output_places, *(p for p, slot in enumerate(inputs) if slot not in repeated))
            if program.places.values[place] is not None and not (place < len(inputs) and self._is_whole[place])
        )
        work = sum(shapes[part.step.result].byte_size for part in parts)
        self._usual, self._room = divided(program, rows, live, work, [shape.byte_size for shape in self._shapes])
        self.block = self._usual.block
        self.scratch_bytes = (self._usual if self._room is None else self._room.last).scratch_bytes
        """What scratch takes beside the outputs."""

    def __call__(self, *operands: Array, out: Array | None = None) -> Any:
        """The outputs; the first may take the place of the operand that is overwritten."""
        try:
            return self._run(operands, out)
        except Exception as error:
            if out is not None or isinstance(error.__cause__ or error, MemoryError):
                raise
            values = self.one_by_one(operands)
            warn_of_failure(f"the region of %{self.parts[-1].step.instruction.name}", error)
            outputs = tuple(values[slot] for slot in self.outputs)
            return outputs if len(outputs) != 1 else outputs[0]

    def intermediate_values(self, *operands: Array) -> dict[int, Array]:
        """The values of all instructions, as the region computes them, by their slots."""
        if self._revealed is None:
            slots = [part.step.result for part in self.parts]
            self._revealed = Region(self.parts, self.inputs, slots, self._slot_shapes, self.rows)
        values = self._revealed(*operands)
        outputs = self._revealed.outputs
        return dict(zip(outputs, values if len(outputs) > 1 else (values,), strict=True))

    def _run(self, operands: Sequence[Array], target: Array | None) -> Any:
        has_target = target is not None and target.flags.c_contiguous
        results = [
            target if has_target and not number else empty(shape.dimensions, shape.element_type.storage)
            for number, shape in enumerate(self._shapes)
        ]
        room = self._room
        if room is None or (has_target and not room.output):
            _Run(self, operands, results, self._usual, self.rows).run()
        else:
            largest: Any = results[room.output]
            first = self.rows - room.rows
            unused = largest.reshape(self.rows, -1)[first:].reshape(-1).view(np.uint8)
            _Run(self, operands, results, room.before, first, unused).run()
            _Run(self, operands, results, room.last, room.rows, first=first).run()
        return results[0] if len(results) == 1 else tuple(results)

    def template(self, operands: Sequence[Array]) -> list[Any]:
        """The contents of places that are the same for all blocks, except scratch."""
        values: list[Any] = [None] * self._count
        for place, (operand, is_whole) in enumerate(zip(operands, self._is_whole, strict=True)):
            if is_whole:
                values[place] = operand
        for function, source, place in self._preamble:
            values[place] = function(values[source])
        return values

    def inputs_by_rows(self, operands: Sequence[Array]) -> list[tuple[int, Rows]]:
        """The places of the operands that are taken by rows, each with its rows."""
        return [
            (place, Rows(operand, self._lengths[place], self.rows))
            for place, operand in enumerate(operands)
            if not self._is_whole[place]
        ]

    def place_buffers(self, values: list[Any], count: int, layout: Layout, scratch: Array | None) -> None:
        """Put scratch for a block of so many rows into its places, and the views of it."""
        arena = _kept(layout.bytes) if scratch is None else scratch
        for place, buffer, value in self._places:
            start = layout.offsets[buffer]
            part = arena[start : start + count * value.row_bytes]
            values[place] = laid_out(part, count, value, self.is_by_columns)
        for operation in self._views:
            values[operation.target] = operation.function(*operation.fetch(values))

    def one_by_one(self, operands: Sequence[Array]) -> dict[int, Array]:
        """The values of all instructions, each run by itself on whole arrays, by their slots."""
        values: dict[int, Any] = dict(zip(self.inputs, operands, strict=True))
        for part in self.parts:
            step = part.step
            assert step.function is not None
            try:
                # Where all operands of an instruction have its shape, a scalar may replace its broadcast.
                arguments = (values[slot] for slot in step.operands)
                if part.form.is_elementwise:
                    sizes = self._slot_shapes[step.result].dimensions
                    arguments = (np.broadcast_to(value, sizes) if value.ndim == 0 else value for value in arguments)
                values[step.result] = step.function(*arguments)
            except Exception as error:
                raise PartError(step) from error
        return values


def _scratch(layout: Layout, unused: Array | None) -> list[Array]:
    """Scratch of one run for each thread: bytes that are unused, or where the other arrays are; none where it is so
    little that threads keep it for the next region."""
    if layout.scratch_bytes < LEAST_BYTES:
        return []
    if unused is None:
        return list(empty((layout.threads, layout.bytes), np.uint8))
    start = -unused.ctypes.data % ALIGNMENT
    return list(unused[start : start + layout.scratch_bytes].reshape(layout.threads, layout.bytes))


class _Run:
    """One run of a region, or of its rows from the `first` on."""

    def __init__(
        self,
        region: Region,
        operands: Sequence[Array],
        results: Sequence[Any],
        layout: Layout,
        rows: int,
        unused: Array | None = None,
        first: int = 0,
    ) -> None:
        self._region = region
        self._layout = layout
        self._first = first
        self._template = region.template(operands)
        self._inputs = region.inputs_by_rows(operands)
        outputs = [result.reshape(sizes) for result, sizes in zip(results, region.output_sizes, strict=True)]
        self._outputs = list(zip(region.output_places, outputs, strict=True))
        self._values: dict[tuple[int, int], list[Any]] = {}
        """The places of each thread, for each size of blocks."""
        self._rows = rows
        self._unused_scratch = _scratch(layout, unused)
        self._scratch: dict[int, Array] = {}
        """That of each thread, where it is of this run."""

    def run(self) -> None:
        """Compute all of its rows."""
        in_blocks(self._block, self._rows, self._layout.block, threads=self._layout.threads)

    def _block(self, start: int, stop: int) -> None:
        start, stop = start + self._first, stop + self._first
        thread = threading.get_ident()
        key = thread, stop - start
        if key not in self._values:
            if self._unused_scratch and thread not in self._scratch:
                self._scratch[thread] = self._unused_scratch.pop()
            places = self._values[key] = self._template.copy()
            self._region.place_buffers(places, stop - start, self._layout, self._scratch.get(thread))
        values = self._values[key]
        if self._region.bounds is not None:
            values[self._region.bounds] = start, stop
        for place, rows in self._inputs:
            part = rows.part(start, stop)
            values[place] = in_columns(part) if self._region.is_by_columns else part
        for place, output in self._outputs:
            values[place] = output[start:stop]
        operation = self._region.operations[0]
        try:
            for operation in self._region.operations:
                if operation.has_out:
                    operation.function(*operation.fetch(values))
                else:
                    values[operation.target] = operation.function(*operation.fetch(values))
                for place in operation.dead:
                    values[place] = None
        except Exception as error:
            raise PartError(operation.step) from error


@frozen(eq=False)
class RegionKernel(Kernel):
    """A region as the kernel of a step."""

    region: Region = attrs.field(default=None)

    @classmethod
    def of(cls, region: Region) -> RegionKernel:
        return cls(region, region.overwrites, region)
