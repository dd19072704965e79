"""How the process of a command is set up: it keeps freed memory, and has BLAS kernels that match the processor.

A run allocates and frees many large arrays. By default the C library maps each of them anew and unmaps it when it is
freed, and the system clears every page again: that takes as long as computing with it.

NumPy's BLAS chooses its kernels once, when it is loaded, by the processor's model. For unknown models it uses Haswell
kernels even if the processor has AVX-512, at half the speed. `OPENBLAS_CORETYPE` overrides the choice, but only before
NumPy is loaded, so the command restarts itself with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

from hloexec.core.process import better_kernels

_RANKS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables of MPICH and Open MPI, and of what starts processes as they do."""


def is_for_all_ranks(words: Sequence[str]) -> bool:
    """Whether this process is one of several ranks of MPI, which carry out a command line together; not where the first
    of them hands out tasks to the others (`--executor mpi`)."""
    executors = [after for word, after in pairwise(words) if word == "--executor"]
    return "mpi" not in executors and "--executor=mpi" not in words and _started_ranks() > 1


def _started_ranks() -> int:
    """How many processes were started with this one, as ranks of MPI."""
    names = (*_RANKS, "SLURM_NTASKS") if "PMIX_RANK" in os.environ else _RANKS
    texts = [os.environ.get(name, "") for name in names]
    return max((int(text) for text in texts if text.isdecimal()), default=1)


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Options of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Reuse the memory of freed arrays for later ones, until the process ends.

    Does nothing if the C library is not glibc, or if the user has set its options.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)):
        mallopt(option, value)


def restart_with_better_kernels() -> None:
    """Replace the process by one with better kernels, if NumPy's BLAS has chosen kernels without AVX-512 wrongly.

    Does nothing if the user has set the variable, or if anything is unexpected. Must be called before standard input
    is read.
    """
    variables = better_kernels() if sys.orig_argv else {}
    if not variables:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})
