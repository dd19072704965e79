"""Common subexpressions: what several steps of a plan compute alike is computed once.

`jax.vmap` of a loop writes its condition into the body again, and a gradient what the value has computed. Only small
values are shared: a large one would be kept in memory from its first use to its last, where computing it twice, within
regions, costs little. Source: Muchnick, "Advanced Compiler Design and Implementation" (1997), 12.4.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import InstructionKernel, Kernel, View, map_tree
from hloexec.engine.plan.steps import Plan, Step

SHARED_BYTES = 1 << 17
"""What takes no more than this may live on without a look at what else does."""
_LITTLE_BYTES = 1 << 12
"""Constants of so few bytes are compared by value."""


def with_values_shared(plan: Plan) -> Plan:
    """The plan without small steps that compute what an earlier one has computed."""
    numbering = Numbering()
    numbers = numbering.of_constants(plan)
    kept: dict[int, int] = {}
    """By value number, the slot that holds it."""
    copies: dict[int, int] = {}
    steps: list[Step] = []
    for step in plan.steps:
        step = moved(step, copies)
        number = numbering.of_step(plan, step, numbers)
        if number is not None:
            numbers[step.result] = number
            # What loops carry is recognised by the step that makes it.
            is_carried = step.result in plan.results or kept.get(number) in plan.results
            if number in kept and not is_carried:
                copies[step.result] = kept[number]
                continue
            kept.setdefault(number, step.result)
        steps.append(step)
    return attrs.evolve(plan, steps=steps) if copies else plan


def moved(step: Step, others: Mapping[int, int]) -> Step:
    """A step that reads other slots in the place of some."""
    if others.keys().isdisjoint(step.operands):
        return step
    trees = tuple(map_tree(tree, lambda slot: others.get(slot, slot)) for tree in step.operand_trees)
    return attrs.evolve(step, operand_trees=trees)


class Numbering:
    """Numbers for values: equal ones are known to be equal."""

    def __init__(self, most_bytes: int | None = SHARED_BYTES) -> None:
        """`most_bytes` is what a value takes at most that has a number; None: all have one."""
        self._most_bytes = most_bytes
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        """The number of a value that is described like this."""
        return self._numbers.setdefault(key, len(self._numbers))

    def of_constants(self, plan: Plan) -> dict[int, int]:
        """The numbers of a plan's constants, by slot."""
        return {slot: self.number(_constant_key(value)) for slot, value in plan.constants.items()}

    def of_step(self, plan: Plan, step: Step, numbers: Mapping[int, int]) -> int | None:
        """The number of what a step computes from operands with these numbers; those without get some of their own.
        None where it may differ from time to time, or is large."""
        shape = plan.slot_shapes[step.result] if isinstance(step.tree, int) else None
        if not isinstance(shape, ArrayShape) or (self._most_bytes is not None and shape.byte_size > self._most_bytes):
            return None
        what = _kernel_key(step.kernel)
        if what is None:
            return None
        return self.number((what, tuple(numbers.get(slot, (id(plan), slot)) for slot in step.operands)))


def _constant_key(value: Any) -> Hashable:
    if not isinstance(value, np.ndarray) or value.nbytes > _LITTLE_BYTES:
        return "known", id(value)
    return "known", value.dtype.str, value.dtype.name, value.shape, value.tobytes()


def _kernel_key(kernel: Kernel | None) -> Hashable:
    """What a kernel computes; None where that is not known.

    Instructions have one kernel if all is equal that it may depend on (`Lowering`): layouts, too, which say what a
    `bitcast` does, and a −0 that compares equal to a 0.
    """
    if isinstance(kernel, View):
        return "view", repr(kernel.function)
    if not isinstance(kernel, InstructionKernel) or not kernel.is_pure or kernel.random is not None:
        return None
    return None if kernel.callees else kernel
