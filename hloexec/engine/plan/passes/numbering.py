"""Which values of a plan are equal, whatever they are: value numbers.

Source: Muchnick, "Advanced Compiler Design and Implementation" (1997), 12.4.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import InstructionKernel, Kernel, View, map_tree
from hloexec.engine.plan.steps import Plan, Step

_LITTLE_BYTES = 1 << 12
"""Constants of so few bytes are compared by value."""


def moved(step: Step, others: Mapping[int, int]) -> Step:
    """A step that reads other slots in the place of some."""
    if others.keys().isdisjoint(step.operands):
        return step
    trees = tuple(map_tree(tree, lambda slot: others.get(slot, slot)) for tree in step.operand_trees)
    return attrs.evolve(step, operand_trees=trees)


def value_numbers(plan: Plan, known: dict[Hashable, int] | None = None) -> dict[int, int]:
    """Numbers for values of a plan, by slot: equal ones are known to be equal. None for what may differ from time to
    time. `known` are those of a plan that is given the same arguments."""
    known = {} if known is None else known
    numbers = {slot: known.setdefault(("leaf", leaf), len(known)) for leaf, slot in enumerate(plan.parameters)}
    for slot, value in plan.constants.items():
        numbers[slot] = known.setdefault(_constant_key(value), len(known))
    for step in plan.steps:
        shape = plan.slot_shapes[step.result] if isinstance(step.tree, int) else None
        what = _kernel_key(step.kernel)
        if isinstance(shape, ArrayShape) and what is not None:
            key = what, tuple(numbers.get(slot, (id(plan), slot)) for slot in step.operands)
            numbers[step.result] = known.setdefault(key, len(known))
    return numbers


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
