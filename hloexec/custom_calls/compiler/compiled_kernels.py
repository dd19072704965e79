"""Kernels that a compiler of their own makes: a dump holds their code, not what it computes; they are refused."""

from __future__ import annotations

from typing import Any

from hloexec.custom_calls.registry import add_custom_call
from hloexec.errors import UnsupportedError
from hloexec.ir import Instruction

__all__: list[str] = []

_COMPILERS = {
    "Mosaic for TPUs (Pallas)": ("tpu_custom_call",),
    "Mosaic for GPUs (Pallas)": ("mosaic_gpu", "mosaic_gpu_v2"),
    "Triton": ("__gpu$xla.gpu.triton", "triton_kernel_call", "triton_kernel_call_ffi"),
    "CUDA (PTX)": ("__gpu$xla.gpu.ptx",),
    "CUTLASS (CuTe DSL)": (
        "CuteDSLRT_NvJaxCutlassCall",
        "__xla_gpu_cutedsl_call_v3",
        "__xla_gpu_cutedsl_collective_v3",
    ),
}
"""Who compiles what stands behind a target."""


def _add(target: str, compiler: str) -> None:
    reason = (
        f"it is a kernel that {compiler} compiles, and only that compiler understands the code in the text; give it a "
        f"function with hloexec.register_custom_call(target, function) or --custom-call"
    )

    def evaluate(*operands: object) -> Any:
        raise UnsupportedError(reason)

    def supports(instruction: Instruction) -> str | None:
        return reason

    documentation = f"What a kernel computes that its author wrote for {compiler}.\n\nSource: JAX, Pallas; XLA:GPU."
    add_custom_call(target, evaluate, supports=supports, documentation=documentation)


for _compiler, _targets in _COMPILERS.items():
    for _target in _targets:
        _add(_target, _compiler)
