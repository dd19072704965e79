"""Hoisting: loop-invariant steps move out of loops.

The loop carries the hoisted value as one more leaf, which no iteration changes. A hoisted broadcast is materialized,
and so is a slice, because NumPy is faster on memory without zero strides and gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.engine.plan.kernels import Kernel, Leaf
from hloexec.engine.plan.memory import with_lifetimes
from hloexec.engine.plan.steps import Plan, Scope, Step, While, placed_in

_HOISTED_BYTES = 1 << 20
"""What iterations have in common is kept from one to the next if it takes no more memory than this."""

_CONTIGUOUS_BYTES = 1 << 16
"""Broadcasts, and views with gaps, of up to this many bytes are materialized."""


def with_invariants_hoisted(plan: Plan, *, is_observed: bool) -> Plan:
    """The plan with such steps before their loops."""
    hoisting = _Hoisting(plan, is_observed=is_observed)
    steps: list[Step] = []
    for step in plan.steps:
        steps += hoisting.of(step) if isinstance(step.flow, While) else [step]
    return attrs.evolve(plan, steps=steps, slot_shapes=hoisting.slot_shapes, constants=hoisting.constants)


class _Hoisting:
    """Moves steps out of the loops of one plan."""

    def __init__(self, plan: Plan, *, is_observed: bool) -> None:
        self._is_observed = is_observed
        self.slot_shapes: list[Leaf] = list(plan.slot_shapes)
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
        unused = [self.slot_shapes[slot] for slot in outside]
        in_body = (*from_body, *_unread(body, unused[len(from_body) :]))
        in_condition = (*_unread(condition, unused[: len(from_body)]), *from_condition)
        body = attrs.evolve(body, parameters=(*body.parameters, *in_body), result_tree=(*_as_tuple(body), *in_body))
        condition = attrs.evolve(condition, parameters=(*condition.parameters, *in_condition))
        unread = tuple(self._new_slot(self.slot_shapes[slot]) for slot in outside)
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
            known = all(slot in outside or slot in plan.constants for slot in step.operands)
            size = sum(plan.slot_shapes[slot].byte_size for slot in step.results)
            if not known or not step.is_pure or size > _HOISTED_BYTES:
                rest.append(step)
                continue
            for slot in step.results:
                outside[slot] = moved[slot] = self._new_slot(plan.slot_shapes[slot])
            before.append(self._moved(step, plan, loop, outside))
        needed = {slot for step in rest for slot in step.operands} | {*plan.results}
        if self._is_observed:
            needed |= moved.keys()
        return attrs.evolve(plan, steps=rest), {slot: new for slot, new in moved.items() if slot in needed}

    def _moved(self, step: Step, plan: Plan, loop: Step, outside: dict[int, int]) -> Step:
        """The hoisted step."""
        operands = tuple(outside[slot] if slot in outside else self._constant(plan, slot) for slot in step.operands)
        kernel = step.kernel
        assert kernel is not None
        sizes = sum(plan.slot_shapes[slot].byte_size for slot in step.results)
        if step.instruction.opcode == "broadcast" and sizes <= _CONTIGUOUS_BYTES:
            kernel = Kernel(partial(_contiguous, kernel.function))
        elif kernel.is_view and sizes <= _CONTIGUOUS_BYTES:
            kernel = Kernel(partial(_without_gaps, kernel.function))
        tree = tuple(outside[slot] for slot in step.results)
        outer = Scope(plan.computation, loop.instruction, loop.scope)
        scope = placed_in(step.scope, outer, {})
        return Step(step.instruction, scope, operands, tree if len(tree) != 1 else tree[0], kernel, is_silent=True)

    def _new_slot(self, shape: Leaf) -> int:
        self.slot_shapes.append(shape)
        return len(self.slot_shapes) - 1

    def _constant(self, plan: Plan, slot: int) -> int:
        """The slot outside the loop of a constant of the loop."""
        value = plan.constants[slot]
        if id(value) not in self._slot_of_constant:
            new = self._slot_of_constant[id(value)] = self._new_slot(plan.slot_shapes[slot])
            self.constants[new] = value
        return self._slot_of_constant[id(value)]


def _unread(plan: Plan, shapes: Sequence[Leaf]) -> tuple[int, ...]:
    """New slots of a plan, for what the loop carries and it does not need."""
    first = len(plan.slot_shapes)
    plan.slot_shapes = [*plan.slot_shapes, *shapes]
    return tuple(range(first, len(plan.slot_shapes)))


def _as_tuple(plan: Plan) -> tuple[Any, ...]:
    return plan.result_tree if isinstance(plan.result_tree, tuple) else (plan.result_tree,)


def _contiguous(kernel: Any, *operands: Any) -> Any:
    """A kernel's result, its elements in memory one by one."""
    # Not ascontiguousarray, which gives a scalar a dimension.
    found = np.asarray(kernel(*operands), order="C").view()
    found.flags.writeable = False
    return found


def _without_gaps(kernel: Any, *operands: Any) -> Any:
    """A kernel's result, its elements in memory one by one, in the order in which they lie."""
    found = kernel(*operands)
    if found.flags.forc or not all(found.strides):
        return found
    found = found.copy(order="K")
    found.flags.writeable = False
    return found
