"""Matrix kernels that suit the processor.

NumPy's BLAS chooses its kernels once, when it is loaded, by the processor's model. Models that it does not know get the
kernels of 2013 even where AVX-512 is there, at half the speed. `OPENBLAS_CORETYPE` overrules it, but only before NumPy
is loaded, so the command starts over with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["is_misjudged", "start_over_with_better_kernels"]

_VARIABLE = "OPENBLAS_CORETYPE"
_WITHOUT_AVX512 = frozenset({"haswell", "zen", "sandybridge", "nehalem", "prescott", "generic", "excavator"})
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What OpenBLAS's SkylakeX kernels use."""
_NAMES = tuple(f"{prefix}openblas_get_corename{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))
"""The function that names the kernels, as builds of OpenBLAS call it."""


def start_over_with_better_kernels() -> None:
    """Replace the process by one with other kernels, where NumPy's BLAS has misjudged the processor.

    Does nothing where the user has chosen, or where anything about it is not as expected. Nothing may have been read
    from standard input yet.
    """
    if _VARIABLE in os.environ or not sys.orig_argv:
        return
    flags = _processor_flags()
    if not flags >= _NEEDED or not is_misjudged(_kernels(), flags):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: "SkylakeX"})


def is_misjudged(kernels: str, flags: frozenset[str]) -> bool:
    """Whether kernels without AVX-512 were chosen for a processor, given its flags, that has all of it."""
    return kernels.lower() in _WITHOUT_AVX512 and flags >= _NEEDED


def _processor_flags() -> frozenset[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def _kernels() -> str:
    """The name of the kernels that NumPy's OpenBLAS has chosen, or nothing."""
    import numpy  # noqa: F401

    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        path = next(line.split(maxsplit=5)[5] for line in lines if "openblas" in line.rpartition("/")[2])
        library = ctypes.CDLL(path)
        for name in _NAMES:
            function = getattr(library, name, None)
            if function is not None:
                function.restype = ctypes.c_char_p
                return str(function().decode())
    except (OSError, StopIteration, IndexError, AttributeError, UnicodeDecodeError):
        pass
    return ""
