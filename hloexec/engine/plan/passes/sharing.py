"""Passes that compute once what is computed again: equal values, copies in several fusions, constants.

Which values of a plan are equal, whatever they are: value numbers. Source: Muchnick, "Advanced Compiler Design and
Implementation" (1997), 12.4.

Sharing: small values that an optimizer has copied into several fusions are computed once. In a fusion, an instruction
costs XLA next to nothing, so it copies what is cheap into each fusion that needs it. Here, each instruction goes
through an array. Copies are found by what they compute from what, wherever they are. Copies of large values stay, which
would take memory until the last of them is read; regions share them (`plan.passes.fuse`).

Constant folding: small values that depend on constants alone are computed when the plan is made. Broadcasts of
constants are most of them. In a small module, each run would spend more time on them than on the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import Conversion, InstructionKernel, Kernel, View, map_tree
from hloexec.engine.plan.regions.region import RegionKernel
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


_FOLDED_BYTES = 1 << 14
"""Larger values take their time, and memory as long as the plan is kept."""
_MOST_FOLDED_BYTES = 1 << 18
"""What all folded values of a plan may take."""


def with_constants_folded(plan: Plan) -> Plan:
    """The plan with such values as constants.

    They get slots of their own: the program, which observers are shown, computes them where it says so.
    """
    constants = dict(plan.constants)
    folded: dict[int, int] = {}
    steps: list[Step] = []
    taken = 0
    for step in plan.steps:
        step = moved(step, folded)
        value = _folded(plan, step, constants) if taken < _MOST_FOLDED_BYTES else None
        if value is None:
            steps.append(step)
            continue
        folded[step.result] = slot = plan.new_slot(plan.slot_shapes[step.result])
        constants[slot] = value
        taken += value.nbytes
    return attrs.evolve(plan, steps=steps, constants=constants) if folded else plan


def _folded(plan: Plan, step: Step, constants: dict[int, Any]) -> Any:
    """The array that a step gives in every run, None where it may differ or is too large, or computing it fails."""
    if not isinstance(step.tree, int) or step.result in plan.results or not _is_simple(step.kernel):
        return None
    slots = (*step.operands, step.result)
    if not all(slot in constants for slot in step.operands):
        return None
    shapes = [plan.slot_shapes[slot] for slot in slots]
    if any(not isinstance(shape, ArrayShape) or shape.byte_size > _FOLDED_BYTES for shape in shapes):
        return None
    assert step.function is not None
    try:
        with np.errstate(all="ignore"):
            value = step.function(*[constants[slot] for slot in step.operands])
    except Exception:
        # A run says so, if it gets there.
        return None
    if not isinstance(value, np.ndarray) or value.shape != getattr(shapes[-1], "dimensions", None):
        return None
    if not value.flags.c_contiguous and not all(value.strides):
        # NumPy is faster on memory without zero strides; any other order is what the plan says of the slot.
        value = np.ascontiguousarray(value)
    value = value.view()
    value.flags.writeable = False
    return value


def _is_simple(kernel: Kernel | None) -> bool:
    """Whether a kernel gives the same whenever it runs, without calling computations or libraries."""
    if kernel is None or isinstance(kernel, RegionKernel) or not kernel.is_pure:
        return False
    if isinstance(kernel, InstructionKernel):
        return kernel.opcode is not None and not kernel.callees and kernel.random is None
    return isinstance(kernel, (Conversion, View)) or type(kernel) is Kernel
