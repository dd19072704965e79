"""Generating Python functions for loops, using what the passes have found out about them.

A counter is a Python number; values with buffers are written to arrays that the loop keeps; products that are added to
a sum are collected until several can be added at once. In a loop whose carried values may repeat, they are compared
after 2 and 16 iterations, alternately, with those at the previous check. If they have the same bits, the remaining
iterations are reduced modulo 2 or 16.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.engine.exec.code.compiling import Code, Line
from hloexec.engine.exec.code.scalars import is_scalar, operation_of
from hloexec.engine.exec.code.writer import Values, Writer
from hloexec.engine.plan.passes.induction import trip_count
from hloexec.engine.plan.passes.sharing import value_numbers
from hloexec.engine.plan.steps import Counter, Limit, Step, While
from hloexec.ops.elementwise.formula import choose
from hloexec.ops.resources import empty

_PERIODS = (2, 16)
"""Cycles whose lengths divide one of these are found: fixed points, numbers that alternate in their last bits."""

_FIRST_LOOK = 8
"""Iterations after which the carried values are first looked at."""


class LoopWriter(Writer):
    """Writes the function of a loop: (state, iteration, until) → (state, iteration, whether the loop is over)."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.instruction.name)
        assert isinstance(step.flow, While)
        self._step, self._flow = step, step.flow
        self._state = Values(self._flow.body)
        self._condition = Values(self._flow.condition)
        self._names: list[str] = []
        """The variables of the carried leaves."""
        self._scalars: frozenset[int] = frozenset()
        self._shared: dict[int, int] = {}
        """The slots of the body whose values the condition has computed just before, and their slots there."""
        self._buffers: list[str] = []
        body = self._flow.body
        self._sums = {
            leaf: step for step in body.steps for leaf in self._flow.sums if step.result == body.results[leaf]
        }
        """By carried leaf, the steps that add products to what nothing else in the loop reads."""
        self._first, self._count = "", ""
        """The variables of the first iteration's number, and of the counter that the loop's limit is for."""

    def of_loop(self) -> Code:
        """The function."""
        flow, body = self._flow, self._flow.body
        self.name_parameters(self._state)
        self._names = [self._state.names[slot] for slot in body.parameters]
        self._condition.names = dict(zip(flow.condition.parameters, self._names, strict=True))
        self._shared = self._values_of_both()
        self._condition.kept = frozenset((*flow.condition.parameters, *self._shared.values()))
        self._scalars = self._carried_scalars()
        self._first, self._count = self.fresh("first"), self.fresh("count")
        results = [self._counted(leaf) for leaf in range(len(self._names))]
        self.unpack(self._names, "state")
        self.write("state.clear()")
        if any(self._first in expression for expression in results):
            self.write(f"{self._first} = iteration")
        if flow.limit is not None:
            self.write(f"{self._count} = int({self._names[flow.limit.leaf]})")
        self._begin_scalars()
        look = self._begin_looks()
        self._make_buffers()
        for leaf, maker in self._sums.items():
            # Imported late: few loops add up products.
            from hloexec.ops.contraction.fast.dot import AddedProduct, ProductSum

            assert maker.kernel is not None and isinstance(maker.kernel.function, AddedProduct)
            begin = self.known_as("product_sum", partial(ProductSum, maker.kernel.function))
            self.write(f"{self._names[leaf]} = {begin}({self._names[leaf]})")
        self.write("while iteration != until:")
        self.indent = "        "
        self._write_condition()
        self.indent += "    "
        self._write_end(results, "True")
        self.indent = "        "
        if flow.limit is not None and flow.counters[flow.limit.leaf].is_read:
            slot = body.parameters[flow.limit.leaf]
            del self._state.names[slot]
            self._state.counts[slot] = self._count, results[flow.limit.leaf]
        self._write_body()
        if flow.limit is not None:
            self.write(f"{self._count} += {flow.limit.increment}")
        self.write("iteration += 1")
        look()
        self.indent = "    "
        self._write_end(results, "False")
        return self.compiled("state, iteration, until")

    def _write_end(self, results: Sequence[str], is_over: str) -> None:
        for leaf, maker in self._sums.items():
            name = self._names[leaf]
            self.lines.append((f"{self.indent}{name} = {name}.total()", Line(maker, self._step, self._flow.body)))
        self.write(f"return [{', '.join(results)}], iteration, {is_over}")

    def _counted(self, leaf: int) -> str:
        """The expression for a carried value where the loop ends."""
        counter, limit = self._flow.counters.get(leaf), self._flow.limit
        if leaf in self._scalars:
            return f"{self.known_as('asarray', np.asarray)}({self._names[leaf]})"
        if counter is None:
            return self._names[leaf]
        if limit is not None and leaf == limit.leaf:
            return f"{self.known_as('number', partial(np.array, dtype=self._dtype(leaf)))}({self._count})"
        advance = self.known_as("advanced", partial(_advanced, counter, self._dtype(leaf)))
        return f"{advance}({self._names[leaf]}, iteration - {self._first})"

    def _dtype(self, leaf: int) -> DType:
        shape = self._flow.body.slot_shapes[self._flow.body.parameters[leaf]]
        assert isinstance(shape, ArrayShape)
        return shape.element_type.storage

    # The condition and the body

    def _write_condition(self) -> None:
        condition, limit = self._flow.condition, self._flow.limit
        if limit is not None:
            self.write(f"if {self._count} >= {limit.end}:")
            return
        self.loop = self._step, condition
        for step in condition.steps:
            self.step(self._condition, step)
        (asked,) = condition.results
        again = self._condition.scalars.get(asked) or self.value(self._condition, asked)
        self.write(f"if not {again}:")
        self.loop = None

    def _write_body(self) -> None:
        body, state = self._flow.body, self._state
        counting = {body.results[leaf] for leaf in self._flow.counters}
        self.loop = self._step, body
        self.drop(state, body.dead_on_entry)
        for step in body.steps:
            if step.result not in counting:
                self.step(state, step)
        self._carry()
        self.loop = None

    def _carry(self) -> None:
        """Let the results of the body take the places of its arguments, and buffers change theirs."""
        body, state, names = self._flow.body, self._state, self._names
        changed = [
            leaf for leaf in range(len(names)) if not body.is_invariant(leaf) and leaf not in self._flow.counters
        ]
        moves = {
            names[leaf]: (self.scalar if leaf in self._scalars else self.value)(state, body.results[leaf])
            for leaf in changed
        }
        buffers = self._flow.buffers
        if buffers is not None:
            moves |= {self._buffers[buffer]: self._buffers[after] for buffer, after in enumerate(buffers.following)}
        moves = {name: value for name, value in moves.items() if name != value}
        if moves:
            self.write(f"{', '.join(moves)} = {', '.join(moves.values())}")
        kept = {*self._lasting(), *body.constants, *body.parameters}
        self.clear(state.names[slot] for slot in body.results if slot not in kept and slot in state.names)

    def _values_of_both(self) -> dict[int, int]:
        """What the body computes as the condition does; a loop that `jax.vmap` makes asks there which items go on."""
        flow, known = self._flow, dict[Hashable, int]()
        if flow.limit is not None:
            return {}
        before, own = (value_numbers(plan, known) for plan in (flow.condition, flow.body))
        asked = {before[step.result]: step.result for step in flow.condition.steps if step.result in before}
        return {
            step.result: asked[own[step.result]]
            for step in flow.body.steps
            if own.get(step.result) in asked and step.result not in flow.body.results
        }

    # Scalars

    def _carried_scalars(self) -> frozenset[int]:
        """The carried leaves that are NumPy's scalars from one iteration to the next."""
        flow, body = self._flow, self._flow.body
        return frozenset(
            leaf
            for leaf, slot in enumerate(body.parameters)
            if is_scalar(body.slot_shapes[slot])
            and not body.is_invariant(leaf)
            and leaf not in flow.counters
            and is_scalar(body.slot_shapes[body.results[leaf]])
        )

    def _begin_scalars(self) -> None:
        """Take the elements out of carried arrays without dimensions; those that stay arrays get a scalar besides where
        operators read them."""
        for plan, values in ((self._flow.body, self._state), (self._flow.condition, self._condition)):
            read = {
                slot
                for step in plan.steps
                if operation_of(step, plan.slot_shapes) is not None
                for slot in step.operands
            }
            for leaf, slot in enumerate(plan.parameters):
                if leaf in self._scalars:
                    values.scalars[slot] = values.names.pop(slot)
                elif slot in read and leaf not in self._flow.counters:
                    values.scalars[slot] = name = self.fresh(self._names[leaf])
                    self.write(f"{name} = {self._names[leaf]}[()]")
        for leaf in sorted(self._scalars):
            self.write(f"{self._names[leaf]} = {self._names[leaf]}[()]")

    # Buffers and sums

    def _lasting(self) -> set[int]:
        """The slots of the body whose variables stay as they are from one iteration to the next."""
        return self._in_buffers().union(*((step.operands[2], step.result) for step in self._sums.values()))

    def _in_buffers(self) -> set[int]:
        """The slots of the body whose values are in buffers."""
        buffers, body = self._flow.buffers, self._flow.body
        return set() if buffers is None else {*buffers.written, *(body.parameters[leaf] for leaf in buffers.carried)}

    def _make_buffers(self) -> None:
        buffers = self._flow.buffers
        if buffers is None:
            return
        carried = {buffer: self._names[leaf] for leaf, buffer in buffers.carried.items()}
        for buffer, shape in enumerate(buffers.shapes):
            assert isinstance(shape, ArrayShape)
            name = carried.get(buffer) or self.fresh("buffer")
            self._buffers.append(name)
            if buffer in carried:
                self.write(f"{name} = {name}.copy()")
            else:
                made = f"{self.known_as('empty', empty)}({shape.dimensions}, '{shape.element_type.storage}')"
                self.write(f"{name} = {made}")

    def kernel(self, values: Values, step: Step) -> None:
        buffers = self._flow.buffers
        if values is self._state and step.result in self._shared:
            asked = self._shared[step.result]
            for ours, theirs in ((values.names, self._condition.names), (values.scalars, self._condition.scalars)):
                if asked in theirs:
                    ours[step.result] = theirs[asked]
            return
        if values is self._state and step in self._sums.values():
            lhs, rhs, total = (self.value(values, slot) for slot in step.operands)
            self.write(f"{total}.add({lhs}, {rhs})")
            values.names[step.result] = total
            return
        if values is not self._state or buffers is None or step.result not in buffers.written:
            super().kernel(values, step)
            return
        buffer = self._buffers[buffers.written[step.result]]
        values.names[step.result] = buffer
        if step.function is choose:
            self._choose(buffer, *(self.value(values, slot) for slot in step.operands))
            return
        assert step.kernel is not None and step.kernel.ufunc is not None
        ufunc = step.kernel.ufunc
        operands = ", ".join(self.value(values, slot) for slot in step.operands)
        # NumPy wants the last argument of these two named; for others its place is faster.
        out = f"out={buffer}" if ufunc in (np.maximum, np.minimum) else buffer
        self.write(f"{self.known_as(ufunc.__name__, ufunc)}({operands}, {out})")

    def _choose(self, buffer: str, pred: str, on_true: str, on_false: str) -> None:
        """Write a select into a buffer, which may be that of an operand."""
        put = self.known_as("putmask", np.putmask)
        if buffer == pred:
            self.write(f"{buffer}[...] = {self.known_as('where', np.where)}({pred}, {on_true}, {on_false})")
        elif buffer == on_true:
            self.write(f"{put}({buffer}, {self.known_as('logical_not', np.logical_not)}({pred}), {on_false})")
        else:
            if buffer != on_false:
                self.write(f"{self.known_as('copyto', np.copyto)}({buffer}, {on_false})")
            self.write(f"{put}({buffer}, {pred}, {on_true})")

    def note(self, step: Step) -> str:
        shape = super().note(step)
        is_in_buffer = self.loop == (self._step, self._flow.body) and step.result in self._in_buffers()
        return f"{step.instruction.name}: {shape}" if is_in_buffer else shape

    def drop(self, values: Values, slots: Sequence[int]) -> None:
        lasting = self._lasting() if values is self._state else set()
        super().drop(values, [slot for slot in slots if slot not in lasting])

    # Cycles

    def _begin_looks(self) -> Callable[[], None]:
        """Write the setup for comparing carried values; returns a function that writes the comparison at the end of an
        iteration."""
        compared = [self._names[leaf] for leaf in self._flow.compared]
        limit = self._flow.limit
        if limit is None or not compared:
            return lambda: None
        before, period, look = self.fresh("before"), self.fresh("period"), self.fresh("look")
        self.write(f"{before}, {period}, {look} = None, {max(_PERIODS)}, iteration + {_FIRST_LOOK}")

        def write() -> None:
            now, skip = self.fresh("now"), self.known_as("skipped", partial(_skipped, limit))
            self.write(f"if iteration == {look}:")
            self.write(f"    {now} = {', '.join(f'{name}.tobytes()' for name in compared)},")
            self.write(f"    if {now} == {before}:")
            self.write(f"        {self._count}, iteration = {skip}({self._count}, iteration, until, {period})")
            self.write(f"    {before}, {period} = {now}, {sum(_PERIODS)} - {period}")
            self.write(f"    {look} += {period}")

        return write


def _skipped(limit: Limit, count: int, iteration: int, until: int, period: int) -> tuple[int, int]:
    """The counter and the number of the iteration after as many periods as are left."""
    left = trip_count(limit, count)
    if until >= 0:
        left = min(left, until - iteration)
    left -= left % period
    return (count + left * limit.increment, iteration + left) if left > 0 else (count, iteration)


def _advanced(counter: Counter, dtype: DType, start: Array, times: int) -> Array:
    """What a counter that began at `start` is after so many iterations; it wraps around."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    total = (int(start) + times * counter.increment) % (1 << 8 * unsigned.itemsize)
    return np.array(total, unsigned).view(dtype)
