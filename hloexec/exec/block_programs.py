"""Programs of blocks: what a region's instructions become, as calls on numbered places.

A place holds an array of a block: rows of an input or output, scratch, or what a function has made. A value of bf16 has
up to two places, its own and one as f32, so that it is widened once; one of pred has others for the masks by which it
chooses. Scratch is used again once what lies there is needed no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import element_type
from hloexec.exec.part_order import in_order_of_use
from hloexec.exec.plan import Step
from hloexec.exec.rowwise import RowForm, behind_prefix, same
from hloexec.ir import ArrayShape
from hloexec.ops.choosing import choose_by_mask, mask_into
from hloexec.values import Array

__all__ = ["BlockProgram", "Part", "Value", "splat"]

_FEW_BYTES = 1 << 10
"""A row of so few is copied into scratch, where views of it last."""

_COPIED_BYTES = 1 << 23
"""An output of so many is not written by what computes it: to write to memory that is not in the cache, a processor
reads it first, but not where it copies. That saves a third of the time of adding two large arrays.
"""

_F32 = element_type("f32").storage


@attrs.frozen(eq=False)
class Part:
    """An instruction of a region."""

    step: Step
    form: RowForm


@attrs.frozen
class Value:
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


class BlockProgram:
    """Turns the instructions of a region into calls on numbered places."""

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[int],
        outputs: Sequence[int],
        shapes: Sequence[Any],
        rows: int,
        kept: int,
    ) -> None:
        """`kept` is 1 where the first output may take the place of an input, which is in the cache, else 0."""
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
        self._masks: dict[tuple[int, np.dtype[Any]], int] = {}
        self._splats: dict[tuple[int, bool], int] = {}
        self.ordered: set[int] = set()
        """Inputs that must lie in row-major order without gaps."""
        self._input_count = len(inputs)
        for slot in inputs:
            self._stored[slot] = self._new(self._value(shapes[slot]))
        self._outputs = {slot: self._new(self._value(shapes[slot])) for slot in outputs}
        self.output_places = [self._outputs[slot] for slot in outputs]
        self._copied = {slot for slot in outputs[kept:] if shapes[slot].byte_size >= _COPIED_BYTES}
        self._viewed = {slot for part in parts if part.form.is_view for slot in part.step.operands}
        for number in in_order_of_use([part.step for part in parts], outputs, self._row_bytes(parts)):
            self._part(parts[number])
        self.is_rounded = any(entry.function is _narrow_into for entry in self.operations)
        """Whether numbers are rounded to bf16 in a block."""
        self.views = [entry for entry in self.operations if self._shows_scratch(entry)]
        """Of scratch, which are the same for all blocks."""
        self.buffers: list[int] = []
        self.places: list[tuple[int, int, Value]] = []
        self._allocate()
        self.operations = [entry for entry in self.operations if not self._shows_scratch(entry)]

    def _row_bytes(self, parts: Sequence[Part]) -> dict[int, int]:
        """What a row of each part's result takes, of a view what it shows."""
        found: dict[int, int] = {}
        for part in parts:
            slot = part.step.operands[0] if part.form.is_view else part.step.result
            found[part.step.result] = found[slot] if slot in found else self._value(self._shapes[slot]).row_bytes
        return found

    def _shows_scratch(self, operation: _Operation) -> bool:
        return operation.target in self._owner and self._root(operation.target) in self._virtual

    def usual_row_bytes(self) -> int:
        """What a row takes in most of the larger values that are computed."""
        sizes: list[int] = sorted(self.values[entry.target].row_bytes for entry in self.operations)
        large = [size for size in sizes if 4 * size >= sizes[-1]]
        return max(large[len(large) // 2], 1)

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
        return Value(row, shape.element_type.storage)

    def _new(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _root(self, place: int) -> int:
        while place in self._owner:
            place = self._owner[place]
        return place

    def _call(self, step: Step, function: Any, operands: Sequence[int], target: int, **how: Any) -> int:
        function = _NAMED_OUT.get(function, function) if how["has_out"] else function
        self.operations.append(_Operation(function, tuple(operands), target, step=step, **how))
        return target

    def _scratch(self, value: Value) -> int:
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
            value = Value(self.values[stored].row, _F32)
            target = self._scratch(value)
            self._wide[slot] = self._call(step, _copy_into, [stored], target, has_out=True)
        return self._wide[slot]

    def _mask(self, slot: int, dtype: np.dtype[Any], step: Step) -> int:
        """The place of the mask of a pred."""
        if (slot, dtype) not in self._masks:
            pred = self._stored[slot]
            target = self._scratch(Value(self.values[pred].row, dtype))
            self._masks[slot, dtype] = self._call(step, mask_into, [pred], target, has_out=True)
        return self._masks[slot, dtype]

    def _repeated(self, slot: int, *, is_wide: bool) -> int:
        """The place of a scalar as an array of one element with strides of 0, of f32 in place of bf16 where asked."""
        is_wide = is_wide and self._shapes[slot].element_type.name == "bf16"
        if (slot, is_wide) not in self._splats:
            place = self._new(None)
            self.preamble.append((_widened_splat if is_wide else splat, self._stored[slot], place))
            self._splats[slot, is_wide] = place
        return self._splats[slot, is_wide]

    def _operand(self, step: Step, form: RowForm, number: int) -> int:
        """The place of an operand as a form takes it."""
        slot = step.operands[number]
        shape = self._shapes[slot]
        if form.mask is not None and not number:
            return self._mask(slot, form.mask, step)
        if form.is_elementwise and shape.rank == 0:
            return self._repeated(slot, is_wide=form.wide is not None)
        # Reductions of bf16 take their operand as f32, but not where they begin.
        keeps_wide = form.needs_order and self._shapes[step.result].element_type.name == "bf16" and shape.rank
        if (form.wide is not None or keeps_wide) and shape.element_type.name == "bf16":
            return self._widened(slot, step)
        return self._storage(slot, step)

    def _part(self, part: Part) -> None:
        step, form = part.step, part.form
        slot = step.result
        result = self._value(self._shapes[slot])
        function = form.bind(self._rows)
        is_bfloat = self._shapes[slot].element_type.name == "bf16"
        operands = [self._operand(step, form, number) for number in range(len(step.operands))]
        source = self._root(self._stored.get(step.operands[0], operands[0]))
        if form.needs_order and source < self._input_count:
            self.ordered.add(source)
        given = result
        is_rounded = form.wide is not None and is_bfloat
        if is_rounded:
            given = Value(result.row, _F32)
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
        if _writes(function) and target is not None and slot not in self._copied:
            is_ufunc = isinstance(function, np.ufunc)
            self._stored[slot] = self._call(step, function, operands, target, has_out=True, is_elementwise=is_ufunc)
            return
        place = self._computed(step, function, operands, given, form)
        if slot in self._copied:
            # What comes after reads what is still in the cache.
            self._call(step, _copy_into, [place], self._outputs[slot], has_out=True)
        elif target is not None:
            place = self._call(step, _copy_into, [place], target, has_out=True)
        elif place in self._made and slot in self._viewed and result.row_bytes < _FEW_BYTES:
            place = self._call(step, _copy_into, [place], self._scratch(result), has_out=True)
        self._stored[slot] = place

    def _computed(self, step: Step, function: Any, operands: Sequence[int], value: Value, form: RowForm) -> int:
        """The place of a function's result, other than an output's."""
        if _writes(function):
            is_ufunc = isinstance(function, np.ufunc)
            return self._call(step, function, operands, self._scratch(value), has_out=True, is_elementwise=is_ufunc)
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


def _writes(function: Any) -> bool:
    """Whether a function takes the array to write to as its last argument."""
    return isinstance(function, np.ufunc) or function is choose_by_mask


def _maximum_into(lhs: Array, rhs: Array, out: Array) -> None:
    np.maximum(lhs, rhs, out=out)


def _minimum_into(lhs: Array, rhs: Array, out: Array) -> None:
    np.minimum(lhs, rhs, out=out)


_NAMED_OUT: dict[Any, Any] = {np.maximum: _maximum_into, np.minimum: _minimum_into}
"""For functions of NumPy that do not take a third argument by its place."""


def _narrow_into(block: Array, out: Array) -> None:
    np.copyto(out, block, casting="unsafe")


def _copy_into(block: Array, out: Array) -> None:
    np.copyto(out, block)


def splat(scalar: Array) -> Array:
    """A scalar as an array of one element with strides of 0, by which formulas know that it is one number."""
    return np.lib.stride_tricks.as_strided(scalar, (1,), (0,), writeable=False)


def _widened_splat(scalar: Array) -> Array:
    return splat(scalar.astype(_F32))
