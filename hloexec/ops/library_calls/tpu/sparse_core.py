"""Computations that SparseCores run beside a TPU's other units."""

from __future__ import annotations

from hloexec.core.ir import Instruction
from hloexec.ops.registry import custom_call


@custom_call("TODO(b/522284627)")
class SparseCoreCall:
    """What the computation that it calls gives for the operands: a scatter or a gather, say.

    The name is the one that TPUs' compiler gives to these calls. Source: modules optimized for TPUs.
    """

    @staticmethod
    def invokes(instruction: Instruction) -> str:
        (name,) = instruction.attributes.called_computations
        return str(name)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return None if len(instruction.attributes.called_computations) == 1 else "it does not call one computation"
