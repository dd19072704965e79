"""Block programs: the instructions of a region, in order, as calls on the numbered places of a block.

The places of a block: the arrays that its calls read and write, and the scratch memory that they share. A place is an
array: rows of an input or output, scratch, the result of a function, or a view of another place. Scratch is reused once
its contents are dead.

The order in which a region's instructions run, chosen so that few of their values are in the cache at a time. Modules
often list instructions long before they are used: the nine coefficients of a polynomial, each a select, and then its
nine steps. Here the operands of an instruction are computed immediately before it, and first the one whose computation
needs the most memory beyond its result (Sethi and Ullman's rule for registers, by bytes). An instruction whose operands
are there, and die with it, runs at once if it makes no more bytes than they take: in a round of threefry the sum of two
words comes before the rotation of one of them, which may then overwrite that word.

A bf16 value has up to two places, its own and one as f32, so that it is widened only once; a pred has further ones for
the masks with which it selects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import DType, element_type
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import InstructionKernel
from hloexec.engine.plan.regions.rows import (
    has_few_columns,
    has_long_rows,
    has_short_rows,
    laid_in_columns,
    row_by_row,
    spread_out,
)
from hloexec.engine.plan.steps import Step
from hloexec.ops.common import converted_into, narrow_into, strided
from hloexec.ops.elementwise.formula import mask_into, mask_of
from hloexec.ops.traits import Rounding, RowForm, behind_prefix, same

Span = tuple[int, int]
"""The first and the last step at which a buffer is in use."""


def packed(sizes: Sequence[int], spans: Sequence[Span]) -> tuple[list[int], int]:
    """Where each buffer begins, given what each takes, and where the last one ends.

    Buffers of which one is done with before the other is used may lie over one another. The largest is placed first,
    and each in the first gap between those that it must not touch.
    """
    starts: dict[int, int] = {}
    for buffer in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        first, last = spans[buffer]
        beside = (other for other in starts if first <= spans[other][1] and spans[other][0] <= last)
        start = 0
        for begin, other in sorted((starts[other], other) for other in beside):
            if begin - start >= sizes[buffer]:
                break
            start = max(start, begin + sizes[other])
        starts[buffer] = start
    ends = (starts[buffer] + size for buffer, size in enumerate(sizes))
    return [starts[buffer] for buffer in range(len(sizes))], max(ends, default=0)


@frozen
class Value:
    """The contents of a place."""

    row: tuple[int, ...]
    dtype: DType

    @property
    def row_bytes(self) -> int:
        return prod(self.row) * self.dtype.itemsize


@define(eq=False)
class Operation:
    """One call within a block."""

    function: Callable[..., Any]
    operands: tuple[int, ...]
    target: int
    has_out: bool
    """Whether the function writes into the target's array, given as its last argument, instead of making one."""
    step: Step
    overwrites: tuple[int, ...] = ()
    """The numbers of operands whose memory the target may take, where it has the same place in all of them."""
    fetch: Callable[[list[Any]], Any] = attrs.field(init=False)
    dead: tuple[int, ...] = ()
    """Made arrays that are not needed any more."""

    def __attrs_post_init__(self) -> None:
        places = (*self.operands, self.target) if self.has_out else self.operands
        getter = itemgetter(*places)
        self.fetch = getter if len(places) > 1 else lambda values: (getter(values),)


