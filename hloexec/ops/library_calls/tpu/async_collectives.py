"""Asynchronous collectives as TPUs represent them: fusions that start one, continue it alongside other work, and finish
it.

Each of these fusions repeats the collective. The first wraps it in `AsyncCollectiveStart`; the last takes the result of
the first, and wraps the collective in `AsyncCollectiveDone`.
"""

from __future__ import annotations

from hloexec.core.ir import Computation, Instruction, TupleShape
from hloexec.errors import UnsupportedError
from hloexec.ops.registry import custom_call


@custom_call("AsyncCollectiveStart")
class AsyncCollectiveStart:
    """(what the collective is given, what it gives, state...), for the collective that is the operand.

    Source: modules optimized for TPUs, where the fusion around it aliases its first result with its operand.
    """

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        (collective,) = computation.operands_of(instruction)
        if not collective.operands:
            raise UnsupportedError(
                f"%{instruction.name} in computation {computation.name} starts %{collective.name}, which is no "
                "collective but given; take the computation as a whole"
            )
        return (collective.operands[0], collective.name)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        shape = instruction.shape
        if len(instruction.operands) == 1 and isinstance(shape, TupleShape) and len(shape.elements) >= 2:
            return None
        return "it does not wrap one collective"


@custom_call("AsyncCollectiveDone")
class AsyncCollectiveDone:
    """What the collective gave when it began: the second operand. The first is what it was given, then follow the
    collective once more, and its state.

    Source: modules optimized for TPUs, where the fusion around it aliases its result with this operand.
    """

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        return (instruction.operands[1],)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return None if len(instruction.operands) >= 2 else "it ends no collective that AsyncCollectiveStart began"
