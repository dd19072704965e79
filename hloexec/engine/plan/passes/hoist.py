"""Hoisting: loop-invariant steps move out of loops.

The loop carries the hoisted value as one more leaf, which no iteration changes.
"""

from __future__ import annotations

from typing import Any

import attrs

from hloexec.engine.plan.memory import with_lifetimes
from hloexec.engine.plan.steps import Plan, Scope, Step, While, placed_in

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
            known = all(slot in outside or slot in plan.constants for slot in step.operands)
            size = sum(plan.slot_shapes[slot].byte_size for slot in step.results)
            if not known or not step.is_pure or size > _HOISTED_BYTES:
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
