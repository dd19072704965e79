"""Running a region: several instructions on one block of rows after the other, on all cores.

Within a block each instruction writes to a scratch buffer that the next ones read while it is still in the processor's
cache; what is needed outside goes to rows of whole arrays. A value of bf16 is kept as f32 beside its rounded form, so
that it is widened once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import element_type
from hloexec.exec.faults import PartError
from hloexec.exec.plan import Step
from hloexec.exec.rowwise import RowForm, behind_prefix, prefix_length, same
from hloexec.ir import ArrayShape
from hloexec.ops.threads import core_count, in_blocks
from hloexec.values import Array

__all__ = ["Part", "Region"]

_BLOCK_BYTES = 5 << 17
"""What a block's rows take in all arrays together, to stay in a core's L2 cache."""
_VALUE_BYTES = 1 << 17
"""What a block takes in one array."""
_BLOCKS = 8
"""So many blocks at least, where there is enough to do, share out the work evenly."""
_SMALL_BLOCK_BYTES = 1 << 16
"""What such a block takes in one array."""
_FEW_BYTES = 1 << 10
"""A row of so few is copied into scratch, where views of it last."""
_LITTLE_WORK = 1 << 22
"""Where all parts together make no more bytes, handing blocks to other threads takes longer than doing them."""

_ALIGNMENT = 64

_F32 = element_type("f32").storage

_here = threading.local()
"""`arena`: the scratch of a thread, kept from one region to the next."""


def _arena(size: int) -> Array:
    """Scratch of at least so many bytes; what lay there before is lost."""
    arena: Array | None = getattr(_here, "arena", None)
    if arena is None or arena.nbytes < size:
        arena = _here.arena = np.empty(size, np.uint8)
    return arena


@attrs.frozen(eq=False)
class Part:
    """An instruction of a region."""

    step: Step
    form: RowForm


@attrs.frozen
class _Value:
    """What lies in one place of a block's list of values."""

    row: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return prod(self.row) * self.dtype.itemsize


@attrs.define(eq=False)
class _Operation:
    """One call within a block."""

    function: Callable[..., Any]
    operands: tuple[int, ...]
    target: int
    has_out: bool
    """Whether the function writes into the target's array, given as its last argument, instead of making one."""
    step: Step
    is_elementwise: bool = False
    fetch: Callable[[list[Any]], Any] = attrs.field(init=False)
    dead: tuple[int, ...] = ()
    """Made arrays that are not needed any more."""

    def __attrs_post_init__(self) -> None:
        places = (*self.operands, self.target) if self.has_out else self.operands
        getter = itemgetter(*places)
        self.fetch = getter if len(places) > 1 else lambda values: (getter(values),)


