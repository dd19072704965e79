"""NumPy's BLAS, with one thread per product.

OpenBLAS divides a product among its threads, and rounds differently for each division. While modules run, its threads
are disabled: kernels divide large products into blocks themselves, by shapes alone, and distribute those to hloexec's
own threads. The same product therefore has the same bits on any number of cores, and no idle BLAS thread spins between
two products.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.openblas import openblas_function, openblas_libraries
from hloexec.core.values import Array


class _SingleThreaded:
    """The limit, which holds for the whole process, and those who need it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.is_held = False
        self.libraries: dict[str, tuple[Callable[[], int], Callable[[int], Any]]] | None = None
        """What tells and sets the threads of each library, once they have been looked for."""
        self.given_back: dict[str, Callable[[], Any]] = {}
        """For each library what gives it back the threads that it had."""

    def __enter__(self) -> None:
        with self.lock:
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if not self.users and self.is_held:
                self.is_held = False
                for give_back in self.given_back.values():
                    give_back()
                self.given_back.clear()

    def hold(self, *, is_new: bool = False) -> None:
        with self.lock:
            if is_new or self.libraries is None:
                # That reads the whole memory map of the process, for about a millisecond.
                self.libraries = _libraries()
            for path, (get, put) in self.libraries.items():
                if path not in self.given_back:
                    self.given_back[path] = partial(put, get())
                    put(1)
            self.is_held = True


def _libraries() -> dict[str, tuple[Callable[[], int], Callable[[int], Any]]]:
    found = {}
    for path in openblas_libraries():
        get, put = openblas_function(path, "get_num_threads"), openblas_function(path, "set_num_threads")
        if get is not None and put is not None:
            found[path] = get, put
    return found


_limit = _SingleThreaded()


def single_threaded_blas() -> _SingleThreaded:
    """A context in which products, once the first has asked for it, have one thread each; several may be open."""
    return _limit


def hold_blas(*, is_new: bool = False) -> None:
    """Switch off BLAS's threads until all contexts of `single_threaded_blas` are closed.

    `is_new` says that a library with a BLAS of its own may have been loaded since this was last asked for. Nothing
    happens where BLAS is not OpenBLAS.
    """
    if is_new or not _limit.is_held:
        _limit.hold(is_new=is_new)


def matmul(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
    """lhs · rhs of `[batch..., m, k]` and `[batch..., k, n]` by BLAS's general product, on this thread.

    NumPy takes another routine, which rounds differently, for a matrix and its own transpose, by their address in
    memory; here whether two operands share memory makes no difference.
    """
    if not _limit.is_held:
        _limit.hold()
    if lhs.shape[-2] == rhs.shape[-1] and lhs.strides[-2:] == rhs.strides[:-3:-1] and np.may_share_memory(lhs, rhs):
        rhs = rhs.copy(order="K")
    product: Array = np.matmul(lhs, rhs, out=out)
    return product
