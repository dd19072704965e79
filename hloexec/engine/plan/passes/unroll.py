"""Unrolling: loops with few iterations that can be computed by rows become a chain of steps, which fuse into one
region.

A loop of five iterations reads and writes its carried arrays five times. In a fused chain, the values that one
iteration passes to the next stay in the cache.
"""

from __future__ import annotations

import numpy as np

from hloexec.engine.plan.kernels import leaves
from hloexec.engine.plan.passes.induction import counters_of, limit_of, trip_count
from hloexec.engine.plan.passes.inline import Inliner
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.engine.plan.steps import Plan, Scope, Step, While
from hloexec.ops.costs import note_trip_count

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
