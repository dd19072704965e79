"""Sharing: small values that an optimizer has copied into several fusions are computed once.

In a fusion, an instruction costs XLA next to nothing, so it copies what is cheap into each fusion that needs it. Here,
each instruction goes through an array. Copies are found by what they compute from what, wherever they are. Copies of
large values stay, which would take memory until the last of them is read; regions share them (`plan.passes.fuse`).
"""

from __future__ import annotations

import attrs

from hloexec.engine.plan.passes.numbering import moved, value_numbers
from hloexec.engine.plan.steps import Plan, Step

_MOST_BYTES = 1 << 17
"""What takes no more than this may live on without a look at what else does."""


def with_copies_shared(plan: Plan) -> Plan:
    """The plan without such copies, and without what nothing needs."""
    copies = _copies(plan)
    needed = {*plan.results}
    kept: list[Step] = []
    for step in reversed(plan.steps):
        if step.is_pure and needed.isdisjoint(step.results):
            continue
        if step.result in copies:
            needed.add(copies[step.result])
        else:
            needed.update(step.operands)
            kept.append(step)
    if len(kept) == len(plan.steps):
        return plan
    return attrs.evolve(plan, steps=[moved(step, copies) for step in reversed(kept)])


def _copies(plan: Plan) -> dict[int, int]:
    """The slots of copies, and those of what they are copies of."""
    numbers, first, found = value_numbers(plan), dict[int, int](), dict[int, int]()
    for step in plan.steps:
        number = numbers.get(step.result)
        # What loops carry is recognised by the step that makes it.
        is_carried = step.result in plan.results
        if number is not None and not is_carried and plan.slot_shapes[step.result].byte_size <= _MOST_BYTES:
            original = first.setdefault(number, step.result)
            if original != step.result:
                found[step.result] = original
    return found
