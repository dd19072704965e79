"""Distributing work over the processor's cores.

NumPy releases Python's global interpreter lock while it computes, so threads that work on different parts of an array
run in parallel. Results never depend on the number of threads: a caller divides its work into blocks by shapes alone,
and each block writes its own part of the result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from itertools import count as counting
from typing import TYPE_CHECKING, Any, TypeVar

from hloexec.core.values import Array
from hloexec.ops.arena import empty

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

_PIECE_ELEMENTS = 1 << 15
_CONTROL_GROUP = "/sys/fs/cgroup/cpu.max"

_Item = TypeVar("_Item")

_here = threading.local()
"""`is_busy` on threads that are working on a block: blocks within blocks stay on their thread."""

_callers: list[None] = []
"""One element for each thread that is working on blocks with others of the pool."""


@cache
def core_count() -> int:
    """How many threads of this process work at once.

    As many as the environment variable OMP_NUM_THREADS says, where its first number is positive; otherwise as many as
    there are processors that this process may use, by its affinity and by the quota of its control group (Linux).
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, _quota()))


def _quota() -> int:
    """The processors whose time a container may use, rounded up; without a limit, more than any machine has."""
    try:
        with open(_CONTROL_GROUP) as file:
            quota, period = file.read().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return 1 << 16


def in_blocks(function: Callable[[int, int], object], count: int, block: int, *, threads: int | None = None) -> None:
    """Call `function(start, stop)` for ranges of up to `block` numbers that together are `range(count)`.

    In any order, and on all cores (on so many `threads` at most), which runs that work at the same time share; context
    variables (NumPy's error state among them) are the caller's. What a call raises is raised here, after all threads
    have stopped.
    """
    starts = range(0, count, block)
    threads = min(-(-core_count() // (1 + len(_callers))), len(starts), threads or len(starts))
    if threads < 2 or getattr(_here, "is_busy", False):
        for start in starts:
            function(start, min(start + block, count))
        return
    numbers = counting()

    def work() -> None:
        _here.is_busy = True
        try:
            # Taking the next number is one step under Python's lock, so that no two threads take the same.
            while (number := next(numbers)) < len(starts):
                start = starts[number]
                function(start, min(start + block, count))
        except BaseException:
            # The others shall find nothing more to do.
            for _ in range(len(starts)):
                next(numbers)
            raise
        finally:
            _here.is_busy = False

    _callers.append(None)
    others: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # No thread can be started: the process is about to end, or has its limit of them.
            for _ in range(threads - 1):
                others.append(_pool().submit(copy_context().run, work))
        work()
    finally:
        _callers.pop()
        # A call that has not begun, as the pool works for other runs, is not waited for: nothing is left for it to do.
        # The others are, even where this thread failed: nothing may write to the caller's arrays after its return.
        errors = [other.exception() for other in others if not other.cancel()]
        # A thread may hold its work for a moment longer, and with it the arrays that the function refers to, which
        # would look as if somebody else needed them.
        function = _nothing
    for error in errors:
        if error is not None:
            raise error


def _nothing(start: int, stop: int) -> None:
    """What a thread may hold when its work is done."""


def for_each(function: Callable[[_Item], object], items: Sequence[_Item]) -> None:
    """Call a function for each of the items, as `in_blocks` does."""
    in_blocks(lambda start, _: function(items[start]), len(items), 1)


def in_pieces(function: Callable[..., Array], dtype: Any, *operands: Array, piece: int = _PIECE_ELEMENTS) -> Array:
    """`function(*operands)`, elementwise from arrays of one shape to one of `dtype`, with its own arrays in the cache.

    For formulas of several steps: each step of a large array would read and write memory. The more steps, the smaller
    the `piece` that is computed at a time may be.
    """
    size, sizes = operands[0].size, operands[0].shape
    if size <= piece or not all(operand.flags.c_contiguous for operand in operands):
        return function(*operands)
    flat = [operand.reshape(-1) for operand in operands]
    result = empty((size,), dtype)

    def work(start: int, stop: int) -> None:
        result[start:stop] = function(*(operand[start:stop] for operand in flat))

    in_blocks(work, size, piece)
    return result.reshape(sizes)


@cache
def _pool() -> Executor:
    # Imported late: most programs that import hloexec never need it.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max(1, core_count() - 1), thread_name_prefix="hloexec")


if hasattr(os, "register_at_fork"):
    # A forked process has the pool without its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
