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
from typing import Any

__all__ = ["blas_kernels", "one_blas_thread"]

_AFFIXES = tuple((prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", ""))
"""What builds of OpenBLAS put around the names of its functions."""


_TYPES: dict[str, Callable[[Any], tuple[tuple[Any, ...], Any]]] = {
    "get_corename": lambda c: ((), c.c_char_p),
    "get_num_threads": lambda c: ((), c.c_int),
    "set_num_threads": lambda c: ((c.c_int,), None),
}


class _Limit:
    """How many users there are of the limit, which holds for the whole process, and what it was without them."""

    lock = threading.Lock()
    users = 0
    threads = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this is entered by anyone, matrix products use one thread; nothing happens where BLAS is not OpenBLAS."""
    get, put = _function("get_num_threads"), _function("set_num_threads")
    if get is None or put is None:
        yield
        return
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
def blas_kernels() -> str:
    """The processor, in lower case, that OpenBLAS's kernels are made for; an empty text where BLAS is not OpenBLAS."""
    name = _function("get_corename")
    return "" if name is None else name().decode().lower()


@cache
def _function(verb: str) -> Callable[..., Any] | None:
    """OpenBLAS's function of this name, one of those in _TYPES; None where it is not there."""
    # Imported late: it takes a while, and most programs that import hloexec never need it.
    import ctypes

    try:
        library = ctypes.CDLL(_openblas())
    except OSError:
        return None
    for prefix, suffix in _AFFIXES:
        function: Callable[..., Any] | None = getattr(library, f"{prefix}openblas_{verb}{suffix}", None)
        if function is not None:
            function.argtypes, function.restype = _TYPES[verb](ctypes)  # type: ignore[attr-defined]
            return function
    return None


def _openblas() -> str:
    """The file of the OpenBLAS that this process has loaded; OSError where there is none to be found."""
    if sys.platform == "linux":
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if "openblas" in path.rpartition("/")[2]:
                return path
    raise OSError("no OpenBLAS")
