"""NumPy's BLAS as a library with threads of its own.

OpenBLAS splits a product over its threads, and rounds differently for each way of splitting. Kernels that split their
work themselves, into blocks that follow from shapes alone, want each product to stay on the thread that asks for it:
that is faster for small products, and gives the same bits however many cores there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hloexec.openblas import openblas_function

__all__ = ["one_blas_thread"]


class _Limit:
    """How many users there are of the limit, which holds for the whole process, and what it was without them."""

    lock = threading.Lock()
    users = 0
    threads = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this is entered by anyone, matrix products use one thread; nothing happens where BLAS is not OpenBLAS."""
    get, put = openblas_function("get_num_threads"), openblas_function("set_num_threads")
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
