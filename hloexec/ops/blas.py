"""NumPy's BLAS as a library with threads of its own.

OpenBLAS splits a product over its threads, and rounds differently for each way of splitting. Kernels that split their
work themselves, into blocks that follow from shapes alone, want each product to stay on the thread that asks for it:
that is faster for small products, and gives the same bits however many cores there are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["one_blas_thread"]

_AFFIXES = tuple((prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", ""))
"""What builds of OpenBLAS put around the names of its functions."""


class _Limit:
    """How many users there are of the limit, which holds for the whole process, and what it was without them."""

    lock = threading.Lock()
    users = 0
    threads = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this is entered by anyone, matrix products use one thread; nothing happens where BLAS is not OpenBLAS."""
    controls = _thread_controls()
    if controls is None:
        yield
        return
    get, put = controls
    with _Limit.lock:
        if _Limit.users == 0:
            _Limit.threads = get()
            put(1)
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if _Limit.users == 0:
                put(_Limit.threads)


@cache
def _thread_controls() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """OpenBLAS's functions that get and set how many threads it uses."""
    # Imported late: it takes a while, and most programs that import hloexec never need it.
    import ctypes

    try:
        library = ctypes.CDLL(_openblas())
    except OSError:
        return None
    for prefix, suffix in _AFFIXES:
        names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
        get, put = (getattr(library, name, None) for name in names)
        if get is not None and put is not None:
            get.argtypes, get.restype = (), ctypes.c_int
            put.argtypes, put.restype = (ctypes.c_int,), None
            return get, put
    return None


def _openblas() -> str:
    """The file of the OpenBLAS that this process has loaded; OSError where there is none to be found."""
    if sys.platform == "linux":
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if "openblas" in path.rpartition("/")[2]:
                return path
    raise OSError("no OpenBLAS")
