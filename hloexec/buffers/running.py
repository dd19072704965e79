"""The memory that a run of hloexec needs, as opposed to that of a compiled program.

hloexec stores the result of every instruction, including those inside fusions, but no padding; it frees values after
their last use, and passes values that a caller keeps without copying them.
"""

from __future__ import annotations

import warnings

from hloexec.errors import HloWarning, UnsupportedError
from hloexec.exec.plans import plan_of
from hloexec.ir import Module
from hloexec.plan.memory import entry_peak_bytes
from hloexec.structs import frozen

__all__ = ["RunEstimate", "run_estimate"]


@frozen
class RunEstimate:
    """The most bytes that a run allocates beyond its inputs, on one device, and the instruction where it does."""

    bytes: int
    instruction: str | None


def run_estimate(module: Module) -> RunEstimate | None:
    """What `hloexec.run` is estimated to allocate; None where the module needs what hloexec does not have.

    Raises VerificationError where the module is not well-formed.
    """
    # The substitutes for unknown constants do not affect the memory of a run.
    with warnings.catch_warnings(action="ignore", category=HloWarning):
        try:
            plan = plan_of(module)
        except UnsupportedError:
            return None
        peak = entry_peak_bytes(plan)
    return RunEstimate(peak, None if plan.peak_step is None else plan.peak_step.instruction.name)
