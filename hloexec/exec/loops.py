"""Loops as Python functions, and what one iteration need not do that the one before has done.

What an iteration would compute anew from the same values stands before the loop. A loop counter, increased by a
constant and compared with one, is a Python number. Results of NumPy's own functions that only such functions read lie
in *buffers*, variables whose arrays the loop may overwrite, and so no iteration allocates them.

A loop that only counts its iterations, and does not compute with their number, may come back to values that it has had,
as Newton's method does once it has converged. Then it goes round in circles: what is left of it is known. Every 16th
iteration looks whether the carried values are, bit for bit, those of 16 iterations before; where they are, all that is
left are the iterations beyond a multiple of 16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.exec.code import Code
from hloexec.exec.plan import Plan, Step, While
from hloexec.exec.writing import Values, Writer
from hloexec.ir import ArrayShape, BufferShape
from hloexec.ops.registry import Role, find_opcode

__all__ = ["LoopWriter", "is_counted_to"]

_HOISTED_BYTES = 1 << 20
"""What iterations have in common is kept from one to the next if it takes no more memory than this."""

_CONTIGUOUS_BYTES = 1 << 16
"""Broadcasts of up to so many bytes are laid out in full before the loop: NumPy is faster on memory without strides."""

_CIRCLE = 16
"""The periods that divide this are found: a fixed point, and numbers that alternate in their last bits."""

_COMPARED_BYTES = 1 << 20
"""Carried values that take more are not compared."""

_DRAWS = frozenset({"rng", "rng-get-and-update-state"})
"""Opcodes that give something else each time."""

_LEAVE_NOTHING = frozenset({"dot"})
"""Opcodes whose kernels make a new array and keep none of their operands, as NumPy's functions do."""

_Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""What buffers that can take each other's place have in common."""


@attrs.frozen
class _Counter:
    """A carried scalar that each iteration increases by a constant, while it is less than another one."""

    leaf: int
    increment: int
    end: int
    increase: Step
    is_read: bool
    """Whether anything else needs its value."""
    dtype: np.dtype[Any]


