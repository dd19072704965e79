"""Cycles: loops whose carried values may repeat, as in Newton's method once it has converged.

A loop that counts its iterations, and does not compute with the count, repeats from then on; the remaining iterations
can be reduced modulo the length of the cycle.
"""

from __future__ import annotations

import attrs

from hloexec.engine.plan.steps import Plan, Step, While

_COMPARED_BYTES = 1 << 20
"""Carried values that take more are not compared."""


def with_cycles_watched(plan: Plan) -> Plan:
    """The plan, whose loops know which values to compare."""
    return attrs.evolve(plan, steps=[_with_cycles_watched(step) for step in plan.steps])


def _with_cycles_watched(step: Step) -> Step:
    flow = step.flow
    if not isinstance(flow, While) or flow.limit is None or flow.counters[flow.limit.leaf].is_read:
        return step
    body = flow.body
    if not all(inner.is_pure for inner in (*body.steps, *flow.condition.steps)):
        return step
    changed = [
        leaf
        for leaf, slot in enumerate(body.parameters)
        if not body.is_invariant(leaf) and leaf not in flow.counters and body.slot_shapes[slot].is_array
    ]
    if not flow.sums.keys().isdisjoint(changed):
        return step
    if any(getattr(body.slot_shapes[body.parameters[leaf]], "dynamic_dimensions", ()) for leaf in changed):
        return step
    size = sum(body.slot_shapes[body.parameters[leaf]].byte_size for leaf in changed)
    if not changed or size > _COMPARED_BYTES:
        return step
    return attrs.evolve(step, flow=attrs.evolve(flow, compared=tuple(changed)))
