"""Loops as Python functions, and what one iteration need not do that the one before has done.

What an iteration would compute anew from the same values stands before the loop. A loop counter, increased by a
constant and compared with one, is a Python number. Results of NumPy's own functions that only such functions read lie
in *buffers*, variables whose arrays the loop may overwrite, and so no iteration allocates them.

A loop that only counts its iterations, and does not compute with their number, may come back to values that it has had,
as Newton's method does once it has converged. Then it goes round in circles: what is left of it is known. The carried
values are looked at after 2 and 16 iterations in turns; where they are, bit for bit, those of the look before, all that
is left are the iterations beyond a multiple of 2 or 16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.exec.accumulation import Accumulation, accumulations_of
from hloexec.exec.code import Code, Place
from hloexec.exec.counters import CIRCLES, Limit, Tally, advanced, limit_of, skipped, tallies_of
from hloexec.exec.plan import Plan, Step, While
from hloexec.exec.purity import is_pure
from hloexec.exec.writing import Values, Writer
from hloexec.ir import ArrayShape, BufferShape
from hloexec.ops.product_sums import ProductSum

__all__ = ["LoopWriter"]

_HOISTED_BYTES = 1 << 20
"""What iterations have in common is kept from one to the next if it takes no more memory than this."""

_CONTIGUOUS_BYTES = 1 << 16
"""Broadcasts of up to so many bytes are laid out in full before the loop: NumPy is faster on memory without strides."""

_COMPARED_BYTES = 1 << 20
"""Carried values that take more are not compared."""

_FIRST_LOOK = 8
"""Iterations after which the carried values are first looked at."""

_LEAVE_NOTHING = frozenset({"dot"})
"""Opcodes whose kernels make a new array and keep none of their operands, as NumPy's functions do."""

_Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""What buffers that can take each other's place have in common."""


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
        self._tallies: dict[int, Tally] = {}
        """The carried leaves that are counted by numbers."""
        self._sums: dict[int, Accumulation] = {}
        """The carried leaves to which products are added, several at a time."""
        self._adding: dict[int, int] = {}
        """The steps that add them, by identity, each with its leaf."""
        self._adders: dict[int, str] = {}
        """The variables of what adds them."""

    def of_loop(self) -> Code:
        """The function."""
        state, condition, body = self._state, self._condition, self._flow.body
        self.name_parameters(state)
        names = [state.names[leaf] for leaf in range(body.parameter_count)]
        condition.names = dict(enumerate(names))
        condition.kept = frozenset(range(len(names)))
        hoisted = self._hoist(state) | self._hoist(condition)
        before_loop, self.lines = self.lines, []
        tallies = tallies_of(self._flow)
        limit = limit_of(self._flow, tallies, hoisted)
        asked = {slot for step in self._flow.condition.steps for slot in step.operands} if limit is None else set()
        self._tallies = {
            leaf: tally
            for leaf, tally in tallies.items()
            if (limit is not None and leaf == limit.leaf) or not (tally.is_read or leaf in asked)
        }
        self._sums = accumulations_of(self._flow)
        self._adding = {id(step): leaf for leaf, found in self._sums.items() for step in found.steps}
        self._own = _own_slots(self._flow, hoisted | self._adding.keys())
        self._adders = {leaf: self.fresh("products") for leaf in self._sums}
        first, count = self.fresh("first"), self.fresh("count")
        given = [self._counted(leaf, names, first, count, limit) for leaf in range(len(names))]
        self.indent = "        "
        if limit is not None:
            self.write(f"if {count} >= {limit.end}:")
        else:
            self._write_condition(hoisted)
        self.write(f"    return [{', '.join(given)}], iteration, True")
        if limit is not None and tallies[limit.leaf].is_read:
            self.write(f"{names[limit.leaf]} = {given[limit.leaf]}")
        self._write_body(names, hoisted)
        if limit is not None:
            self.write(f"{count} += {limit.increment}")
        self.write("iteration += 1")
        compared = [] if limit is None else self._compared(names, tallies[limit.leaf])
        before, circle, look = self.fresh("before"), self.fresh("circle"), self.fresh("look")
        if limit is not None and compared:
            now, skip = self.fresh("now"), self.known_as("skipped", partial(skipped, limit))
            self.write(f"if iteration == {look}:")
            self.write(f"    {now} = {', '.join(f'{name}.tobytes()' for name in compared)},")
            self.write(f"    if {now} == {before}:")
            self.write(f"        {count}, iteration = {skip}({count}, iteration, until, {circle})")
            self.write(f"    {before}, {circle} = {now}, {sum(CIRCLES)} - {circle}")
            self.write(f"    {look} += {circle}")
        self.indent = "    "
        self.write(f"return [{', '.join(given)}], iteration, False")
        within, self.lines = self.lines, []
        self.unpack(names, "state")
        self.write("state.clear()")
        if any(first in expression for expression in given):
            self.write(f"{first} = iteration")
        if limit is not None:
            self.write(f"{count} = int({names[limit.leaf]})")
        if compared:
            self.write(f"{before}, {circle}, {look} = None, {max(CIRCLES)}, iteration + {_FIRST_LOOK}")
        for leaf, found in self._sums.items():
            adder = self.known_as("product_sum", partial(ProductSum, found.form))
            self.write(f"{self._adders[leaf]} = {adder}({names[leaf]})")
            self.clear([names[leaf]])
        for name, (dtype, dimensions) in self._kinds.items():
            made = f"{name}.copy()" if name in names else f"{self.known_as('empty', np.empty)}({dimensions}, '{dtype}')"
            self.write(f"{name} = {made}")
        self.lines += before_loop
        self.write("while iteration != until:")
        self.lines += within
        return self.finished("state, iteration, until")

    def _counted(self, leaf: int, names: Sequence[str], first: str, count: str, limit: Limit | None) -> str:
        """The expression for a carried value where the loop ends."""
        if limit is not None and leaf == limit.leaf:
            return f"{self.known_as('number', partial(np.array, dtype=self._tallies[leaf].dtype))}({count})"
        if leaf in self._tallies:
            advance = self.known_as("advanced", partial(advanced, self._tallies[leaf]))
            return f"{advance}({names[leaf]}, iteration - {first})"
        if leaf in self._sums:
            return f"{self._adders[leaf]}.total()"
        return names[leaf]

    def _write_condition(self, hoisted: set[int]) -> None:
        condition = self._flow.condition
        self.loop = self._step, condition
        for step in condition.steps:
            if id(step) not in hoisted:
                self.step(self._condition, step)
        self.write(f"if not {self.value(self._condition, condition.results[0])}:")
        self.loop = None

    def _compared(self, names: Sequence[str], counter: Tally) -> list[str]:
        """The variables that tell whether the loop goes round in circles; none where more matters than they do."""
        body = self._flow.body
        if (
            counter.is_read
            or self._sums
            or not all(is_pure(step) for step in (*body.steps, *self._flow.condition.steps))
        ):
            return []
        changed = [leaf for leaf in range(len(names)) if not body.is_invariant(leaf) and leaf not in self._tallies]
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
            if is_pure(step) and known.issuperset(step.operands) and size <= _HOISTED_BYTES:
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

    def _write_body(self, names: Sequence[str], hoisted: set[int]) -> None:
        body, state = self._flow.body, self._state
        counting = {id(tally.increase) for tally in self._tallies.values()}
        self.loop = self._step, body
        for leaf in range(body.parameter_count):
            if leaf in self._own:
                self._kinds[names[leaf]] = _kind(body.slot_shapes[leaf])
        self.drop(state, body.dead_on_entry)
        for step in body.steps:
            if id(step) in self._adding:
                self._add(step, self._adding[id(step)])
            elif id(step) not in hoisted and id(step) not in counting:
                self.step(state, step)
        self._carry(names)
        self.loop = None

    def _add(self, step: Step, leaf: int) -> None:
        """Write a step that adds a product to a carried leaf, or nothing where it is another part of that."""
        found = self._sums[leaf]
        if step is found.product:
            lhs, rhs = self.value(self._state, found.lhs), self.value(self._state, found.rhs)
            line = f"{self.indent}{self._adders[leaf]}.add({lhs}, {rhs})"
            note = f"{step.instruction.shape}: {found.form.group} products at a time"
            self.lines.append((f"{line}  # {note}", Place(step, *(self.loop or (None, None)))))
            for slot in found.product.dead:
                if slot in self._state.names and slot != leaf and slot not in step.results:
                    self.drop(self._state, [slot])

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
        # NumPy wants the last argument of these two named; for others its place is faster.
        is_named = step.function in (np.maximum, np.minimum)
        out = f"out={buffer}" if is_named else buffer
        self.write(f"{self.known_as(step.function.__name__, step.function)}({given}, {out})")
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

    def _carry(self, names: Sequence[str]) -> None:
        """Let the results of the body take the places of its arguments, and buffers change theirs."""
        body, state = self._flow.body, self._state
        apart = self._tallies.keys() | self._sums.keys()
        changed = [leaf for leaf in range(len(names)) if not body.is_invariant(leaf) and leaf not in apart]
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


def _contiguous(array: Any) -> Any:
    """The array, its elements in memory one by one."""
    found = np.ascontiguousarray(array)
    found.flags.writeable = False
    return found


def _kind(shape: ArrayShape | BufferShape) -> _Kind:
    assert isinstance(shape, ArrayShape)
    return shape.element_type.storage, shape.dimensions


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