class LoopWriter(Writer):
    """Writes the function of a loop: (state, iteration, until) → (state, iteration, whether the loop is over)."""

    def __init__(self, step: Step, code_of: Callable[[Plan], Code], loop_code_of: Callable[[Step], Code]) -> None:
        super().__init__(step.instruction.name, code_of, loop_code_of)
        assert isinstance(step.flow, While)
        self._step, self._flow = step, step.flow
        self._state = Values(self._flow.body)
        self._condition = Values(self._flow.condition)
        self._free: defaultdict[_Kind, list[str]] = defaultdict(list)
        """Buffers whose values nothing needs, at the point that has been reached."""
        self._kinds: dict[str, _Kind] = {}
        """All buffers."""
        self._own: frozenset[int] = frozenset()
        """The slots of the body whose values lie in buffers."""

    def of_loop(self) -> Code:
        """The function."""
        state, condition, body = self._state, self._condition, self._flow.body
        self.name_parameters(state)
        leaves = range(body.parameter_count)
        names = [state.names[leaf] for leaf in leaves]
        condition.names = dict(enumerate(names))
        condition.kept = frozenset(leaves)
        hoisted = self._hoist(state) | self._hoist(condition)
        counter = _counter_of(self._flow, hoisted)
        self._own = _own_slots(self._flow, hoisted)
        start, self.lines = self.lines, []
        self.indent = "        "
        given = names.copy()
        if counter is not None:
            count, number = self.fresh("count"), self.known_as("number", partial(np.array, dtype=counter.dtype))
            given[counter.leaf] = f"{number}({count})"
            self.write(f"if {count} >= {counter.end}:")
        else:
            self.loop = self._step, self._flow.condition
            for step in self._flow.condition.steps:
                if id(step) not in hoisted:
                    self.step(condition, step)
            again = self.value(condition, self._flow.condition.results[0])
            self.write(f"if not {again}:")
        self.write(f"    return [{', '.join(given)}], iteration, True")
        self.loop = self._step, body
        if counter is not None and counter.is_read:
            self.write(f"{names[counter.leaf]} = {given[counter.leaf]}")
        self._write_body(names, hoisted, counter)
        self.loop = None
        if counter is not None:
            self.write(f"{count} += {counter.increment}")
        self.write("iteration += 1")
        compared = [] if counter is None else self._compared(names, counter)
        if counter is not None and compared:
            now, before = self.fresh("now"), self.fresh("before")
            self.write(f"if not iteration % {_CIRCLE}:")
            self.write(f"    {now} = {', '.join(f'{name}.tobytes()' for name in compared)},")
            self.write(f"    if {now} == {before}:")
            skipped = self.known_as("skipped", partial(_skipped, counter.end, counter.increment))
            self.write(f"        {count}, iteration = {skipped}({count}, iteration, until)")
            self.write(f"    {before} = {now}")
        self.indent = "    "
        self.write(f"return [{', '.join(given)}], iteration, False")
        within, self.lines = self.lines, []
        self.unpack(names, "state")
        self.write("state.clear()")
        if counter is not None:
            self.write(f"{count} = int({names[counter.leaf]})")
        if compared:
            self.write(f"{before} = None")
        for name, (dtype, dimensions) in self._kinds.items():
            made = f"{name}.copy()" if name in names else f"{self.known_as('empty', np.empty)}({dimensions}, '{dtype}')"
            self.write(f"{name} = {made}")
        self.lines += start
        self.write("while iteration != until:")
        self.lines += within
        return self.finished("state, iteration, until")

    def _compared(self, names: Sequence[str], counter: _Counter) -> list[str]:
        """The variables that tell whether the loop goes round in circles; none where more matters than they do."""
        body = self._flow.body
        if counter.is_read or not all(_is_pure(step) for step in (*body.steps, *self._flow.condition.steps)):
            return []
        changed = [leaf for leaf in range(len(names)) if not body.is_invariant(leaf) and leaf != counter.leaf]
        size = sum(body.slot_shapes[leaf].byte_size for leaf in changed)
        return [names[leaf] for leaf in changed] if size <= _COMPARED_BYTES else []

    def _hoist(self, values: Values) -> set[int]:
        """Write the steps that compute the same in each iteration; returns their identities."""
        plan, body = values.plan, self._flow.body
        known = plan.constant_slots | {leaf for leaf in range(body.parameter_count) if body.is_invariant(leaf)}
        found: set[int] = set()
        self.loop = self._step, plan
        for step in plan.steps:
            size = sum(plan.slot_shapes[slot].byte_size for slot in step.results)
            if _is_pure(step) and known.issuperset(step.operands) and size <= _HOISTED_BYTES:
                known = known.union(step.results)
                values.kept = values.kept.union(step.operands, step.results)
                self.step(values, step)
                if step.instruction.opcode == "broadcast" and size <= _CONTIGUOUS_BYTES:
                    name, place = values.names[step.result], self.lines[-1][1]
                    contiguous = self.known_as("contiguous", _contiguous)
                    self.lines.append((f"    {name} = {contiguous}({name})", place))
                found.add(id(step))
        self.loop = None
        return found

    # The body

    def _write_body(self, names: Sequence[str], hoisted: set[int], counter: _Counter | None) -> None:
        body, state = self._flow.body, self._state
        for leaf in range(body.parameter_count):
            if leaf in self._own:
                self._kinds[names[leaf]] = _kind(body.slot_shapes[leaf])
        self.drop(state, body.dead_on_entry)
        for step in body.steps:
            if id(step) not in hoisted and (counter is None or step is not counter.increase):
                self.step(state, step)
        self._carry(names, counter)

    def kernel(self, values: Values, step: Step) -> None:
        if values is not self._state or step.result not in self._own:
            super().kernel(values, step)
            return
        kind = _kind(values.plan.slot_shapes[step.result])
        dying = [slot for slot in dict.fromkeys(step.operands) if slot in step.dead and slot in self._own]
        fitting = [values.names[slot] for slot in dying if _kind(values.plan.slot_shapes[slot]) == kind]
        if fitting:
            buffer = fitting[0]
        elif self._free[kind]:
            buffer = self._free[kind].pop()
        else:
            buffer = self.fresh("buffer")
            self._kinds[buffer] = kind
        assert isinstance(step.function, np.ufunc)
        given = ", ".join(self.value(values, slot) for slot in step.operands)
        self.write(f"{self.known_as(step.function.__name__, step.function)}({given}, {buffer})")
        values.names[step.result] = buffer
        for slot in dying:
            if values.names[slot] != buffer:
                self._free[self._kinds[values.names[slot]]].append(values.names[slot])

    def note(self, step: Step) -> str:
        shape = super().note(step)
        is_in_buffer = self.loop == (self._step, self._flow.body) and step.result in self._own
        return f"{step.instruction.name}: {shape}" if is_in_buffer else shape

    def drop(self, values: Values, slots: Sequence[int]) -> None:
        # Buffers are let go of where they are taken.
        super().drop(values, [slot for slot in slots if values is not self._state or slot not in self._own])

    def _carry(self, names: Sequence[str], counter: _Counter | None) -> None:
        """Let the results of the body take the places of its arguments, and buffers change theirs."""
        body, state = self._flow.body, self._state
        changed = [leaf for leaf in range(len(names)) if not body.is_invariant(leaf)]
        if counter is not None:
            changed.remove(counter.leaf)
        moves = {names[leaf]: self.value(state, body.results[leaf]) for leaf in changed}
        loose = [name for name in self._kinds if name not in moves.values()]
        for name in self._kinds:
            if name not in moves:
                fitting = [other for other in loose if self._kinds[other] == self._kinds[name]]
                moves[name] = name if name in fitting else fitting[0]
                loose.remove(moves[name])
        moves = {name: value for name, value in moves.items() if name != value}
        if moves:
            self.write(f"{', '.join(moves)} = {', '.join(moves.values())}")
        kept = state.kept | self._own | body.constant_slots | set(range(body.parameter_count))
        self.clear(state.names[slot] for slot in body.results if slot not in kept and slot in state.names)


