"""Choosing BLAS kernels that match the processor.

NumPy's BLAS chooses its kernels once, when it is loaded, by the processor's model. For unknown models it uses Haswell
kernels even if the processor has AVX-512, at half the speed. `OPENBLAS_CORETYPE` overrides the choice, but only before
NumPy is loaded, so the command restarts itself with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hloexec.core.openblas import openblas_kernels

_VARIABLE = "OPENBLAS_CORETYPE"
_WITHOUT_AVX512 = frozenset({"haswell", "zen", "sandybridge", "nehalem", "prescott", "generic", "excavator"})
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What OpenBLAS's SkylakeX kernels use."""


def restart_with_better_kernels() -> None:
    """Replace the process by one with better kernels, if NumPy's BLAS has chosen kernels without AVX-512 wrongly.

    Does nothing if the user has set the variable, or if anything is unexpected. Must be called before standard input
    is read.
    """
    if _VARIABLE in os.environ or not sys.orig_argv:
        return
    flags = _processor_flags()
    if not flags >= _NEEDED or not lacks_avx512_kernels(openblas_kernels(), flags):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: "SkylakeX"})


def lacks_avx512_kernels(kernels: str, flags: frozenset[str]) -> bool:
    """Whether BLAS chose kernels without AVX-512 (named by processor) for a processor that supports it."""
    return kernels in _WITHOUT_AVX512 and flags >= _NEEDED


def _processor_flags() -> frozenset[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()
