"""The memory that a run of hloexec needs, as opposed to that of a compiled program.

hloexec stores the result of every instruction, including those inside fusions, but no padding; it frees values after
their last use, and passes values that a caller keeps without copying them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloexec.core.ir import FirstElement, Module
from hloexec.core.structs import frozen
from hloexec.engine.exec.plans import plan_of
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.errors import ResourceError, UnsupportedError, unwarned
from hloexec.ops.registry import Role, role_of


@frozen
class RunEstimate:
    """The most bytes that a run allocates beyond its inputs, on one device, and the instruction where it does."""

    bytes: int
    """How many bytes."""
    instruction: str | None


def run_estimate(module: Module) -> RunEstimate | None:
    """What `hloexec.run` is estimated to allocate; None where the module needs what hloexec does not have.

    Raises VerificationError where the module is not well-formed.
    """
    # The substitutes for unknown constants do not affect the memory of a run.
    with unwarned():
        try:
            plan = plan_of(module)
        except UnsupportedError:
            return None
        except ResourceError:
            sizes = {name: sum(sizes) for name, sizes in _constants_to_make(module)}
            largest = max(sizes, key=lambda name: sizes[name], default=None)
            return RunEstimate(sum(sizes.values()), largest)
        peak = entry_peak_bytes(plan)
    return RunEstimate(peak, None if plan.peak_step is None else plan.peak_step.instruction.name)


def _constants_to_make(module: Module) -> Iterator[tuple[str, list[int]]]:
    """The constants that take memory only in a run, which is too large for a plan, with the bytes of their leaves."""
    for computation in module:
        for instruction in computation:
            if role_of(instruction) is Role.CONSTANT:
                leaves = instruction.attributes.literal.leaves()
                yield instruction.name, [leaf.shape.byte_size for leaf in leaves if isinstance(leaf.held, FirstElement)]
