"""Cycles: loops whose carried values may repeat, as in Newton's method once it has converged.

A loop that counts its iterations, and does not compute with the count, repeats from then on; the remaining iterations
can be reduced modulo the length of the cycle.
"""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.engine.plan.steps import Plan, While

_COMPARED_BYTES = 1 << 20
"""Carried values that take more are not compared."""


def with_cycles_watched(plan: Plan) -> Plan:
    """The plan, whose loops know which values to compare."""
    return plan.with_loops(_compared)


def _compared(flow: While) -> Mapping[str, tuple[int, ...]]:
    body = flow.body
    if flow.limit is None or flow.counters[flow.limit.leaf].is_read:
        return {}
    if not all(inner.is_pure for inner in (*body.steps, *flow.condition.steps)):
        return {}
    changed = [
        leaf
        for leaf, slot in enumerate(body.parameters)
        if not body.is_invariant(leaf) and leaf not in flow.counters and body.slot_shapes[slot].is_array
    ]
    shapes = [body.slot_shapes[body.parameters[leaf]] for leaf in changed]
    is_dynamic = any(getattr(shape, "dynamic_dimensions", ()) for shape in shapes)
    is_large = sum(shape.byte_size for shape in shapes) > _COMPARED_BYTES
    return {} if is_dynamic or is_large or not flow.sums.keys().isdisjoint(changed) else {"compared": tuple(changed)}
