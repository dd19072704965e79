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
_BLOCKS = 8
"""Minimum number of blocks, if there is enough work, for an even distribution."""
_SMALL_BLOCK_BYTES = 1 << 19
"""What such a block takes in one array."""
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
        self.overwrites = overwritten if overwritten is not None and program.may_overwrite(overwritten) else None
        """The input whose rows the first output may take."""
        live = program.places.packed(self._buffers)[1] + sum(
            program.places.values[place].row_bytes
            for place in (*self.output_places, *(p for p, slot in enumerate(inputs) if slot not in repeated))
            if program.places.values[place] is not None and not (place < len(inputs) and self._is_whole[place])
        )
        usual = program.usual_row_bytes()
        weight = _ROUNDING if program.is_rounded else 1
        block = min(_BLOCK_BYTES // max(live, 1), _VALUE_BYTES // usual)
        even = max(-(-rows // _BLOCKS), _SMALL_BLOCK_BYTES // weight // usual)
        work = weight * sum(shapes[part.step.result].byte_size for part in parts)
        block = max(1, min(block, even if work > _LITTLE_WORK else rows, rows))
        blocks = -(-rows // block)
        # Of an odd number of blocks, one is left over when two cores have computed the others.
        self.block = block if blocks == 1 else -(-rows // (blocks + blocks % 2))
        sizes = [-(-size * self.block // _ALIGNMENT) * _ALIGNMENT + _SKEW for size in self._buffers]
        starts, end = program.places.packed(sizes)
        self._offsets = [_SKEW + start for start in starts]
        # A whole number of cache lines, so that two threads share none.
        self._arena_bytes = _SKEW + -(-end // _ALIGNMENT) * _ALIGNMENT
        self._threads = min(core_count(), -(-rows // self.block))
        self.scratch_bytes = self._arena_bytes * self._threads

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
        in_blocks(_Run(self, operands, results).block, self.rows, self.block)
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

    def inputs_by_rows(self, operands: Sequence[Array]) -> list[tuple[int, _Rows]]:
        """The places of the operands that are taken by rows, each with its rows."""
        return [
            (place, _Rows(operand, self._lengths[place], self.rows, is_transposed=not lies_in_order(operand)))
            for place, operand in enumerate(operands)
            if not self._is_whole[place]
        ]

    def scratch(self) -> list[Array]:
        """Scratch of one run for each thread, where the other arrays are; none where it is so little that threads keep
        it for the next region."""
        if self.scratch_bytes < LEAST_BYTES:
            return []
        return list(empty((self._threads, self._arena_bytes), np.uint8))

    def place_buffers(self, values: list[Any], count: int, scratch: Array | None) -> None:
        """Put scratch for a block of so many rows into its places, and the views of it."""
        arena = _kept(self._arena_bytes) if scratch is None else scratch
        for place, buffer, value in self._places:
            start = self._offsets[buffer]
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


class _Run:
    """One run of a region."""

    def __init__(self, region: Region, operands: Sequence[Array], results: Sequence[Any]) -> None:
        self._region = region
        self._template = region.template(operands)
        self._inputs = region.inputs_by_rows(operands)
        rows = region.rows
        outputs = [result.reshape((rows, *behind_prefix(result.shape, rows))) for result in results]
        self._outputs = list(zip(region.output_places, outputs, strict=True))
        self._values: dict[tuple[int, int], list[Any]] = {}
        """The places of each thread, for each size of blocks."""
        self._unused_scratch = region.scratch()
        self._scratch: dict[int, Array] = {}
        """That of each thread, where it is of this run."""

    def block(self, start: int, stop: int) -> None:
        """Compute some rows."""
        thread = threading.get_ident()
        key = thread, stop - start
        values = self._values.get(key)
        if values is None:
            if self._unused_scratch and thread not in self._scratch:
                self._scratch[thread] = self._unused_scratch.pop()
            values = self._values[key] = self._template.copy()
            self._region.place_buffers(values, stop - start, self._scratch.get(thread))
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
    sizes = (rows, *array.shape[length:])
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