class Region:
    """The kernel of a region's step: from the arrays that it takes from outside to those that are needed outside."""

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

        `overwritten` is the place of an input of the shape of the first output, whose rows it may take."""
        self.parts = tuple(parts)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.rows = rows
        self._shapes = [shapes[slot] for slot in outputs]
        self._is_whole = [shapes[slot].rank == 0 for slot in inputs]
        self._lengths = [
            0 if is_whole else prefix_length(shapes[slot].dimensions, rows)
            for slot, is_whole in zip(inputs, self._is_whole, strict=True)
        ]
        program = _Compiler(parts, inputs, outputs, shapes, rows)
        self._operations = program.operations
        self._views = program.views
        self._preamble = program.preamble
        self._count = len(program.values)
        self._buffers = program.buffers
        self._places = program.places
        self._output_places = program.output_places
        self._ordered = program.ordered
        self.can_overwrite = overwritten is not None and program.may_overwrite(overwritten)
        self._overwritten = overwritten
        live = sum(self._buffers) + sum(
            program.values[place].row_bytes
            for place in (*self._output_places, *(p for p, slot in enumerate(inputs) if slot not in repeated))
            if program.values[place] is not None and not (place < len(inputs) and self._is_whole[place])
        )
        widest = max([*(value.row_bytes for value in program.values if value is not None), 1])
        block = min(_BLOCK_BYTES // max(live, 1), _VALUE_BYTES // widest)
        even = max(-(-rows // _BLOCKS), _SMALL_BLOCK_BYTES // widest)
        work = sum(shapes[part.step.result].byte_size for part in parts)
        self.block = max(1, min(block, even if work > _LITTLE_WORK else rows, rows))
        self._offsets: list[int] = []
        self._arena_bytes = 0
        for size in self._buffers:
            self._offsets.append(self._arena_bytes)
            self._arena_bytes += -(-size * self.block // _ALIGNMENT) * _ALIGNMENT
        self.scratch_bytes = self._arena_bytes * min(core_count(), -(-rows // self.block))

    def __call__(self, *operands: Array) -> Any:
        return self._run(operands, None)

    def overwrite(self, *operands: Array) -> Any:
        """The same; the first output takes the place of the operand that may be overwritten."""
        assert self._overwritten is not None
        return self._run(operands, operands[self._overwritten])

    def _run(self, operands: Sequence[Array], target: Array | None) -> Any:
        rows: list[Any] = []
        for place, operand in enumerate(operands):
            if self._is_whole[place]:
                rows.append(None)
                continue
            if not _is_in_order(operand) or (place in self._ordered and not operand.flags.c_contiguous):
                return self._one_by_one(operands)
            rows.append(_Rows(operand, self._lengths[place], self.rows))
        if target is not None and not target.flags.c_contiguous:
            target = None
        results = [
            np.empty(shape.dimensions, shape.element_type.storage) if number or target is None else target
            for number, shape in enumerate(self._shapes)
        ]
        outputs = [result.reshape((self.rows, *behind_prefix(result.shape, self.rows))) for result in results]
        template: list[Any] = [None] * self._count
        for place, is_whole in enumerate(self._is_whole):
            if is_whole:
                template[place] = operands[place]
        for function, source, place in self._preamble:
            template[place] = function(template[source])
        taken = [(place, entry) for place, entry in enumerate(rows) if entry is not None]
        contexts: dict[tuple[int, int], list[Any]] = {}
        operations = self._operations

        def work(start: int, stop: int) -> None:
            thread = threading.get_ident()
            values = contexts.get((thread, stop - start))
            if values is None:
                values = template.copy()
                self._place_buffers(values, stop - start)
                contexts[thread, stop - start] = values
            for place, entry in taken:
                values[place] = entry.part(start, stop)
            for place, output in zip(self._output_places, outputs, strict=True):
                values[place] = output[start:stop]
            operation = operations[0]
            try:
                for operation in operations:
                    if operation.has_out:
                        operation.function(*operation.fetch(values))
                    else:
                        values[operation.target] = operation.function(*operation.fetch(values))
                    for place in operation.dead:
                        values[place] = None
            except Exception as error:
                raise PartError(operation.step) from error

        in_blocks(work, self.rows, self.block)
        return results[0] if len(results) == 1 else tuple(results)

    def _place_buffers(self, values: list[Any], count: int) -> None:
        """Put the arrays that are the same for all blocks of so many rows into their places."""
        arena = _arena(self._arena_bytes)
        for place, buffer, value in self._places:
            start = self._offsets[buffer]
            part = arena[start : start + count * value.row_bytes]
            values[place] = part.view(value.dtype).reshape((count, *value.row))
        for operation in self._views:
            values[operation.target] = operation.function(*operation.fetch(values))

    def _one_by_one(self, operands: Sequence[Array]) -> Any:
        """Run the instructions on whole arrays, which do not lie in row-major order."""
        values: dict[int, Any] = dict(zip(self.inputs, operands, strict=True))
        last = {slot: number for number, part in enumerate(self.parts) for slot in part.step.operands}
        kept = set(self.outputs)
        for number, part in enumerate(self.parts):
            step = part.step
            assert step.function is not None
            try:
                given = (values[slot] for slot in step.operands)
                if part.form.is_elementwise:
                    given = (_splat(value) if value.ndim == 0 else value for value in given)
                values[step.result] = step.function(*given)
            except Exception as error:
                raise PartError(step) from error
            for slot in step.operands:
                if last[slot] == number and slot not in kept:
                    values.pop(slot, None)
        found = tuple(values[slot] for slot in self.outputs)
        return found if len(found) != 1 else found[0]


def _is_in_order(array: Array) -> bool:
    """Whether the dimensions lie in memory from major to minor; steps of 0 may stand anywhere."""
    if array.flags.c_contiguous:
        return True
    last = None
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1 or stride == 0:
            continue
        if last is not None and abs(stride) >= last:
            return False
        last = abs(stride)
    return True


class _Rows:
    """The rows of an array whose first dimensions are its prefix."""

    def __init__(self, array: Array, length: int, rows: int) -> None:
        self._length = length
        if length > 1:
            merged = _merged(array, length, rows)
            if merged is not None:
                array, self._length = merged, 1
        self._array = array

    def part(self, start: int, stop: int) -> Array:
        if self._length == 1:
            return self._array[start:stop]
        return _gathered(self._array, self._length, start, stop)


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
    return np.lib.stride_tricks.as_strided(array, sizes, (stride, *array.strides[length:]), writeable=False)


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


def _narrow_into(block: Array, out: Array) -> None:
    np.copyto(out, block, casting="unsafe")


def _copy_into(block: Array, out: Array) -> None:
    np.copyto(out, block)


def _splat(scalar: Array) -> Array:
    return np.lib.stride_tricks.as_strided(scalar, (1,), (0,), writeable=False)


def _widened_splat(scalar: Array) -> Array:
    return _splat(scalar.astype(_F32))


class _Compiler:
    """Turns the instructions of a region into calls on numbered places."""

    def __init__(
        self, parts: Sequence[Part], inputs: Sequence[int], outputs: Sequence[int], shapes: Sequence[Any], rows: int
    ) -> None:
        self._shapes = shapes
        self._rows = rows
        self.values: list[Any] = []
        self.operations: list[_Operation] = []
        self.preamble: list[tuple[Callable[..., Any], int, int]] = []
        self._owner: dict[int, int] = {}
        """Of places that show the memory of another."""
        self._virtual: set[int] = set()
        """Places that need scratch."""
        self._made: set[int] = set()
        self._stored: dict[int, int] = {}
        self._wide: dict[int, int] = {}
        self._splats: dict[tuple[int, bool], int] = {}
        self.ordered: set[int] = set()
        """Inputs that must lie in row-major order without gaps."""
        self._input_count = len(inputs)
        for slot in inputs:
            self._stored[slot] = self._new(self._value(shapes[slot]))
        self._outputs = {slot: self._new(self._value(shapes[slot])) for slot in outputs}
        self.output_places = [self._outputs[slot] for slot in outputs]
        self._viewed = {slot for part in parts if part.form.is_view for slot in part.step.operands}
        for part in parts:
            self._part(part)
        self.views = [entry for entry in self.operations if self._shows_scratch(entry)]
        """Of scratch, which are the same for all blocks."""
        self.buffers: list[int] = []
        self.places: list[tuple[int, int, _Value]] = []
        self._allocate()
        self.operations = [entry for entry in self.operations if not self._shows_scratch(entry)]

    def _shows_scratch(self, operation: _Operation) -> bool:
        return operation.target in self._owner and self._root(operation.target) in self._virtual

    def may_overwrite(self, place: int) -> bool:
        """Whether the first output's rows may take those of an input: nothing reads these once they are written."""
        output = self.output_places[0]
        written = next(n for n, entry in enumerate(self.operations) if entry.target == output)
        read = max(
            (n for n, entry in enumerate(self.operations) if place in map(self._root, entry.operands)), default=-1
        )
        if read == written:
            entry = self.operations[written]
            return entry.is_elementwise and all(
                operand == place for operand in entry.operands if self._root(operand) == place
            )
        return read < written

    def _value(self, shape: ArrayShape) -> Any:
        row = () if shape.rank == 0 else behind_prefix(shape.dimensions, self._rows)
        return _Value(row, shape.element_type.storage)

    def _new(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _root(self, place: int) -> int:
        while place in self._owner:
            place = self._owner[place]
        return place

    def _call(self, step: Step, function: Any, operands: Sequence[int], target: int, **how: Any) -> int:
        self.operations.append(_Operation(function, tuple(operands), target, step=step, **how))
        return target

    def _scratch(self, value: _Value) -> int:
        place = self._new(value)
        self._virtual.add(place)
        return place

    def _storage(self, slot: int, step: Step) -> int:
        """The place of a value in its own type."""
        if slot not in self._stored:
            wide = self._wide[slot]
            target = self._scratch(self._value(self._shapes[slot]))
            self._stored[slot] = self._call(step, _narrow_into, [wide], target, has_out=True)
        return self._stored[slot]

    def _widened(self, slot: int, step: Step) -> int:
        """The place of a bf16 value as f32."""
        if slot not in self._wide:
            stored = self._stored[slot]
            value = _Value(self.values[stored].row, _F32)
            target = self._scratch(value)
            self._wide[slot] = self._call(step, _copy_into, [stored], target, has_out=True)
        return self._wide[slot]

    def _splat(self, slot: int, *, is_wide: bool) -> int:
        """The place of a scalar as an array of one element with strides of 0, of f32 in place of bf16 where asked."""
        is_wide = is_wide and self._shapes[slot].element_type.name == "bf16"
        if (slot, is_wide) not in self._splats:
            place = self._new(None)
            self.preamble.append((_widened_splat if is_wide else _splat, self._stored[slot], place))
            self._splats[slot, is_wide] = place
        return self._splats[slot, is_wide]

    def _part(self, part: Part) -> None:
        step, form = part.step, part.form
        slot = step.result
        result = self._value(self._shapes[slot])
        function = form.bind(self._rows)
        is_bfloat = self._shapes[slot].element_type.name == "bf16"
        keeps_wide = form.needs_order and is_bfloat
        operands = [
            self._splat(operand, is_wide=form.wide is not None)
            if form.is_elementwise and self._shapes[operand].rank == 0
            else self._widened(operand, step)
            if (form.wide is not None or (keeps_wide and self._shapes[operand].rank))
            and self._shapes[operand].element_type.name == "bf16"
            else self._storage(operand, step)
            for operand in step.operands
        ]
        source = self._root(self._stored.get(step.operands[0], operands[0]))
        if form.needs_order and source < self._input_count:
            self.ordered.add(source)
        given = result
        is_rounded = form.wide is not None and is_bfloat
        if is_rounded:
            given = _Value(result.row, _F32)
        if is_rounded and form.is_exact:
            place = self._wide[slot] = self._computed(step, function, operands, given, form)
            if slot in self._outputs:
                self._stored[slot] = self._call(step, _narrow_into, [place], self._outputs[slot], has_out=True)
            return
        target = self._outputs.get(slot)
        if is_rounded:
            place = self._computed(step, function, operands, given, form)
            self._stored[slot] = self._call(
                step, _narrow_into, [place], self._scratch(result) if target is None else target, has_out=True
            )
            return
        if isinstance(function, np.ufunc) and target is not None:
            self._stored[slot] = self._call(step, function, operands, target, has_out=True, is_elementwise=True)
            return
        place = self._computed(step, function, operands, given, form)
        if target is not None:
            place = self._call(step, _copy_into, [place], target, has_out=True)
        elif place in self._made and slot in self._viewed and result.row_bytes < _FEW_BYTES:
            place = self._call(step, _copy_into, [place], self._scratch(result), has_out=True)
        self._stored[slot] = place

    def _computed(self, step: Step, function: Any, operands: Sequence[int], value: _Value, form: RowForm) -> int:
        """The place of a function's result, other than an output's."""
        if isinstance(function, np.ufunc):
            return self._call(step, function, operands, self._scratch(value), has_out=True, is_elementwise=True)
        place = self._new(value)
        if form.is_view or function is same:
            self._owner[place] = operands[0]
        else:
            self._made.add(place)
        return self._call(step, function, operands, place, has_out=False)

    def _allocate(self) -> None:
        """Give each place that needs scratch a buffer, reused when what lies there is needed no more."""
        last: dict[int, int] = {}
        for number, operation in enumerate(self.operations):
            for place in (*operation.operands, operation.target):
                last[self._root(place)] = number
        buffer_of: dict[int, int] = {}
        free: dict[int, list[int]] = {}

        def release(place: int) -> None:
            free.setdefault(self.values[place].row_bytes, []).append(buffer_of[place])

        for number, operation in enumerate(self.operations):
            ending = {
                root for root in map(self._root, operation.operands) if last[root] == number and root in buffer_of
            }
            # Elementwise, a result may take the place of an operand that is read as it lies there.
            early = {
                root
                for root in ending
                if operation.is_elementwise
                and all(place == root for place in operation.operands if self._root(place) == root)
                and self.values[root].row == self.values[operation.target].row
            }
            for root in early:
                release(root)
            if operation.target in self._virtual:
                size = self.values[operation.target].row_bytes
                if free.get(size):
                    buffer = free[size].pop()
                else:
                    buffer = len(self.buffers)
                    self.buffers.append(size)
                buffer_of[operation.target] = buffer
                self.places.append((operation.target, buffer, self.values[operation.target]))
            for root in ending - early:
                release(root)
            operation.dead = tuple(
                {
                    place
                    for place in (*operation.operands, operation.target)
                    if last[self._root(place)] == number and self._root(place) in self._made
                }
            )
