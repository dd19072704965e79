"""Inlining: calls are replaced by the steps of the called computations.

Calls and fusions then cost nothing, and their steps can be fused with those of the caller. Each step records in its
scope which calls lead to it. Kernels were bound when the computation was lowered, and read their operands in the memory
order that was assigned there, whoever the caller is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from hloexec.core.structs import define
from hloexec.engine.plan.kernels import Forward, Leaf, SlotTree, leaves, map_tree
from hloexec.engine.plan.steps import Invocation, Mark, Plan, Scope, Step, placed_in


def inlined(plan: Plan, *, is_observed: bool, is_controlled: bool) -> Plan:
    """The plan with all calls inlined whose plans are not optimized by themselves."""
    if not any(map(_is_inlined, plan.program)):
        return plan
    inliner = Inliner(plan, is_observed=is_observed, is_controlled=is_controlled)
    for step in plan.program:
        inliner.copy(step)
    return inliner.plan()


def _is_inlined(step: Step) -> bool:
    return isinstance(step.flow, Invocation) and not step.flow.plan.is_finished


@define(eq=False)
class _InlinedCall:
    """A plan whose program is being copied, and how far it has come."""

    plan: Plan
    remaining: Iterator[Step]
    scope: Scope | None
    """What takes the place of its outermost scope; None for that itself."""
    slots: dict[int, int]
    """The slots of its values in the copy."""
    scopes: dict[int, Scope] = attrs.field(factory=dict)
    call: Step | None = None
    """The step that calls it, as the caller has it."""

    def scope_of(self, scope: Scope) -> Scope:
        """What takes the place of a scope."""
        return scope if self.scope is None else placed_in(scope, self.scope, self.scopes)


class Inliner:
    """A plan in the making: the copy of another, into which programs of others are copied."""

    def __init__(self, plan: Plan, *, is_observed: bool, is_controlled: bool = False) -> None:
        self._plan = plan
        self._is_observed = is_observed
        self._is_controlled = is_controlled
        self._program: list[Step] = []
        self._slot_shapes: list[Leaf] = []
        self._constants: dict[int, Any] = {}
        self._slot_of_constant: dict[int, int] = {}
        self._outer = _InlinedCall(plan, iter(()), None, {})
        for slot in plan.parameters:
            self._slot_of(self._outer, slot)

    def copy(self, step: Step) -> None:
        """Copy a step of the plan, or what it calls in its place."""
        if not _is_inlined(step):
            self._copy(self._outer, step)
            return
        assert isinstance(step.flow, Invocation)
        callee = step.flow.plan
        scope = Scope(callee.computation, step.instruction, step.scope)
        self.replace(step, self.inline(callee, self.values_of(step.operands), scope))

    def values_of(self, slots: Sequence[int]) -> list[int]:
        """The slots in the copy for the values of slots of the plan."""
        return [self._slot_of(self._outer, slot) for slot in slots]

    def replace(self, step: Step, tree: SlotTree) -> None:
        """The value of a step of the plan is to be found in `tree` of the copy."""
        self._replace(self._outer, step, tree)

    def inline(self, plan: Plan, arguments: Sequence[int], scope: Scope, *, is_shown_only: bool = False) -> SlotTree:
        """Copy the program of a plan whose parameter leaves are in these slots of the copy; returns its result's tree.

        `scope` takes the place of the plan's outermost one. `is_shown_only`: the results are known without the steps.
        """
        frames = [_InlinedCall(plan, iter(plan.program), scope, dict(zip(plan.parameters, arguments, strict=True)))]
        while True:
            frame = frames[-1]
            for step in frame.remaining:
                if _is_inlined(step):
                    frames.append(self._entered(frame, step))
                    break
                self._copy(frame, step, is_shown_only=is_shown_only)
            else:
                tree = self._tree_of(frame, frame.plan.result_tree)
                frames.pop()
                if frame.call is None:
                    return tree
                self._replace(frames[-1], frame.call, tree)

    def plan(self) -> Plan:
        """The copy."""
        return attrs.evolve(
            self._plan,
            program=self._program,
            steps=[step for step in self._program if not step.is_shown_only],
            slot_shapes=self._slot_shapes,
            constants=self._constants,
            parameters=tuple(self.values_of(self._plan.parameters)),
            result_tree=self._tree_of(self._outer, self._plan.result_tree),
        )

    def _entered(self, frame: _InlinedCall, call: Step) -> _InlinedCall:
        assert isinstance(call.flow, Invocation)
        callee = call.flow.plan
        scope = Scope(callee.computation, call.instruction, frame.scope_of(call.scope))
        arguments = (self._slot_of(frame, slot) for slot in call.operands)
        slots = dict(zip(callee.parameters, arguments, strict=True))
        return _InlinedCall(callee, iter(callee.program), scope, slots, call=call)

    def _copy(self, frame: _InlinedCall, step: Step, *, is_shown_only: bool = False) -> None:
        self._program.append(
            Step(
                step.instruction,
                frame.scope_of(step.scope),
                tuple(self._tree_of(frame, tree) for tree in step.operand_trees),
                self._tree_of(frame, step.tree),
                step.kernel,
                step.flow,
                step.extra_bytes,
                step.is_silent,
                step.is_shown_only or is_shown_only,
            )
        )

    def _replace(self, frame: _InlinedCall, step: Step, tree: SlotTree) -> None:
        scope = frame.scope_of(step.scope)
        if self._is_controlled:
            tree = map_tree(tree, lambda slot: self._forwarded(step, scope, slot))
        frame.slots.update(zip(step.results, leaves(tree), strict=True))
        if self._is_observed and not step.is_silent:
            self._program.append(Step(step.instruction, scope, (), tree, None, Mark.MARK, is_shown_only=True))

    def _forwarded(self, step: Step, scope: Scope, slot: int) -> int:
        """A slot for the caller's value, apart from the callee's."""
        new = self._new_slot(self._slot_shapes[slot])
        self._program.append(Step(step.instruction, scope, (slot,), new, Forward(), is_silent=True))
        return new

    def _new_slot(self, shape: Leaf) -> int:
        self._slot_shapes.append(shape)
        return len(self._slot_shapes) - 1

    def _tree_of(self, frame: _InlinedCall, tree: SlotTree) -> SlotTree:
        return map_tree(tree, lambda slot: self._slot_of(frame, slot))

    def _slot_of(self, frame: _InlinedCall, old: int) -> int:
        """The slot of a slot's value in the copy; equal constants share a slot."""
        new = frame.slots.get(old)
        if new is not None:
            return new
        plan = frame.plan
        new_slot = self._slot_of_constant.get(id(plan.constants[old])) if old in plan.constants else None
        if new_slot is None:
            new_slot = self._new_slot(plan.slot_shapes[old])
            if old in plan.constants:
                self._constants[new_slot] = plan.constants[old]
                self._slot_of_constant[id(plan.constants[old])] = new_slot
        frame.slots[old] = new_slot
        return new_slot
