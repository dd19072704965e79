"""Showing observers the program of a plan while its optimized steps run.

Steps may combine several instructions, reorder them, or omit those whose values are not needed. Observers nevertheless
see each instruction of the program in order, as soon as its value is available. A fused region also returns its
intermediate values, unless they are so large that they should not be there all at once; a value that no step computes
is computed for the observer from values that are available.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import Kernel
from hloexec.engine.plan.regions.region import Region, RegionKernel
from hloexec.engine.plan.steps import Plan, Step

_MOST_BYTES = 1 << 26
"""What the intermediate values of a region may take together."""


@define(eq=False)
class Shown:
    """What is shown of a plan."""

    steps: list[Step]
    """The steps that run, regions so that they give all of their values."""
    program: list[Step]
    last: list[tuple[int, ...]]
    """For each step of the program the slots that nothing needs once it has been shown."""
    computed: frozenset[int]
    """The slots that no step fills."""
    needed: list[tuple[int, ...]]
    """For each step of the program the slots that are filled before it can be shown."""
    is_computed: list[bool]
    """For each step of the program whether its kernel has to run for the observer."""


_known: WeakKeyDictionary[Plan, Shown] = WeakKeyDictionary()


def shown(plan: Plan) -> Shown:
    """What is shown of a plan; worked out once."""
    found = _known.get(plan)
    if found is None:
        found = _known[plan] = _shown(plan)
    return found


def _shown(plan: Plan) -> Shown:
    filled = {*plan.parameters, *plan.constants}
    steps = []
    for step in plan.steps:
        # A view that stands in its region and outside is there once its region has run.
        if step.kernel is None or not step.results or not filled.issuperset(step.results):
            is_shown = isinstance(step.kernel, RegionKernel) and not step.is_silent
            is_shown = is_shown and _intermediate_bytes(plan, step) <= _MOST_BYTES
            steps.append(_revealing(step, filled) if is_shown else step)
            filled.update(steps[-1].results)
    last_use: dict[int, int] = {}
    shown_at: dict[int, int] = {}
    for position, step in enumerate(plan.program):
        for slot in (*step.operands, *step.results):
            last_use[slot] = position
        for slot in step.results:
            shown_at.setdefault(slot, position)
    # A step has run once what it fills is shown.
    for step in steps:
        position = max((shown_at.get(slot, 0) for slot in step.results), default=len(plan.program) - 1)
        for slot in step.operands:
            last_use[slot] = max(last_use.get(slot, 0), position)
    kept = {*plan.results, *plan.constants}
    ends: list[list[int]] = [[] for _ in plan.program]
    for slot, position in last_use.items():
        if slot not in kept:
            ends[position].append(slot)
    computed = frozenset(slot for step in plan.program for slot in step.results if slot not in filled)
    return Shown(
        steps=steps,
        program=plan.program,
        last=[tuple(slots) for slots in ends],
        computed=computed,
        needed=[(*step.operands, *(slot for slot in step.results if slot not in computed)) for step in plan.program],
        is_computed=[step.kernel is not None and not computed.isdisjoint(step.results) for step in plan.program],
    )


def _intermediate_bytes(plan: Plan, step: Step) -> int:
    """What the values take that a region has and does not return."""
    assert isinstance(step.kernel, RegionKernel)
    slots = {part.step.result for part in step.kernel.region.parts}.difference(step.results)
    return sum(plan.slot_shapes[slot].byte_size for slot in slots)


def _revealing(step: Step, filled: Collection[int]) -> Step:
    """A region's step that fills the slots of all of its instructions but those of values that it computes again."""
    assert isinstance(step.kernel, RegionKernel)
    region = step.kernel.region
    slots = tuple(part.step.result for part in region.parts if part.step.result not in filled)
    return attrs.evolve(step, tree=slots, kernel=Kernel(_AllValues(region, slots)))


@frozen(eq=False)
class _AllValues:
    region: Region
    slots: tuple[int, ...]

    def __call__(self, *operands: Array) -> tuple[Any, ...]:
        values = self.region.intermediate_values(*operands)
        return tuple(values[slot] for slot in self.slots)
