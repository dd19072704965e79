"""Passes on loops: invariant steps move out, bodies get buffers, short loops are unrolled.

Hoisting: loop-invariant steps move out of loops. The loop carries the hoisted value as one more leaf, which no
iteration changes.

Buffers: values of a loop's body get arrays that belong to the loop, so that iterations do not allocate them. They are
results of NumPy functions, which accept an output array. Only such functions, and others of whose operands nothing is
left, read them; a buffer is therefore free again once its value is dead.

Unrolling: loops with few iterations that can be computed by rows become a chain of steps, which fuse into one region. A
loop of five iterations reads and writes its carried arrays five times. In a fused chain, the values that one iteration
passes to the next stay in the cache.
"""

from __future__ import annotations

import collections
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import Leaf, leaves
from hloexec.engine.plan.memory import with_lifetimes
from hloexec.engine.plan.passes.induction import counters_of, limit_of, trip_count
from hloexec.engine.plan.passes.inline import Inliner
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.engine.plan.steps import Buffers, Plan, Scope, Step, While, placed_in
from hloexec.ops.costs import note_trip_count
from hloexec.ops.elementwise.formula import choose
from hloexec.ops.indexing.fast.indexing import WindowWriter
from hloexec.ops.movement.fast.movement import Joining

_HOISTED_BYTES = 1 << 20
"""What iterations have in common is kept from one to the next if it takes no more memory than this."""


def with_invariants_hoisted(plan: Plan, *, is_observed: bool) -> Plan:
    """The plan with such steps before their loops."""
    hoisting = _Hoisting(plan, is_observed=is_observed)
    steps: list[Step] = []
    for step in plan.steps:
        steps += hoisting.of(step) if isinstance(step.flow, While) else [step]
    return attrs.evolve(plan, steps=steps, constants=hoisting.constants)


class _Hoisting:
    """Moves steps out of the loops of one plan."""

    def __init__(self, plan: Plan, *, is_observed: bool) -> None:
        self._plan = plan
        self._is_observed = is_observed
        self.constants: dict[int, Any] = dict(plan.constants)
        self._slot_of_constant = {id(value): slot for slot, value in plan.constants.items()}

    def of(self, loop: Step) -> list[Step]:
        """A loop, with the steps that now stand before it."""
        flow = loop.flow
        assert isinstance(flow, While)
        before: list[Step] = []
        body, from_body = self._without_invariants(flow.body, flow.body, loop, before)
        condition, from_condition = self._without_invariants(flow.condition, flow.body, loop, before)
        if not before:
            return [loop]
        outside = (*from_body.values(), *from_condition.values())
        shapes = [self._plan.slot_shapes[slot] for slot in outside]
        in_body = (*from_body, *map(body.new_slot, shapes[len(from_body) :]))
        in_condition = (*map(condition.new_slot, shapes[: len(from_body)]), *from_condition)
        body = attrs.evolve(body, parameters=(*body.parameters, *in_body), result_tree=(*_as_tuple(body), *in_body))
        condition = attrs.evolve(condition, parameters=(*condition.parameters, *in_condition))
        unread = tuple(map(self._plan.new_slot, shapes))
        flow = attrs.evolve(
            flow,
            body=with_lifetimes(body, may_reuse=True),
            condition=with_lifetimes(condition, may_reuse=True),
        )
        trees = (*loop.operand_trees, *outside)
        return [*before, attrs.evolve(loop, operand_trees=trees, tree=(*loop.results, *unread), flow=flow)]

    def _without_invariants(
        self, plan: Plan, body: Plan, loop: Step, before: list[Step]
    ) -> tuple[Plan, dict[int, int]]:
        """A loop's body or condition without the hoisted steps, and the new slots of its values.

        Only those that its other steps (or observers) need are told.
        """
        outside = {
            parameter: loop.operands[leaf] for leaf, parameter in enumerate(plan.parameters) if body.is_invariant(leaf)
        }
        moved: dict[int, int] = {}
        rest: list[Step] = []
        for step in plan.steps:
            is_invariant = all(slot in outside or slot in plan.constants for slot in step.operands)
            size = sum(plan.slot_shapes[slot].byte_size for slot in step.results)
            if not is_invariant or not step.is_pure or size > _HOISTED_BYTES:
                rest.append(step)
                continue
            for slot in step.results:
                outside[slot] = moved[slot] = self._plan.new_slot(plan.slot_shapes[slot])
            before.append(self._moved(step, plan, loop, outside))
        needed = {slot for step in rest for slot in step.operands} | {*plan.results}
        if self._is_observed:
            needed |= moved.keys()
        return attrs.evolve(plan, steps=rest), {slot: new for slot, new in moved.items() if slot in needed}

    def _moved(self, step: Step, plan: Plan, loop: Step, outside: dict[int, int]) -> Step:
        """The hoisted step."""
        operands = tuple(outside[slot] if slot in outside else self._constant(plan, slot) for slot in step.operands)
        tree = tuple(outside[slot] for slot in step.results)
        outer = Scope(plan.computation, loop.instruction, loop.scope)
        scope = placed_in(step.scope, outer, {})
        return Step(step.instruction, scope, operands, tree if len(tree) != 1 else tree[0], step.kernel, is_silent=True)

    def _constant(self, plan: Plan, slot: int) -> int:
        """The slot outside the loop of a constant of the loop."""
        value = plan.constants[slot]
        if id(value) not in self._slot_of_constant:
            new = self._slot_of_constant[id(value)] = self._plan.new_slot(plan.slot_shapes[slot])
            self.constants[new] = value
        return self._slot_of_constant[id(value)]


