"""Induction variables of loops, and loops whose carried values may repeat.

Cycles: loops whose carried values may repeat, as in Newton's method once it has converged. A loop that counts its
iterations, and does not compute with the count, repeats from then on; the remaining iterations can be reduced modulo
the length of the cycle.

In generated Python, such a loop counts with Python's integers. Source: Muchnick, "Advanced Compiler Design and
Implementation" (1997), 14.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.steps import Counter, Limit, Plan, While

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


def with_counters(plan: Plan) -> Plan:
    """The plan, whose loops know what they count."""
    return plan.with_loops(_counters)


def _counters(flow: While) -> Mapping[str, Any]:
    found = counters_of(flow)
    limit = limit_of(flow, found)
    condition = flow.condition
    read = {slot for inner in condition.steps for slot in inner.operands} | {*condition.results}
    asked = set() if limit is not None else read
    counters = {
        leaf: counter
        for leaf, counter in found.items()
        if (limit is not None and leaf == limit.leaf) or not (counter.is_read or condition.parameters[leaf] in asked)
    }
    return {"counters": counters, "limit": limit}


def counters_of(flow: While) -> dict[int, Counter]:
    """All counters among the leaves that a loop carries."""
    body = flow.body
    makers = {step.result: step for step in body.steps if step.instruction.opcode == "add"}
    counters: dict[int, Counter] = {}
    for leaf, (parameter, result) in enumerate(zip(body.parameters, body.results, strict=True)):
        increase = makers.get(result)
        if increase is None or parameter not in increase.operands:
            continue
        if not isinstance(body.slot_shapes[parameter], ArrayShape):
            continue
        increment = _integer(body, increase.operands[1 - increase.operands.index(parameter)])
        is_shared = body.results.count(result) > 1 or any(result in step.operands for step in body.steps)
        if increment is None or is_shared:
            continue
        is_read = parameter in body.results or any(
            parameter in step.operands for step in body.steps if step is not increase
        )
        counters[leaf] = Counter(increment, is_read)
    return counters


def limit_of(flow: While, counters: Mapping[int, Counter]) -> Limit | None:
    """The limit of a loop that asks for nothing else."""
    condition = flow.condition
    if len(condition.steps) != 1 or condition.steps[0].result != condition.results[0]:
        return None
    (compare,) = condition.steps
    attributes = compare.instruction.attributes
    if compare.instruction.opcode != "compare" or attributes.direction not in ("LT", "GT"):
        return None
    left, right = compare.operands if attributes.direction == "LT" else reversed(compare.operands)
    end = _integer(condition, right)
    leaf = condition.parameters.index(left) if left in condition.parameters else -1
    counter = counters.get(leaf)
    if end is None or counter is None or counter.increment < 1:
        return None
    shape = flow.body.slot_shapes[flow.body.parameters[leaf]]
    assert isinstance(shape, ArrayShape)
    largest = np.iinfo(shape.element_type.storage).max
    return Limit(leaf, counter.increment, end) if end + counter.increment - 1 <= largest else None


def trip_count(limit: Limit, start: int) -> int:
    """The trip count of a loop whose counter begins there."""
    return max(0, -((start - limit.end) // limit.increment))


def _integer(plan: Plan, slot: int) -> int | None:
    """The constant in a slot, if it is an integer that NumPy has a type for."""
    value = plan.constants.get(slot)
    if not isinstance(value, np.ndarray) or value.ndim or value.dtype.kind not in "iu":
        return None
    return int(value)
