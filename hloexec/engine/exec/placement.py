"""Ownership of arrays, and where in the arena those of a run that are large shall lie.

Ownership of arrays: a kernel may overwrite an operand's array if nothing else refers to it. References to an array are
not derived from the plan but counted when the step runs. An array may be overwritten if only its slot (and the tuple of
the step's operands) refers to it, it owns its memory, and it is writable. A view of it, another slot, the caller, a
constant or an observer would hold another reference. CPython counts references exactly; in other interpreters, or
without the global lock, nothing is overwritten.

An arena gives each array the smallest gap that is large enough, and knows nothing of those that follow: an array that
is needed for one step only may lie in front of one that stays, in a gap that is too small for what comes next. A plan
without large loops says how large its arrays are and how long they live, so that they can be packed before the run. The
arena takes that as advice: whether a place is free is counted there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs
import numpy as np

from hloexec.core.structs import define
from hloexec.engine.devices.varying import Varying
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.regions.block_program import Span, packed
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.resources import LEAST_BYTES, Placed, aligned, is_own


def is_free(slots: Sequence[object], slot: int) -> bool:
    """Whether only a slot and the tuple of a step's operands refer to an array, which owns its memory."""
    return _references(slots, slot) == _UNSHARED + 1 and is_own(slots[slot])


def free_classes(slots: Sequence[object], slot: int) -> tuple[bool, ...]:
    """The same for each class of a value of which devices have several."""
    split = slots[slot]
    # This name refers to it, too.
    if type(split) is not Varying or _references(slots, slot) != _UNSHARED + 2:
        return ()
    values = split.values
    return tuple(_references(values, number) == _UNSHARED and is_own(values[number]) for number in range(len(values)))


def is_held_twice(slots: Sequence[object], slot: int) -> bool:
    """Whether a slot and the tuple of a step's operands are all that holds a value."""
    return _references(slots, slot) == _UNSHARED + 1


def _references(slots: Sequence[object], slot: int) -> int:
    return sys.getrefcount(slots[slot])


def _unshared_references() -> int:
    """What `_references` gives for an array that only its slot refers to; -9 where counts mean nothing."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return _references([np.empty(1)], 0) if sys.implementation.name == "cpython" and has_lock else -9


def _unshared_variable() -> int:
    """The same where a variable takes the place of the slot."""
    array = np.empty(1)
    return -9 if _unshared_references() == -9 else sys.getrefcount(array)


_UNSHARED = _unshared_references()
UNSHARED_VARIABLE = _unshared_variable()
"""What `sys.getrefcount` gives for a variable whose array nothing else refers to; -9 where counts mean nothing."""


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
    per_step: list[list[int]] = []
    holds: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        sizes = [plan.slot_shapes[slot].byte_size for slot in step.results]
        made: list[int] = []
        per_step.append(made)
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
    return per_step


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