class Places:
    """Numbered places."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._owner: dict[int, int] = {}
        """Of places that show the memory of another."""
        self._scratch: set[int] = set()
        self._made: set[int] = set()
        self.buffers: list[int] = []
        """What a row of each buffer of scratch takes."""
        self._spans: list[tuple[int, int]] = []
        """The first and the last operation that uses each buffer."""
        self.in_buffers: list[tuple[int, int, Value]] = []
        """The places in scratch memory, and the buffer of each."""

    def add(self, value: Any) -> int:
        """A place for an input, an output, or a value that is known before the blocks run."""
        self.values.append(value)
        return len(self.values) - 1

    def add_scratch(self, value: Value) -> int:
        """A place in scratch."""
        place = self.add(value)
        self._scratch.add(place)
        return place

    def add_made(self, value: Value) -> int:
        """A place for an array that a function makes."""
        place = self.add(value)
        self._made.add(place)
        return place

    def add_view(self, value: Value, owner: int) -> int:
        """A place that shows the memory of another."""
        place = self.add(value)
        self._owner[place] = owner
        return place

    def is_scratch(self, place: int) -> bool:
        return place in self._scratch

    def is_made(self, place: int) -> bool:
        return place in self._made

    def root(self, place: int) -> int:
        """The place whose memory this one shows."""
        while place in self._owner:
            place = self._owner[place]
        return place

    def may_take(self, operation: Operation, place: int) -> bool:
        """Whether an operation's target may take the memory of one of its operands, which it reads in place."""
        return all(
            operand == place and number in operation.overwrites
            for number, operand in enumerate(operation.operands)
            if self.root(operand) == place
        )

    def shows_scratch(self, place: int) -> bool:
        """Whether a place is a view of scratch, which is the same for all blocks."""
        return place in self._owner and self.root(place) in self._scratch

    def allocate(self, operations: Sequence[Operation]) -> None:
        """Give each place in scratch a buffer, and let each operation know which made arrays die with it."""
        last: dict[int, int] = {}
        for number, operation in enumerate(operations):
            for place in (*operation.operands, operation.target):
                last[self.root(place)] = number
        buffer_of: dict[int, int] = {}
        for number, operation in enumerate(operations):
            early = [
                root
                for root in map(self.root, operation.operands)
                if last[root] == number
                and root in buffer_of
                and self.may_take(operation, root)
                and self.values[root].row == self.values[operation.target].row
                and self.values[root].row_bytes == self.values[operation.target].row_bytes
            ]
            if operation.target in self._scratch:
                if early:
                    buffer = buffer_of[early[0]]
                else:
                    buffer = len(self.buffers)
                    self.buffers.append(self.values[operation.target].row_bytes)
                    self._spans.append((number, number))
                self._spans[buffer] = self._spans[buffer][0], last[operation.target]
                buffer_of[operation.target] = buffer
                self.in_buffers.append((operation.target, buffer, self.values[operation.target]))
            operation.dead = tuple(
                {
                    place
                    for place in (*operation.operands, operation.target)
                    if last[self.root(place)] == number and self.root(place) in self._made
                }
            )

    def packed(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Where each buffer begins, given what each takes, and where the last one ends."""
        return packed(sizes, self._spans)


def in_order_of_use(steps: Sequence[Step], outputs: Collection[int], row_bytes: Mapping[int, int]) -> list[int]:
    """The numbers of the steps in the order in which to run them; `row_bytes` are those of a row of each result.

    Steps come after those whose results they take. A step whose result nothing needs keeps its place among the last.
    """
    maker = {step.result: number for number, step in enumerate(steps)}
    operands = [list(dict.fromkeys(maker[slot] for slot in step.operands if slot in maker)) for step in steps]
    made = [row_bytes[step.result] for step in steps]
    _most_demanding_first(operands, made)
    roots = [number for number, step in enumerate(steps) if step.result in outputs]
    order = _Order(operands, made, roots)
    for root in (*roots, *range(len(steps))):
        stack = [(root, iter(operands[root]))]
        while stack:
            number, rest = stack[-1]
            missing = next((operand for operand in rest if operand not in order.found), None)
            if missing is not None:
                stack.append((missing, iter(operands[missing])))
            else:
                stack.pop()
                order.run(number)
    return list(order.found)


def _most_demanding_first(operands: Sequence[list[int]], made: Sequence[int]) -> None:
    """Sort the operands of each step by what their computation takes beyond what it leaves, were nothing computed."""
    most: list[int] = []
    for number, makers in enumerate(operands):
        makers.sort(key=lambda operand: made[operand] - most[operand])
        before, taken = 0, 0
        for operand in makers:
            taken = max(taken, before + most[operand])
            before += made[operand]
        most.append(max(taken, before + made[number]))


class _Order:
    """Steps that have run, with those that can follow without taking more memory."""

    def __init__(self, operands: Sequence[Sequence[int]], made: Sequence[int], outputs: Collection[int]) -> None:
        self.found: dict[int, None] = {}
        self._operands = operands
        self._made = made
        self._users: list[list[int]] = [[] for _ in operands]
        for number, makers in enumerate(operands):
            for operand in makers:
                self._users[operand].append(number)
        self._waiting = [len(users) for users in self._users]
        """How many of a step's users have not run; an output has one more, outside."""
        for number in outputs:
            self._waiting[number] += 1

    def run(self, number: int) -> None:
        """Let a step run, unless it has, and after it all that free as much as they make."""
        ready = [number]
        while ready:
            number = ready.pop()
            if number in self.found:
                continue
            self.found[number] = None
            ready += filter(self._frees_enough, self._users[number])
            for operand in self._operands[number]:
                self._waiting[operand] -= 1
                if self._waiting[operand] == 1:
                    ready += filter(self._frees_enough, self._users[operand])

    def _frees_enough(self, number: int) -> bool:
        if number in self.found or not all(operand in self.found for operand in self._operands[number]):
            return False
        freed = sum(self._made[operand] for operand in self._operands[number] if self._waiting[operand] == 1)
        return freed >= self._made[number]


_FEW_BYTES = 1 << 10
"""A row of so few is copied into scratch, where views of it last."""

_F32 = element_type("f32").storage


@frozen(eq=False)
class Part:
    """An instruction of a region."""

    step: Step
    form: RowForm


class BlockProgram:
    """Turns the instructions of a region into calls on numbered places."""

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[int],
        outputs: Sequence[int],
        shapes: Sequence[Any],
        rows: int,
        repeated_inputs: frozenset[int] = frozenset(),
    ) -> None:
        self._shapes = shapes
        self._rows = rows
        self.places = Places()
        self.operations: list[Operation] = []
        self.preamble: list[tuple[Callable[..., Any], int, int]] = []
        self._stored: dict[int, int] = {}
        self._wide: dict[int, int] = {}
        self._masks: dict[tuple[int, DType], int] = {}
        self._numbers: dict[tuple[int, bool, bool], int] = {}
        self._samples: dict[int, Array] = {}
        """Two rows of places in scratch, and of views of these, to see what functions make of them."""
        self.bounds: int | None = None
        """The place of the number of a block's first row and of that behind its last, if anything needs them."""
        for slot in inputs:
            self._stored[slot] = self.places.add(self._value(shapes[slot]))
        self._outputs = {slot: self.places.add(self._value(shapes[slot])) for slot in outputs}
        self.output_places = [self._outputs[slot] for slot in outputs]
        self.is_by_columns = self._gains_by_columns(parts, inputs, outputs, repeated_inputs)
        """Whether the values of a block lie column by column."""
        self._copied = {slot for slot in outputs if self.is_by_columns and self._value(shapes[slot]).row}
        """The outputs that are not written by what computes them."""
        self._viewed = {slot for part in parts if part.form.is_view for slot in part.step.operands}
        for number in in_order_of_use([part.step for part in parts], outputs, self._row_bytes(parts)):
            self._part(parts[number])
        self._samples.clear()
        self.is_rounded = any(entry.function is narrow_into for entry in self.operations)
        """Whether numbers are rounded to bf16 in a block."""
        self.places.allocate(self.operations)
        self.views = [entry for entry in self.operations if self.places.shows_scratch(entry.target)]
        """Of scratch, which are the same for all blocks."""
        self.operations = [entry for entry in self.operations if not self.places.shows_scratch(entry.target)]

    def _row_bytes(self, parts: Sequence[Part]) -> dict[int, int]:
        """What a row of each part's result takes, of a view what it shows."""
        row_bytes: dict[int, int] = {}
        for part in parts:
            slot = part.step.operands[0] if part.form.is_view else part.step.result
            row_bytes[part.step.result] = (
                row_bytes[slot] if slot in row_bytes else self._value(self._shapes[slot]).row_bytes
            )
        return row_bytes

    def _gains_by_columns(
        self, parts: Sequence[Part], inputs: Sequence[int], outputs: Sequence[int], repeated_inputs: frozenset[int]
    ) -> bool:
        """Whether more functions of short rows read repeated elements than there are arrays whose rows would have to be
        taken apart or put together."""
        rows = {slot: self._value(self._shapes[slot]).row for slot in inputs}
        rows |= {part.step.result: self._value(self._shapes[part.step.result]).row for part in parts}
        if not has_few_columns(self._rows, rows.values()) or any(_rounds_at_random(part.step) for part in parts):
            return False
        spread = set(repeated_inputs)
        for part in parts:
            if part.form.is_view and prod(rows[part.step.result]) > prod(rows[part.step.operands[0]]):
                spread.add(part.step.result)
        reading = sum(
            part.form.is_elementwise
            and has_short_rows(rows[part.step.result])
            and not spread.isdisjoint(part.step.operands)
            for part in parts
        )
        return reading > sum(bool(rows[slot]) for slot in (*{*inputs} - spread, *outputs))

    def usual_row_bytes(self) -> int:
        """What a row takes in most of the larger values that are computed."""
        sizes: list[int] = sorted(self.places.values[entry.target].row_bytes for entry in self.operations)
        large = [size for size in sizes if 4 * size >= sizes[-1]]
        return max(large[len(large) // 2], 1)

    def may_overwrite(self, place: int) -> bool:
        """Whether the first output's rows may take those of an input: nothing reads these once they are written."""
        output = self.output_places[0]
        written = next(n for n, entry in enumerate(self.operations) if entry.target == output)
        read = max(
            (n for n, entry in enumerate(self.operations) if place in map(self.places.root, entry.operands)), default=-1
        )
        return read < written or (read == written and self.places.may_take(self.operations[written], place))

    def _value(self, shape: ArrayShape) -> Any:
        row = () if shape.rank == 0 else behind_prefix(shape.dimensions, self._rows)
        return Value(row, shape.element_type.storage)

    def _call(self, step: Step, function: Any, operands: Sequence[int], target: int, **how: Any) -> int:
        if how["has_out"]:
            function = _NAMED_OUT.get(function, function)
            if function in _ARITHMETIC and has_long_rows(self.places.values[target].row):
                function = row_by_row(function)
        if self.is_by_columns and _is_approximated(step):
            function = spread_out(function)
        self.operations.append(Operation(function, tuple(operands), target, step=step, **how))
        return target

    def _storage(self, slot: int, step: Step) -> int:
        """The place of a value in its own type."""
        if slot not in self._stored:
            wide = self._wide[slot]
            target = self.places.add_scratch(self._value(self._shapes[slot]))
            self._stored[slot] = self._call(step, narrow_into, [wide], target, has_out=True)
        return self._stored[slot]

    def _widened(self, slot: int, step: Step) -> int:
        """The place of a bf16 value as f32."""
        if slot not in self._wide:
            stored = self._stored[slot]
            value = Value(self.places.values[stored].row, _F32)
            target = self.places.add_scratch(value)
            self._wide[slot] = self._call(step, converted_into, [stored], target, has_out=True)
        return self._wide[slot]

    def _mask(self, slot: int, dtype: DType, step: Step) -> int:
        """The place of the mask of a pred; of a scalar one, of a mask without dimensions."""
        if (slot, dtype) not in self._masks and self._shapes[slot].rank == 0:
            place = self._masks[slot, dtype] = self.places.add(None)
            self.preamble.append((partial(mask_of, dtype=dtype), self._stored[slot], place))
        elif (slot, dtype) not in self._masks:
            pred = self._stored[slot]
            target = self.places.add_scratch(Value(self.places.values[pred].row, dtype))
            self._masks[slot, dtype] = self._call(step, mask_into, [pred], target, has_out=True)
        return self._masks[slot, dtype]

    def _number(self, slot: int, *, is_wide: bool, is_repeated: bool) -> int:
        """The place of a scalar, of f32 in place of bf16 where asked; as an array of one element with strides of 0,
        by which formulas know that it is one number, or without dimensions, for which NumPy's functions start sooner.
        """
        is_wide = is_wide and self._shapes[slot].element_type.name == "bf16"
        if not is_wide and not is_repeated:
            return self._stored[slot]
        key = slot, is_wide, is_repeated
        if key not in self._numbers:
            place = self._numbers[key] = self.places.add(None)
            source = (
                self._number(slot, is_wide=True, is_repeated=False) if is_wide and is_repeated else self._stored[slot]
            )
            self.preamble.append((repeated if is_repeated else _as_f32, source, place))
        return self._numbers[key]

    def _operand(self, step: Step, form: RowForm, number: int, *, is_ufunc: bool) -> int:
        """The place of an operand as a form takes it."""
        slot = step.operands[number]
        shape = self._shapes[slot]
        if form.mask is not None and not number:
            return self._mask(slot, form.mask, step)
        if form.is_elementwise and shape.rank == 0:
            return self._number(slot, is_wide=form.wide is not None, is_repeated=not is_ufunc)
        # Reductions of bf16 take their operand as f32, but not where they begin.
        keeps_wide = form.is_reduction and self._shapes[step.result].element_type.name == "bf16" and shape.rank
        if (form.wide is not None or keeps_wide) and shape.element_type.name == "bf16":
            return self._widened(slot, step)
        return self._storage(slot, step)

    def _part(self, part: Part) -> None:
        step, form = part.step, part.form
        slot = step.result
        result = self._value(self._shapes[slot])
        function = form.bind(self._rows)
        is_bfloat = self._shapes[slot].element_type.name == "bf16"
        is_ufunc = isinstance(function, np.ufunc)
        operands = [self._operand(step, form, number, is_ufunc=is_ufunc) for number in range(len(step.operands))]
        if form.numbers_rows:
            self.bounds = self.places.add(None) if self.bounds is None else self.bounds
            operands = [self.bounds]
        target = self._outputs.get(slot)
        if form.wide is not None and is_bfloat:
            place = self._computed(step, function, operands, Value(result.row, _F32), form)
            if form.is_exact:
                self._wide[slot] = place
            if target is not None or not form.is_exact:
                target = self.places.add_scratch(result) if target is None else target
                self._stored[slot] = self._call(step, narrow_into, [place], target, has_out=True)
            return
        place = self._computed(step, function, operands, result, form, None if slot in self._copied else target)
        if target is None and self.places.is_made(place) and slot in self._viewed and result.row_bytes < _FEW_BYTES:
            target = self.places.add_scratch(result)
        if target is not None and target != place:
            copy = self._call(step, converted_into, [place], target, has_out=True)
            # The next instructions read rows that lie by columns.
            place = place if slot in self._copied else copy
        self._stored[slot] = place

    def _computed(
        self, step: Step, function: Any, operands: Sequence[int], value: Value, form: RowForm, target: int | None = None
    ) -> int:
        """The place of a function's result: `target`, where it writes to one."""
        if form.fills or isinstance(function, np.ufunc):
            # What NumPy's own functions read they may overwrite.
            overwrites = tuple(range(len(operands))) if isinstance(function, np.ufunc) else form.overwrites
            target = self.places.add_scratch(value) if target is None else target
            return self._call(step, function, operands, target, has_out=True, overwrites=overwrites)
        is_view = (form.is_view or function is same) and not self._copies(function, operands[0])
        place = self.places.add_view(value, operands[0]) if is_view else self.places.add_made(value)
        if is_view and operands[0] in self._samples:
            self._samples[place] = function(self._samples[operands[0]])
        return self._call(step, function, operands, place, has_out=False)

    def _copies(self, function: Any, place: int) -> bool:
        """Whether a function that mostly gives a view copies what is in scratch, as a reshape does what is repeated."""
        if place not in self._samples:
            if not self.places.is_scratch(place):
                return False
            value = self.places.values[place]
            self._samples[place] = laid_out(np.empty(2 * value.row_bytes, np.uint8), 2, value, self.is_by_columns)
        source = self._samples[place]
        return not np.may_share_memory(function(source), source)


def laid_out(memory: Array, count: int, value: Value, is_by_columns: bool) -> Array:
    """So many rows of a value in memory of their size."""
    if is_by_columns:
        return laid_in_columns(memory, count, value.row, value.dtype)
    return np.ndarray((count, *value.row), value.dtype, memory)


def _rounds_at_random(step: Step) -> bool:
    return isinstance(step.kernel, InstructionKernel) and step.kernel.random is not None


def _is_approximated(step: Step) -> bool:
    entry = step.kernel.entry if isinstance(step.kernel, InstructionKernel) else None
    return entry is None or entry.rounding not in (Rounding.NONE, Rounding.ONCE)


def _maximum_into(lhs: Array, rhs: Array, out: Array) -> None:
    np.maximum(lhs, rhs, out=out)


def _minimum_into(lhs: Array, rhs: Array, out: Array) -> None:
    np.minimum(lhs, rhs, out=out)


_ARITHMETIC = frozenset({np.add, np.subtract, np.multiply, np.divide})
_NAMED_OUT: dict[Any, Any] = {np.maximum: _maximum_into, np.minimum: _minimum_into}
"""For functions of NumPy that do not take a third argument by its place."""


def repeated(scalar: Array) -> Array:
    """A scalar as an array of one element with strides of 0, by which formulas know that it is one number."""
    return strided(scalar, (1,), (0,))


def _as_f32(scalar: Array) -> Array:
    return scalar.astype(_F32)