def _is_pure(step: Step) -> bool:
    """Whether a step computes the same whenever its operands are the same, and does nothing else."""
    entry = find_opcode(step.instruction.opcode)
    is_kernel = step.function is not None and entry is not None and entry.role is Role.KERNEL
    return is_kernel and step.instruction.opcode not in _DRAWS


def _contiguous(array: Any) -> Any:
    """The array, its elements in memory one by one."""
    found = np.ascontiguousarray(array)
    found.flags.writeable = False
    return found


def _skipped(end: int, increment: int, count: int, iteration: int, until: int) -> tuple[int, int]:
    """The counter and the number of the iteration after as many circles as there are left."""
    left = -((count - end) // increment)
    if until >= 0:
        left = min(left, until - iteration)
    left -= left % _CIRCLE
    return (count + left * increment, iteration + left) if left > 0 else (count, iteration)


def _kind(shape: ArrayShape | BufferShape) -> _Kind:
    assert isinstance(shape, ArrayShape)
    return shape.element_type.storage, shape.dimensions


# Counters


def is_counted_to(flow: While, state: Sequence[Any], number: int) -> bool:
    """Whether a loop that begins with `state` will certainly go round so often."""
    counter = _counter_of(flow, set())
    if counter is None:
        return False
    start = state[counter.leaf]
    return isinstance(start, np.ndarray) and counter.end - int(start) >= number * counter.increment


def _counter_of(flow: While, hoisted: set[int]) -> _Counter | None:
    """The counter of a loop that is over when it reaches a constant."""
    body, condition = flow.body, flow.condition
    steps = [step for step in condition.steps if id(step) not in hoisted]
    if len(steps) != 1 or steps[0].result != condition.results[0]:
        return None
    compare = steps[0]
    attributes = compare.instruction.attributes
    if compare.instruction.opcode != "compare" or attributes.direction not in ("LT", "GT"):
        return None
    left, right = compare.operands if attributes.direction == "LT" else reversed(compare.operands)
    end = _integer(condition, right)
    if end is None or left >= condition.parameter_count:
        return None
    result = body.results[left]
    increase = next((step for step in body.steps if step.result == result), None)
    if increase is None or increase.instruction.opcode != "add" or left not in increase.operands:
        return None
    other = increase.operands[1 - increase.operands.index(left)]
    increment = _integer(body, other)
    readers = [step for step in body.steps if left in step.operands and step is not increase]
    is_shared = any(result in step.operands for step in body.steps) or body.results.count(result) > 1
    dtype = _kind(body.slot_shapes[left])[0]
    if increment is None or is_shared or increment < 1 or end + increment - 1 > np.iinfo(dtype).max:
        return None
    return _Counter(left, increment, end, increase, bool(readers) or left in body.results, dtype)


def _integer(plan: Plan, slot: int) -> int | None:
    """The constant in a slot, if it is an integer that NumPy has a type for."""
    value = plan.initial[slot] if slot in plan.constant_slots else None
    if not isinstance(value, np.ndarray) or value.ndim or value.dtype.kind not in "iu":
        return None
    return int(value)


# Buffers


def _own_slots(flow: While, hoisted: set[int]) -> frozenset[int]:
    """The slots of a loop's body whose values can be kept in buffers.

    They are results of NumPy's functions which none but these and a few others read that leave no references behind.
    A carried leaf is one if the result that takes its place is; neither may be carried elsewhere.
    """
    body, condition = flow.body, flow.condition
    read_otherwise = {slot for step in body.steps if not _only_reads(body, step) for slot in step.operands}
    read_otherwise |= {
        slot for step in condition.steps if not _only_reads(condition, step) for slot in step.operands
    } & set(range(body.parameter_count))
    read_otherwise |= {slot for step in body.steps if id(step) in hoisted for slot in step.operands}
    made = {
        step.result
        for step in body.steps
        if id(step) not in hoisted and _is_plain(body, step) and step.result not in read_otherwise
    }
    found = made - set(body.results)
    for leaf, result in enumerate(body.results):
        is_alone = body.results.count(result) == 1 and leaf not in body.results and leaf not in read_otherwise
        if result in made and is_alone and _kind(body.slot_shapes[leaf]) == _kind(body.slot_shapes[result]):
            found |= {leaf, result}
    return frozenset(found)


def _only_reads(plan: Plan, step: Step) -> bool:
    """Whether nothing is left of a step that refers to its operands."""
    return _is_plain(plan, step) or step.instruction.opcode in _LEAVE_NOTHING


def _is_plain(plan: Plan, step: Step) -> bool:
    """Whether a step is a NumPy function that gives one array, of a size that is known, and not of one element."""
    shape = plan.slot_shapes[step.result] if len(step.results) == 1 else None
    return (
        isinstance(step.function, np.ufunc)
        and isinstance(shape, ArrayShape)
        and bool(shape.dimensions)
        and not shape.dynamic_dimensions
    )
