"""Constant folding: small values that depend on constants alone are computed when the plan is made.

Broadcasts of constants are most of them. In a small module, each run would spend more time on them than on the rest.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import Conversion, InstructionKernel, Kernel, View
from hloexec.engine.plan.passes.numbering import moved
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.engine.plan.steps import Plan, Step

_FOLDED_BYTES = 1 << 14
"""Larger values take their time, and memory as long as the plan is kept."""
_MOST_BYTES = 1 << 18
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
        value = _folded(plan, step, constants) if taken < _MOST_BYTES else None
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
