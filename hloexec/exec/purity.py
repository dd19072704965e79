"""Which steps do nothing but compute, so that it matters neither when they run nor how often."""

from __future__ import annotations

from hloexec.exec.plan import Step
from hloexec.ops.registry import Role, find_opcode

__all__ = ["DRAWS", "is_pure"]

DRAWS = frozenset({"rng", "rng-get-and-update-state"})
"""The opcodes that give something else each time they are asked, and so must be asked in order."""


def is_pure(step: Step) -> bool:
    """Whether a step computes the same whenever its operands are the same, and does nothing else."""
    entry = find_opcode(step.instruction.opcode)
    is_kernel = step.function is not None and entry is not None and entry.role is Role.KERNEL
    return is_kernel and step.instruction.opcode not in DRAWS
