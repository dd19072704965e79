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
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from hloexec.core.process import better_kernels

_COUNTS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_NUMBERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
"""Variables of MPICH and Open MPI, and of what starts processes as they do."""


def is_for_all_ranks(words: Sequence[str]) -> bool:
    """Whether this process is one of several ranks of MPI, which carry out a command line together; not where the first
    of them hands out tasks to the others (`--executor mpi`)."""
    return not _hands_out_tasks(words) and _started_ranks() > 1


def is_worker(words: Sequence[str]) -> bool:
    """Whether this process is a rank of MPI to which the first one hands out tasks, and which says nothing itself."""
    return _hands_out_tasks(words) and _greatest(_NUMBERS) > 0


def _hands_out_tasks(words: Sequence[str]) -> bool:
    return "--executor=mpi" in words or ("--executor", "mpi") in pairwise(words)


def _started_ranks() -> int:
    """How many processes were started with this one, as ranks of MPI."""
    return max(1, _greatest((*_COUNTS, "SLURM_NTASKS") if "PMIX_RANK" in os.environ else _COUNTS))


def _greatest(names: Sequence[str]) -> int:
    """The greatest number that one of these variables has; 0 where none has one."""
    return max((int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()), default=0)


_PATIENCE_SECONDS = 2.0
"""How long a rank that cannot start lets the first one speak, which may be in the same situation."""


@contextmanager
def ending_all_ranks() -> Iterator[None]:
    """The start of a rank: where it fails, all are ended, which would otherwise wait for this one forever.

    What starts them ends the others for a signal, and for the exit of a rank that has loaded MPI. So MPI comes before
    NumPy, whose BLAS ends a process for which there is too little memory.
    """
    try:
        os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")
        import mpi4py.MPI  # noqa: F401

        yield
    except Exception as error:
        try:
            from hloexec.cli.problems import show_problem

            if _greatest(_NUMBERS):
                time.sleep(_PATIENCE_SECONDS)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            show_problem("error", f"a rank cannot start MPI, which needs hloexec[mpi] and memory: {reason}", "red")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def libraries_print_to_stderr() -> Iterator[None]:
    """Standard output is the command's: what a library in C prints there meanwhile goes to standard error.

    HiGHS reports numerical difficulties in that way, whatever it is told.
    """
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(output, 1)
        os.close(output)


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
