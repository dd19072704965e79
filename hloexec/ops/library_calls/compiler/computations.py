"""Calls of computations that the text holds, which XLA has marked for another unit or another compiler."""

from __future__ import annotations

from hloexec.core.ir import Instruction
from hloexec.ops.registry import custom_call


def _called(instruction: Instruction) -> tuple[str, ...]:
    attributes = instruction.attributes
    return (*attributes.called_computations, *(() if attributes.to_apply is None else (attributes.to_apply,)))


class _Call:
    """What the one computation that it calls gives for the operands."""

    @staticmethod
    def invokes(instruction: Instruction) -> str:
        (name,) = _called(instruction)
        return name


@custom_call("HostExecute")
class HostExecute(_Call):
    """What the computation that it calls gives for the operands: XLA runs it on the host, beside the device.

    Refused where the text names none, as in modules whose host program was compiled apart. Source: XLA, host offloading
    (host_offloading_prepare makes it of a call on the thread `host`).
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        count = len(_called(instruction))
        what = "it runs a program on the host that the text does not hold"
        return None if count == 1 else what if not count else f"it calls {count} computations"


@custom_call("__triton", "__triton_gemm", "__triton_softmax")
class TritonCall(_Call):
    """What the computation that it calls gives for the operands: XLA:GPU makes a Triton kernel of it.

    Modules of 2023 have these calls in place of fusions of kind kCustom. Refused where the text names no computation.
    Source: XLA, gemm_rewriter_triton.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        count = len(_called(instruction))
        return None if count == 1 else f"it calls {count or 'no'} computations, but its kernel is made of one"
