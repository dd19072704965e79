"""Placement: where in the arena a run's large arrays shall lie.

An arena gives each array the smallest gap that is large enough, and knows nothing of those that follow: an array that
is needed for one step only may lie in front of one that stays, in a gap that is too small for what comes next. A plan
without large loops says how large its arrays are and how long they live, so that they can be packed before the run. The
arena takes that as advice: whether a place is free is counted there.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.core.structs import define
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.regions.packing import Span, packed
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.resources import LEAST_BYTES, Placed, aligned

_IMPROVEMENT = 0.97
"""What packing has to save."""
_MOST_ARRAYS = 1 << 10
"""Packing more takes too long: each is compared with all others."""


@define
class _Arrays:
    """The large arrays of a plan's steps, in the order in which they are made."""

    sizes: list[int] = attrs.field(factory=list)
    spans: list[Span] = attrs.field(factory=list)
    users: list[int] = attrs.field(factory=list)
    """How many slots hold each at the moment."""

    def add(self, size: int, step: int, users: int) -> int:
        self.sizes.append(aligned(size))
        self.spans.append((step, step))
        self.users.append(users)
        return len(self.sizes) - 1


def place_arrays(plan: Plan) -> None:
    """Have the steps of a finished plan make their arrays in places that were chosen for all of them at once, if that
    takes less memory than the smallest gap for each.
    """
    arrays = _Arrays()
    made = _made(plan, arrays)
    if made is None or not 1 < len(arrays.sizes) <= _MOST_ARRAYS:
        return
    usual, least = _in_smallest_gaps(arrays.sizes, arrays.spans)
    if least > _IMPROVEMENT * usual:
        return
    starts, end = packed(arrays.sizes, arrays.spans)
    if end > _IMPROVEMENT * usual:
        return
    for step, numbers in zip(plan.steps, made, strict=True):
        if numbers and step.function is not None:
            step.function = Placed(step.function, [(arrays.sizes[number], starts[number]) for number in numbers])


def _made(plan: Plan, arrays: _Arrays) -> list[list[int]] | None:
    """The numbers of the large arrays that each step makes; None where steps run plans that make some."""
    found: list[list[int]] = []
    holds: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        sizes = [plan.slot_shapes[slot].byte_size for slot in step.results]
        made: list[int] = []
        found.append(made)
        if step.function is None and max(*sizes, step.extra_bytes, 0) >= LEAST_BYTES:
            return None
        is_view = _may_be_view(plan, step)
        shown = step.operands[0] if is_view else step.reused
        for slot, size in zip(step.results, sizes, strict=True):
            array = holds.get(shown)
            if array is not None and (is_view or (arrays.users[array] == 1 and arrays.sizes[array] == aligned(size))):
                arrays.users[array] += 1
                holds[slot] = array
            elif size >= LEAST_BYTES and not is_view and step.kernel is not None and step.kernel.ufunc is None:
                # NumPy's own functions make arrays for themselves.
                holds[slot] = arrays.add(size, number, 1)
                made.append(holds[slot])
            shown = NO_SLOT
        if step.function is not None and step.extra_bytes >= LEAST_BYTES:
            made.append(arrays.add(step.extra_bytes, number, 0))
        for slot in step.dead:
            array = holds.get(slot)
            if array is not None:
                arrays.users[array] -= 1
                arrays.spans[array] = arrays.spans[array][0], number
    for array, users in enumerate(arrays.users):
        if users:
            arrays.spans[array] = arrays.spans[array][0], len(plan.steps)
    return found


def _may_be_view(plan: Plan, step: Step) -> bool:
    """Whether the result may show the first operand: a padding that only cuts does, though others make an array."""
    if step.kernel is None or not step.operands or step.result == NO_SLOT:
        return False
    sizes = [plan.slot_shapes[slot].byte_size for slot in (step.result, step.operands[0])]
    return step.kernel.is_view or (step.instruction.opcode == "pad" and sizes[0] <= sizes[1])


def _in_smallest_gaps(sizes: Sequence[int], spans: Sequence[Span]) -> tuple[int, int]:
    """Where the last array ends if each takes the smallest gap as it is made, and the most bytes in use at once."""
    taken: list[tuple[int, int, int]] = []
    end = most = 0
    for size, (first, last) in zip(sizes, spans, strict=True):
        taken = [entry for entry in taken if entry[2] >= first]
        gaps, free = [], 0
        for start, stop, _ in taken:
            if start - free >= size:
                gaps.append((start - free, free))
            free = stop
        start = min(gaps)[1] if gaps else free
        taken = sorted([*taken, (start, start + size, last)])
        end = max(end, start + size)
        most = max(most, sum(stop - begin for begin, stop, _ in taken))
    return end, most