def _as_tuple(plan: Plan) -> tuple[Any, ...]:
    return plan.result_tree if isinstance(plan.result_tree, tuple) else (plan.result_tree,)


_LEAVE_NOTHING = frozenset({"dot"})
"""Opcodes whose kernels make a new array and keep none of their operands, as NumPy's functions do."""


_MOST_CHOSEN = 1 << 11
"""Selects of more elements take less time with masks than where a processor guesses which element comes next."""


def with_buffers(plan: Plan) -> Plan:
    """The plan, with buffers assigned in its loops."""
    return plan.with_loops(_buffers)


def _buffers(flow: While) -> Mapping[str, Buffers]:
    own = None if flow.body.depth is None else _own_slots(flow)
    return {"buffers": _allocated(flow.body, own)} if own else {}


def _own_slots(flow: While) -> frozenset[int]:
    """The slots of a loop's body whose values can be kept in buffers.

    A carried leaf is one if the result that takes its place is; neither may be carried elsewhere.
    """
    body, condition = flow.body, flow.condition
    read_otherwise = {slot for step in body.steps for slot in _kept_operands(body, step)}
    for step in condition.steps:
        kept = _kept_operands(condition, step)
        read_otherwise |= {body.parameters[leaf] for leaf, slot in enumerate(condition.parameters) if slot in kept}
    made = {step.result for step in body.steps if _is_plain(body, step) and step.result not in read_otherwise}
    times = collections.Counter(body.results)
    slots = made - times.keys()
    for parameter, result in zip(body.parameters, body.results, strict=True):
        is_alone = times[result] == 1 and parameter not in times
        is_alike = _kind(body.slot_shapes[parameter]) == _kind(body.slot_shapes[result])
        if result in made and is_alone and is_alike and parameter not in read_otherwise:
            slots |= {parameter, result}
    return frozenset(slots)


def _kept_operands(plan: Plan, step: Step) -> Sequence[int]:
    """The operands to which something that is left of a step may refer."""
    if isinstance(step.function, WindowWriter):
        return step.operands[:1]
    is_copied = step.function is choose or isinstance(step.function, Joining)
    return () if is_copied or _is_plain(plan, step) or step.instruction.opcode in _LEAVE_NOTHING else step.operands


def _is_plain(plan: Plan, step: Step) -> bool:
    """Whether a step is a NumPy function that gives one array, of a size that is known, and not of one element; or a
    select of few elements."""
    shape = plan.slot_shapes[step.result] if len(step.results) == 1 else None
    is_choice = step.function is choose and getattr(shape, "element_count", _MOST_CHOSEN) < _MOST_CHOSEN
    return (
        step.kernel is not None
        and (step.kernel.ufunc is not None or is_choice)
        and isinstance(shape, ArrayShape)
        and bool(shape.dimensions)
        and not shape.dynamic_dimensions
    )


