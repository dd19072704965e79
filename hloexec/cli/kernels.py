"""Matrix kernels that suit the processor.

NumPy's BLAS chooses its kernels once, when it is loaded, by the processor's model. Models that it does not know get the
kernels of 2013 even where AVX-512 is there, at half the speed. `OPENBLAS_CORETYPE` overrules it, but only before NumPy
is loaded, so the command starts over with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hloexec.openblas import openblas_kernels

__all__ = ["is_misjudged", "start_over_with_better_kernels"]

_VARIABLE = "OPENBLAS_CORETYPE"
_WITHOUT_AVX512 = frozenset({"haswell", "zen", "sandybridge", "nehalem", "prescott", "generic", "excavator"})
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What OpenBLAS's SkylakeX kernels use."""


def start_over_with_better_kernels() -> None:
    """Replace the process by one with other kernels, where NumPy's BLAS has misjudged the processor.

    Does nothing where the user has chosen, or where anything about it is not as expected. Nothing may have been read
    from standard input yet.
    """
    if _VARIABLE in os.environ or not sys.orig_argv:
        return
    flags = _processor_flags()
    if not flags >= _NEEDED or not is_misjudged(openblas_kernels(), flags):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: "SkylakeX"})


def is_misjudged(kernels: str, flags: frozenset[str]) -> bool:
    """Whether kernels without AVX-512, by the name of their processor, were chosen for one that has all of it."""
    return kernels in _WITHOUT_AVX512 and flags >= _NEEDED


def _processor_flags() -> frozenset[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()
