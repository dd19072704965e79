"""Liveness: the last use of each value of a plan, which completes a plan so that it can run."""

from __future__ import annotations

from hloexec.engine.plan.memory import annotate_peaks_within
from hloexec.engine.plan.steps import Plan, inner_plans

_LARGE_BYTES = 1 << 18
"""Where less is made, freeing operands early is not worth the looking."""


def with_lifetimes(plan: Plan, *, may_reuse: bool) -> Plan:
    """The plan, ready to run: its steps are its own, and know what dies with them.

    Where arrays may be reused, a step also knows which operand's array it may write to (`Kernel.overwrites`): of one
    that dies with it, and occurs once. Whether anybody else holds that array only a run can tell.
    """
    plan.steps = [step.copied() for step in plan.steps]
    needed = set(plan.results) | plan.constants.keys()
    for step in reversed(plan.steps):
        touched = dict.fromkeys((*step.operands, *step.results))
        step.dead = tuple(slot for slot in touched if slot not in needed)
        step.is_large = getattr(step.instruction.shape, "byte_size", 0) >= _LARGE_BYTES
        if may_reuse and step.kernel is not None and step.kernel.overwrites is not None:
            target = step.operands[step.kernel.overwrites]
            if target in step.dead and step.operands.count(target) == 1:
                step.reused = target
        needed.update(touched)
    plan.dead_on_entry = tuple(slot for slot in plan.parameters if slot not in needed)
    plan.initial = [plan.constants.get(slot) for slot in range(len(plan.slot_shapes))]
    plan.depth = _depth(plan)
    annotate_peaks_within(plan)
    plan.is_finished = True
    return plan


def _depth(plan: Plan) -> int | None:
    """How deep the plans that a plan runs nest; None where one of them exchanges values with others."""
    most = 0
    for step in plan.steps:
        if step.function is not None:
            continue
        inner = inner_plans(step.flow)
        if not inner:
            return None
        for plan_within in inner:
            if plan_within.depth is None:
                return None
            most = max(most, plan_within.depth)
    return most + 1
