"""Running a region: several instructions on one block of rows after the other, on all cores.

Within a block, each instruction writes to a scratch buffer that the next ones read while it is still in the processor's
cache; values that are used outside go to rows of whole arrays. `hloexec.plan.regions.block_program` generates the
calls.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.ops.arena import LEAST_BYTES, empty
from hloexec.ops.common import strided
from hloexec.ops.movement.copying import copy_into, lies_in_order
from hloexec.ops.rows import behind_prefix, prefix_length
from hloexec.ops.threads import core_count, in_blocks
from hloexec.plan.kernels import Kernel
from hloexec.plan.optimization_errors import warn_of_failure
from hloexec.plan.regions.block_program import BlockProgram, Part
from hloexec.plan.regions.short_rows import in_columns, laid_in_columns
from hloexec.plan.steps import PartError
from hloexec.values import Array

__all__ = ["Region", "RegionKernel"]

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
_COLUMNS_BYTES = 1 << 21
"""The same for blocks that lie column by column: many of their values are of few columns, so that calls are over soon.
Where this would leave a thread without work, one thread computes blocks of half the size, in as little memory as two
would need: where other processes keep half of a core busy, two threads take 1.2 times as long for calls of 11 µs.
"""
_LITTLE_WORK = 1 << 22
"""Where all parts together make no more bytes, dispatching blocks to other threads takes longer than computing them."""
_ROUNDING = 4
"""How many times as long an instruction takes whose result is rounded to bf16, at least."""

_ALIGNMENT = 64
_SKEW = 5 * _ALIGNMENT
"""Buffers do not lie at equal distances from pages: where the addresses that a loop reads and writes agree in their
lowest 12 bits, processors take a load for one of what was just stored, and `exp` takes up to 1.6 times as long.
"""

_here = threading.local()
"""`arena`: a little scratch of a thread, kept from one region to the next."""


def _kept(size: int) -> Array:
    """Scratch of at least so many bytes; what lay there before is lost."""
    arena: Array | None = getattr(_here, "arena", None)
    if arena is None or arena.nbytes < size:
        arena = _here.arena = np.empty(size, np.uint8)
    return arena


@attrs.frozen
class _Layout:
    """How many rows a block has, and where its buffers begin in the scratch of a thread."""

    block: int
    offsets: Sequence[int]
    bytes: int
    """What scratch takes for each thread."""
    threads: int

    @property
    def scratch_bytes(self) -> int:
        return self.bytes * self.threads


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
        program = BlockProgram(parts, inputs, outputs, shapes, rows, 0 if overwritten is None else 1, repeated)
        self.is_by_columns = program.is_by_columns
        self.operations = program.operations
        self._views = program.views
        self._preamble = program.preamble
        self.bounds = program.bounds
        self._revealed: Region | None = None
        self._count = len(program.places.values)
        self._buffers = program.places.buffers
        self._places = program.places.in_buffers
        self.output_places = program.output_places
        self.output_sizes = [(rows, *behind_prefix(shape.dimensions, rows)) for shape in self._shapes]
        self.overwrites = overwritten if overwritten is not None and program.may_overwrite(overwritten) else None
        """The input whose rows the first output may take."""
        live = program.places.packed(self._buffers)[1] + sum(
            program.places.values[place].row_bytes
            for place in (*self.output_places, *(p for p, slot in enumerate(inputs) if slot not in repeated))
            if program.places.values[place] is not None and not (place < len(inputs) and self._is_whole[place])
        )
        usual = program.usual_row_bytes()
        weight = _ROUNDING if program.is_rounded else 1
        work = weight * sum(shapes[part.step.result].byte_size for part in parts)
        is_shared = not self.is_by_columns or rows * usual >= 2 * _COLUMNS_BYTES
        self._threads = core_count() if is_shared else 1
        if self.is_by_columns:
            value_bytes = small_bytes = _COLUMNS_BYTES if is_shared else _COLUMNS_BYTES // 2
        else:
            value_bytes, small_bytes = _VALUE_BYTES, _SMALL_BLOCK_BYTES // weight
        least = small_bytes // usual if work > _LITTLE_WORK else rows
        most = min(_BLOCK_BYTES // max(live, 1), max(-(-rows // _BLOCKS), least), rows)
        self._usual = self._laid_out(program, min(most, value_bytes // usual))
        self.block = self._usual.block
        self.scratch_bytes = self._usual.scratch_bytes
        self._placed: dict[int, tuple[Array, _Layout, int, list[tuple[int, Array]]]] = {}
        """By thread: what scratch was in its places for how many rows, and the arrays there."""
        self._roomy = None if self.is_by_columns else self._with_room(program, min(most, _ROOMY_VALUE_BYTES // usual))
        if self._roomy is not None:
            # Where an input is overwritten instead, the output takes no memory of its own, which is more.
            self.scratch_bytes = self._roomy[-1].scratch_bytes

    def _laid_out(self, program: BlockProgram, most: int) -> _Layout:
        """Blocks of about so many rows."""
        block = max(1, most)
        blocks = -(-self.rows // block)
        # Of an odd number of blocks, one is left over when two cores have computed the others.
        block = block if blocks == 1 else -(-self.rows // (blocks + blocks % 2))
        sizes = [-(-size * block // _ALIGNMENT) * _ALIGNMENT + _SKEW for size in self._buffers]
        starts, end = program.places.packed(sizes)
        # A whole number of cache lines, so that two threads share none.
        taken = _SKEW + -(-end // _ALIGNMENT) * _ALIGNMENT
        threads = min(self._threads, -(-self.rows // block))
        return _Layout(block, [_SKEW + start for start in starts], taken, threads)

    def _with_room(self, program: BlockProgram, most: int) -> tuple[int, int, _Layout, _Layout] | None:
        """Which output is so large that its last rows can be scratch until all others are computed, how many rows these
        are, and the blocks before and after that; None where there is none, or so little scratch that threads keep it.
        """
        sizes = [shape.byte_size for shape in self._shapes]
        first = self._laid_out(program, most)
        needed = first.scratch_bytes + _ALIGNMENT
        if self.scratch_bytes < LEAST_BYTES or max(sizes) < _ROOM * needed:
            return None
        rows = -(-needed * self.rows // max(sizes))
        return sizes.index(max(sizes)), rows, first, self._laid_out(program, first.block // _LAST_PARTS)

    def __call__(self, *operands: Array, out: Array | None = None) -> Any:
        """The outputs; the first may take the place of the operand that is overwritten."""
        try:
            return self._run(operands, out)
        except Exception as error:
            if out is not None or isinstance(error.__cause__ or error, MemoryError):
                raise
            values = self.one_by_one(operands)
            warn_of_failure(f"the region of %{self.parts[-1].step.instruction.name}", error)
            found = tuple(values[slot] for slot in self.outputs)
            return found if len(found) != 1 else found[0]

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
        if self._roomy is None or (has_target and not self._roomy[0]):
            self._in_blocks(operands, results, self._usual, self.rows)
        else:
            number, last_rows, *layouts = self._roomy
            rows = self.rows - last_rows
            largest: Any = results[number]
            unused = largest.reshape(self.rows, -1)[rows:].reshape(-1).view(np.uint8)
            self._in_blocks(operands, results, layouts[0], rows, unused)
            self._in_blocks(operands, results, layouts[1], last_rows, first=rows)
        return results[0] if len(results) == 1 else tuple(results)

    def _in_blocks(
        self,
        operands: Sequence[Array],
        results: Sequence[Any],
        layout: _Layout,
        rows: int,
        unused: Array | None = None,
        first: int = 0,
    ) -> None:
        """Compute so many rows."""
        run = _Run(self, operands, results, layout, unused, first)
        in_blocks(run.block, rows, layout.block, threads=layout.threads)

    def template(self, operands: Sequence[Array]) -> list[Any]:
        """The contents of places that are the same for all blocks, except scratch."""
        values: list[Any] = [None] * self._count
        for place, (operand, is_whole) in enumerate(zip(operands, self._is_whole, strict=True)):
            if is_whole:
                values[place] = operand
        for function, source, place in self._preamble:
            values[place] = function(values[source])
        return values

    def inputs_by_rows(self, operands: Sequence[Array]) -> list[tuple[int, _Rows]]:
        """The places of the operands that are taken by rows, each with its rows."""
        return [
            (place, _Rows(operand, self._lengths[place], self.rows, is_transposed=not _lies_in_order(operand)))
            for place, operand in enumerate(operands)
            if not self._is_whole[place]
        ]

    def place_buffers(self, values: list[Any], count: int, layout: _Layout, scratch: Array | None) -> None:
        """Put scratch for a block of so many rows into its places, and the views of it."""
        if scratch is None:
            # A loop runs a small region again and again, in the same memory.
            arena, thread = _kept(layout.bytes), threading.get_ident()
            known = self._placed.get(thread)
            if known is None or known[0] is not arena or known[1] is not layout or known[2] != count:
                self._place_buffers_in(arena, values, count, layout)
                places = [*(place for place, _, _ in self._places), *(view.target for view in self._views)]
                self._placed[thread] = arena, layout, count, [(place, values[place]) for place in places]
            else:
                for place, part in known[3]:
                    values[place] = part
        else:
            self._place_buffers_in(scratch, values, count, layout)

    def _place_buffers_in(self, arena: Array, values: list[Any], count: int, layout: _Layout) -> None:
        for place, buffer, value in self._places:
            start = layout.offsets[buffer]
            part = arena[start : start + count * value.row_bytes]
            if self.is_by_columns:
                values[place] = laid_in_columns(part, count, value.row, value.dtype)
            else:
                values[place] = part.view(value.dtype).reshape((count, *value.row))
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
                given = (values[slot] for slot in step.operands)
                if part.form.is_elementwise:
                    sizes = self._slot_shapes[step.result].dimensions
                    given = (np.broadcast_to(value, sizes) if value.ndim == 0 else value for value in given)
                values[step.result] = step.function(*given)
            except Exception as error:
                raise PartError(step) from error
        return values


def _scratch(layout: _Layout, unused: Array | None) -> list[Array]:
    """Scratch of one run for each thread: bytes that are unused, or where the other arrays are; none where it is so
    little that threads keep it for the next region."""
    if layout.scratch_bytes < LEAST_BYTES:
        return []
    if unused is None:
        return list(empty((layout.threads, layout.bytes), np.uint8))
    start = -unused.ctypes.data % _ALIGNMENT
    return list(unused[start : start + layout.scratch_bytes].reshape(layout.threads, layout.bytes))


class _Run:
    """One run of a region, or of its rows from the `first` on."""

    def __init__(
        self,
        region: Region,
        operands: Sequence[Array],
        results: Sequence[Any],
        layout: _Layout,
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
        self._unused_scratch = _scratch(layout, unused)
        self._scratch: dict[int, Array] = {}
        """That of each thread, where it is of this run."""

    def block(self, start: int, stop: int) -> None:
        """Compute some rows."""
        start, stop = start + self._first, stop + self._first
        thread = threading.get_ident()
        key = thread, stop - start
        values = self._values.get(key)
        if values is None:
            if self._unused_scratch and thread not in self._scratch:
                self._scratch[thread] = self._unused_scratch.pop()
            values = self._values[key] = self._template.copy()
            self._region.place_buffers(values, stop - start, self._layout, self._scratch.get(thread))
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


@attrs.frozen(eq=False)
class RegionKernel(Kernel):
    """A region as the kernel of a step."""

    region: Region = attrs.field(default=None)

    @classmethod
    def of(cls, region: Region) -> RegionKernel:
        return cls(region, region.overwrites, region)


def _lies_in_order(array: Array) -> bool:
    return array.flags.c_contiguous or lies_in_order(array)


def _in_order(block: Array) -> Array:
    """A copy in row-major order."""
    result = np.empty(block.shape, block.dtype)
    copy_into(result, block)
    return result


class _Rows:
    """The rows of an array whose first dimensions are its prefix; copies of them where the array `is_transposed`."""

    def __init__(self, array: Array, length: int, rows: int, *, is_transposed: bool) -> None:
        self._length = length
        self._is_transposed = is_transposed
        if length > 1:
            merged = _merged(array, length, rows)
            if merged is not None:
                array, self._length = merged, 1
        self._array = array

    def part(self, start: int, stop: int) -> Array:
        part = self._array[start:stop] if self._length == 1 else _gathered(self._array, self._length, start, stop)
        return _in_order(part) if self._is_transposed else part


def _merged(array: Array, length: int, rows: int) -> Array | None:
    """The array with its first dimensions merged into one, where that is a view."""
    sizes = (rows, *array.shape[length:])
    if array.flags.c_contiguous:
        return array.reshape(sizes)
    expected = None
    stride = 0
    for size, step in zip(reversed(array.shape[:length]), reversed(array.strides[:length]), strict=True):
        if size == 1:
            continue
        if expected is None:
            stride = step
        elif step != expected:
            return None
        expected = step * size
    return strided(array, sizes, (stride, *array.strides[length:]))


def _gathered(array: Array, length: int, start: int, stop: int) -> Array:
    """Some rows of an array whose first dimensions are its prefix; a copy where they cannot be merged."""
    while length > 1:
        inner = prod(array.shape[1:length])
        first, last = start // inner, (stop - 1) // inner
        if first < last:
            break
        array, length, start, stop = array[first], length - 1, start - first * inner, stop - first * inner
    if length == 1:
        return array[start:stop]
    if inner > stop - start:
        # Two indices of the first dimension share the rows.
        middle = last * inner
        return np.concatenate([_gathered(array, length, start, middle), _gathered(array, length, middle, stop)])
    whole = array[first : last + 1].reshape(((last + 1 - first) * inner, *array.shape[length:]))
    return whole[start - first * inner : stop - first * inner]