def _allocated(body: Plan, own: frozenset[int]) -> Buffers:
    """A buffer for each of these slots, the same for several that do not live at the same time."""
    shapes: list[Leaf] = []
    buffer_of: dict[int, int] = {}
    free: defaultdict[object, list[int]] = defaultdict(list)

    def new_buffer(slot: int) -> int:
        shapes.append(body.slot_shapes[slot])
        return len(shapes) - 1

    carried = {leaf: new_buffer(slot) for leaf, slot in enumerate(body.parameters) if slot in own}
    for leaf, buffer in carried.items():
        slot = body.parameters[leaf]
        buffer_of[slot] = buffer
        if slot in body.dead_on_entry:
            free[_kind(body.slot_shapes[slot])].append(buffer)
    for step in body.steps:
        dying = [slot for slot in dict.fromkeys(step.operands) if slot in step.dead and slot in own]
        if step.result in own:
            kind = _kind(body.slot_shapes[step.result])
            # A select takes least time over what it keeps where pred is false: the last operand.
            inputs = dying[::-1] if step.function is choose else dying
            fitting = [buffer_of[slot] for slot in inputs if _kind(body.slot_shapes[slot]) == kind]
            if not fitting:
                fitting = [free[kind].pop() if free[kind] else new_buffer(step.result)]
            buffer_of[step.result] = fitting[0]
        for slot in dying:
            if step.result not in own or buffer_of[slot] != buffer_of[step.result]:
                free[_kind(body.slot_shapes[slot])].append(buffer_of[slot])
    written = {slot: buffer for slot, buffer in buffer_of.items() if slot not in body.parameters}
    following = {buffer: written[body.results[leaf]] for leaf, buffer in carried.items()}
    loose = [buffer for buffer in range(len(shapes)) if buffer not in following.values()]
    for buffer in range(len(shapes)):
        if buffer not in following:
            kind = _kind(shapes[buffer])
            fitting = [other for other in loose if _kind(shapes[other]) == kind]
            following[buffer] = buffer if buffer in fitting else fitting[0]
            loose.remove(following[buffer])
    return Buffers(tuple(shapes), carried, written, tuple(following[buffer] for buffer in range(len(shapes))))


def _kind(shape: Leaf) -> object:
    """What buffers that can take each other's place have in common."""
    assert isinstance(shape, ArrayShape)
    return shape.element_type.storage, shape.dimensions


_MOST_ITERATIONS = 8
_MOST_STEPS = 512
"""More than these would make the plan long; few large regions are as good as one."""
_FEW_BYTES = 1 << 12
"""Steps whose results are no larger than this cost little wherever they run."""


def unrolled(plan: Plan, *, is_observed: bool) -> Plan:
    """The plan with such loops as steps."""
    counts = {id(step): _iterations(plan, step) for step in plan.program if isinstance(step.flow, While)}
    if not any(counts.values()):
        return plan
    inliner = Inliner(plan, is_observed=is_observed)
    for step in plan.program:
        times = counts.get(id(step), 0)
        if times:
            _unroll(inliner, step, times, is_observed=is_observed)
        else:
            inliner.copy(step)
    return inliner.plan()


def _unroll(inliner: Inliner, step: Step, times: int, *, is_observed: bool) -> None:
    """Copy the iterations of a loop; what its condition says is known, and only shown."""
    flow = step.flow
    assert isinstance(flow, While)
    state = inliner.values_of(step.operands)
    tree = step.tree
    for iteration in range(times + 1):
        if is_observed:
            scope = Scope(flow.condition.computation, step.instruction, step.scope, iteration)
            inliner.inline(flow.condition, state, scope, is_shown_only=True)
        if iteration < times:
            scope = Scope(flow.body.computation, step.instruction, step.scope, iteration)
            tree = inliner.inline(flow.body, state, scope)
            state = list(leaves(tree))
    note_trip_count(step.instruction, times)
    inliner.replace(step, tree)


def _iterations(plan: Plan, step: Step) -> int:
    """The trip count of an unrolled loop; 0 for others."""
    flow = step.flow
    assert isinstance(flow, While)
    limit = limit_of(flow, counters_of(flow))
    first = None if limit is None else plan.constants.get(step.operands[limit.leaf])
    if limit is None or not isinstance(first, np.ndarray):
        return 0
    times = trip_count(limit, int(first))
    if not 0 < times <= _MOST_ITERATIONS or times * len(flow.body.program) > _MOST_STEPS:
        return 0
    large = [inner for inner in flow.body.steps if _result_bytes(flow.body, inner) > _FEW_BYTES]
    is_by_rows = bool(large) and all(isinstance(inner.kernel, RegionKernel) for inner in large)
    return times if is_by_rows and all(inner.is_pure for inner in flow.body.steps if inner not in large) else 0


def _result_bytes(plan: Plan, step: Step) -> int:
    return sum(plan.slot_shapes[slot].byte_size for slot in step.results)
