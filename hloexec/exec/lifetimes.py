"""Lifetimes: where each value of a plan is needed for the last time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from hloexec.exec.in_place import settle
from hloexec.exec.memory import annotate_peak
from hloexec.exec.plan import Conditional, Invocation, Plan, SlotTree, Step, While, leaves
from hloexec.ir import ArrayShape, BufferShape, Computation

__all__ = ["finished"]

_LARGE_BYTES = 1 << 18
"""Where less is made, freeing operands early is not worth the looking."""


def finished(
    computation: Computation,
    steps: Sequence[Step],
    parameter_count: int,
    slot_shapes: list[ArrayShape | BufferShape],
    constants: dict[int, Any],
    tree: SlotTree,
    *,
    plain_steps: Sequence[Step],
) -> Plan:
    """The plan of these steps, whose result is `tree`: each step knows what dies with it.

    `plain_steps` are the same, none of them made of several; where they are others, the plan has copies of them.
    """
    results = leaves(tree)
    if plain_steps is not steps:
        plain_steps = [attrs.evolve(step) for step in plain_steps]
        _settle_all(plain_steps, set(results) | constants.keys())
    needed = _settle_all(steps, set(results) | constants.keys())
    plan = Plan(
        computation=computation,
        steps=tuple(steps),
        plain_steps=tuple(plain_steps),
        parameter_count=parameter_count,
        initial=[constants.get(slot) for slot in range(len(slot_shapes))],
        results=results,
        result_tree=tree,
        slot_shapes=slot_shapes,
        dead_on_entry=tuple(slot for slot in range(parameter_count) if slot not in needed),
        constant_slots=frozenset(constants),
    )
    plan.depth = _depth(plan)
    annotate_peak(plan)
    return plan


def _settle_all(steps: Sequence[Step], needed: set[int]) -> set[int]:
    """Tell each step what dies with it, given what is needed after all of them; returns what is touched or needed."""
    for step in reversed(steps):
        touched = dict.fromkeys((*step.operands, *step.results))
        step.dead = tuple(slot for slot in touched if slot not in needed)
        settle(step)
        step.is_large = getattr(step.instruction.shape, "byte_size", 0) >= _LARGE_BYTES
        needed.update(touched)
    return needed


def _depth(plan: Plan) -> int | None:
    """How deep the plans that a plan runs nest; None where one of them exchanges values with others."""
    most = 0
    for step in plan.steps:
        flow = step.flow
        plans: tuple[Plan, ...] = ()
        if isinstance(flow, Invocation):
            plans = (flow.plan,)
        elif isinstance(flow, While):
            plans = (flow.condition, flow.body)
        elif isinstance(flow, Conditional):
            plans = tuple(branch.plan for branch in flow.branches)
        elif step.function is None:
            return None
        for plan_within in plans:
            if plan_within.depth is None:
                return None
            most = max(most, plan_within.depth)
    return most + 1
