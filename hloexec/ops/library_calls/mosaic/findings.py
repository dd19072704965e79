"""What runs of kernels tell: warnings of what hardware hides, and which reads of undefined memory reach a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloexec.core.ir import Instruction
from hloexec.errors import UnsupportedError, warn
from hloexec.ops.library_calls.mosaic.ir import Kernel, Operation
from hloexec.ops.library_calls.mosaic.machine import Finding

_MOST_FINDINGS = 8


def tell(kernel: Kernel, findings: Sequence[Finding]) -> None:
    """A warning for each finding, and one for those that would be too many."""
    for finding in findings[:_MOST_FINDINGS]:
        warn(f"{kernel.describe()}: {finding}")
    if len(findings) > _MOST_FINDINGS:
        warn(f"{kernel.describe()}: {len(findings) - _MOST_FINDINGS} more of this kind")


def reaching(reads: Sequence[Operation], changes: Callable[[Sequence[Operation]], bool]) -> list[Operation]:
    """The reads of undefined elements on which results depend: these change with what stands for them, as `changes`
    says of some operations."""
    return [operation for operation in reads if changes([operation])] if reads and changes(reads) else []


def shared_memory(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    """Outputs of a call with the operands whose memory they share; UnsupportedError for parts of nested tuples."""
    aliases = []
    for alias in instruction.attributes.output_to_operand_aliasing:
        if alias.operand_index or len(alias.output_index) > 1:
            raise UnsupportedError("its outputs share memory with parts of nested tuples")
        aliases.append((alias.output_index[0] if alias.output_index else 0, alias.operand_number))
    return tuple(aliases)
