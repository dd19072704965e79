"""What kernels share of the processor: memory for large arrays, its cores, and NumPy's BLAS.

Arenas: memory for the large arrays of a plan, which its next run takes again.

The system clears every page that it hands out, which can take as long as computing with it. A kernel therefore makes a
large array with `empty`, which gives it a place in the arena of the run. A place is free again once no array shows it.
That is not derived from the plan: Python tells it as soon as nothing refers to them, so that results, views of them and
what an observer keeps stay as they are. A new array takes the smallest gap that is large enough.

Distributing work over the processor's cores.

NumPy releases Python's global interpreter lock while it computes, so threads that work on different parts of an array
run in parallel. Results never depend on the number of threads: a caller divides its work into blocks by shapes alone,
and each block writes its own part of the result.

NumPy's BLAS, with one thread per product.

OpenBLAS divides a product among its threads, and rounds differently for each division. While modules run, its threads
are disabled: kernels divide large products into blocks themselves, by shapes alone, and distribute those to hloexec's
own threads. The same product therefore has the same bits on any number of cores, and no idle BLAS thread spins between
two products.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import cache, partial
from itertools import count as counting
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.process import openblas_function, openblas_libraries
from hloexec.core.values import Array

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


LEAST_BYTES = 1 << 17
"""The C library keeps the memory of smaller arrays by itself."""
ALIGNMENT = 64
_SPARE = 4
"""An arena has room for the arrays of a run and for one part in so many of them besides, for gaps."""
_HUGE_PAGE = 1 << 21
_MOST_IDLE = 2
"""So many arenas of one plan wait for its next runs, where several have run at once."""
_KEPT_BYTES = 1 << 30
"""What the arenas of all plans together keep between runs, at most."""

_MOST_RAISED = 31 << 20
"""The largest array by whose size glibc raises the threshold from which it maps arrays one by one."""

_here = threading.local()
"""`arena`: that of the run on this thread."""


def aligned(nbytes: int) -> int:
    """The bytes that an array of so many takes up."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _Place(Array):
    """Bytes of an arena. Views of an array that shows them have that array as their base, not the place."""

    __slots__ = ()


class _Taken(weakref.ref[_Place]):
    """A place while arrays show it, and where it begins."""

    __slots__ = ("start",)
    start: int


_IS_SUPPORTED = (
    sys.implementation.name == "cpython"
    and getattr(sys, "_is_gil_enabled", lambda: True)()
    and hasattr(mmap, "MADV_DONTNEED")
)
"""Whether references are counted exactly, and memory can be given back. Elsewhere arrays have memory of their own."""


class _Arena:
    """Memory for one run at a time."""

    def __init__(self, needed: int) -> None:
        """For arrays of so many bytes, and gaps between them."""
        size = needed + needed // _SPARE
        # Linux puts a mapping of whole huge pages where such pages begin.
        page = mmap.PAGESIZE if size < _HUGE_PAGE else _HUGE_PAGE
        pages = -(-size // page) * page
        self._map = mmap.mmap(-1, pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE") and needed >= _HUGE_PAGE:
            # None that is likely to be used in part only: all of it would count as memory of the process.
            self._map.madvise(mmap.MADV_HUGEPAGE, 0, needed // _HUGE_PAGE * _HUGE_PAGE)
        # Once so much has been freed, glibc keeps the memory of arrays up to that size, which NumPy's functions make
        # for themselves. Without arenas that happens in the first run. It is no array of NumPy's, which would have huge
        # pages there, of which whatever comes later would take a whole one, however small it is.
        bytes(min(pages, _MOST_RAISED))
        self._memory = np.ndarray.__new__(_Place, (pages,), np.uint8, self._map)
        self._taken: list[_Taken] = []
        """What is taken, in order; one place at an index of this and the next three lists."""
        self._unused: list[_Taken] = []
        """Those of them that no array shows any more: only the arrays that show a place keep it."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._gaps: list[int] = []
        """The free bytes in front of each place."""
        self.used = 0
        """Behind so many bytes nothing has been written."""
        self.missed = 0
        """The bytes of arrays for which there was no gap."""
        self.chosen: Sequence[tuple[int, int]] = ()
        """Sizes and places for arrays of what runs now."""

    @property
    def size(self) -> int:
        return self._memory.nbytes

    def empty(self, sizes: Sequence[int], dtype: DType, nbytes: int) -> Array:
        """An array of so many bytes."""
        wanted = aligned(nbytes)
        self._forget_unused()
        index, start = self._found(wanted)
        end = start + wanted
        if end > self.size:
            self.missed += nbytes
            return np.empty(sizes, dtype)
        self.used = max(self.used, end)
        place: Any = self._memory[start:end]
        taken = _Taken(place, self._unused.append)
        taken.start = start
        self._taken.insert(index, taken)
        self._starts.insert(index, start)
        self._ends.insert(index, end)
        self._gaps.insert(index, start - (self._ends[index - 1] if index else 0))
        if index + 1 < len(self._gaps):
            self._gaps[index + 1] -= self._gaps[index] + wanted
        return np.ndarray(sizes, dtype, place)

    def _found(self, wanted: int) -> tuple[int, int]:
        """Before which of the places so many bytes are free, and where they begin: where they are to lie if nothing is
        there, else in the smallest gap, else behind all places."""
        for size, start in self.chosen:
            index = bisect_left(self._starts, start + size)
            if size == wanted and start + size <= self.size and (not index or self._ends[index - 1] <= start):
                return index, start
        gaps = [gap for gap in self._gaps if gap >= wanted]
        if gaps:
            gap = min(gaps)
            index = self._gaps.index(gap)
            return index, self._starts[index] - gap
        return len(self._taken), self._ends[-1] if self._ends else 0

    def _forget_unused(self) -> None:
        """Leave out the places that no array shows."""
        while self._unused:
            index = bisect_left(self._starts, self._unused.pop().start)
            del self._taken[index]
            free = self._gaps.pop(index) + self._ends.pop(index) - self._starts.pop(index)
            if index < len(self._gaps):
                self._gaps[index] += free

    def release(self, kept: int = 0) -> None:
        """Give the system back what lies behind so many bytes and no array shows."""
        self._forget_unused()
        end = 0
        for first, last in zip(self._starts, self._ends, strict=True):
            self._give_back(max(kept, end), first)
            end = last
        self._give_back(max(kept, end), self.used)
        self.used = min(self.used, max(kept, end))

    def _give_back(self, start: int, stop: int) -> None:
        """Of a range of bytes the whole pages."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if stop - start >= mmap.PAGESIZE:
            self._map.madvise(mmap.MADV_DONTNEED, start, (stop - start) // mmap.PAGESIZE * mmap.PAGESIZE)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Results may outlive the plan, and with them all of the memory."""
        if not is_finalizing():
            self.release()


class Placed:
    """A kernel that makes its large arrays in places chosen before the run, as long as nothing else is there."""

    def __init__(self, function: Callable[..., Any], places: Sequence[tuple[int, int]]) -> None:
        """`places` are the sizes of arrays, in bytes, and where in an arena each begins."""
        self._function = function
        self._places = tuple(places)

    def __call__(self, *operands: Any, **out: Any) -> Any:
        arena: _Arena | None = getattr(_here, "arena", None)
        if arena is None:
            return self._function(*operands, **out)
        arena.chosen = self._places
        try:
            return self._function(*operands, **out)
        finally:
            arena.chosen = ()


class Arenas:
    """The arenas of a plan. Its runs take one each, on threads of their own."""

    def __init__(self) -> None:
        self._idle: list[_Arena] = []

    @property
    def kept_bytes(self) -> int:
        """What waits for the next runs at most, results in it that the caller still holds included."""
        return sum(arena.used for arena in self._idle)

    def lent(self, estimate: int) -> AbstractContextManager[None]:
        """A context in which `empty`, on this thread, takes memory of an arena, for arrays of about so many bytes."""
        return self._lent(estimate) if _IS_SUPPORTED else nullcontext()

    @contextmanager
    def _lent(self, estimate: int) -> Iterator[None]:
        arena, outer = self._taken(estimate), getattr(_here, "arena", None)
        _here.arena = arena
        try:
            yield
        finally:
            _here.arena = outer
            if arena is not None and len(self._idle) < _MOST_IDLE:
                self._idle.append(arena)
                _keep_within_bounds(self)

    def _taken(self, estimate: int) -> _Arena | None:
        """An arena that waits, or a new one where it was too small for its last run."""
        try:
            # One step under Python's lock, so that no two threads take the same.
            arena = self._idle.pop()
        except IndexError:
            needed = estimate
        else:
            if not arena.missed:
                return arena
            needed = max(estimate, arena.size + arena.missed)
        try:
            return _Arena(needed)
        except OSError:
            return None

    def release(self, surplus: int | None = None) -> None:
        """Give back so many bytes, or more, of what no run uses now; without a number all of it."""
        for _ in range(len(self._idle)):
            try:
                arena = self._idle.pop()
            except IndexError:
                return
            before = arena.used
            arena.release(0 if surplus is None else max(0, before - surplus))
            if surplus is not None:
                surplus -= before - arena.used
                self._idle.insert(0, arena)


_lock = threading.Lock()
_lenders: weakref.WeakKeyDictionary[Arenas, None] = weakref.WeakKeyDictionary()
"""Those that keep memory, the one that was used last at the end."""


def _keep_within_bounds(latest: Arenas) -> None:
    with _lock:
        _lenders.pop(latest, None)
        _lenders[latest] = None
        lenders = list(_lenders)
    surplus = sum(lender.kept_bytes for lender in lenders) - _KEPT_BYTES
    for lender in lenders:
        if surplus <= 0:
            return
        before = lender.kept_bytes
        lender.release(surplus)
        surplus -= before - lender.kept_bytes


def release_memory() -> None:
    """Give the memory that modules keep for their next runs back to the system.

    A module keeps the memory of the large arrays of its runs for the next ones, which are faster for it: about as much
    as the arrays of one run take at once, and all modules together no more than 1 GiB. It is given back when the module
    is deleted, or by this function. Results, and runs on other threads, are not touched.
    """
    with _lock:
        lenders = list(_lenders)
        _lenders.clear()
    for lender in lenders:
        lender.release()


def empty(sizes: Sequence[int], dtype: Any) -> Array:
    """A new array of any content in row-major order, in the arena of the run on this thread if it is large."""
    arena: _Arena | None = getattr(_here, "arena", None)
    if arena is not None:
        dtype = np.dtype(dtype)
        nbytes = prod(sizes) * dtype.itemsize
        if nbytes >= LEAST_BYTES:
            return arena.empty(sizes, dtype, nbytes)
    return np.empty(sizes, dtype)


def is_own(value: object) -> bool:
    """Whether a value is an array that has its memory to itself, apart from views of it, and may be written.

    It may be another form of an array that nothing else refers to, as what a kernel makes and reshapes is.
    """
    if type(value) is not np.ndarray:
        return False
    flags = value.flags
    if not flags.writeable or flags.owndata:
        return bool(flags.writeable)
    base = value.base
    if type(base) is np.ndarray and base.nbytes == value.nbytes and sys.getrefcount(base) == _ONLY_BASE:
        return _has_memory(base)
    return _has_memory(value)


def _has_memory(array: Array) -> bool:
    return array.flags.owndata or type(array.base) is _Place


def _base_references(value: Array) -> int:
    base = value.base
    return sys.getrefcount(base)


_ONLY_BASE = _base_references(np.empty(2).reshape(1, 2))
"""What `sys.getrefcount` gives for an array that only a view of it refers to, and a variable."""


def owner_of(array: Array) -> Array:
    """The array whose memory an array shows: itself if it has its own."""
    while isinstance(array.base, np.ndarray) and type(array.base) is not _Place:
        array = array.base
    return array


PIECE_ELEMENTS = 1 << 15
_CONTROL_GROUP = "/sys/fs/cgroup/cpu.max"

_Item = TypeVar("_Item")

_worker = threading.local()
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
    if threads < 2 or getattr(_worker, "is_busy", False):
        for start in starts:
            function(start, min(start + block, count))
        return
    numbers = counting()

    def work() -> None:
        _worker.is_busy = True
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
            _worker.is_busy = False

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


def in_pieces(function: Callable[..., Array], dtype: Any, *operands: Array, piece: int = PIECE_ELEMENTS) -> Array:
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


def spans_of(size: int, parts: int) -> list[tuple[int, int]]:
    """The ranges of so many parts of an array's elements, where none divides a piece whose elements are computed
    together (see `in_pieces`)."""
    pieces = -(-size // PIECE_ELEMENTS)
    ends = [min(size, pieces * number // parts * PIECE_ELEMENTS) for number in range(parts + 1)]
    return list(pairwise(ends))


@cache
def _pool() -> Executor:
    # Imported late: most programs that import hloexec never need it.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max(1, core_count() - 1), thread_name_prefix="hloexec")


if hasattr(os, "register_at_fork"):
    # A forked process has the pool without its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


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
    libraries = {}
    for path in openblas_libraries():
        get, put = openblas_function(path, "get_num_threads"), openblas_function(path, "set_num_threads")
        if get is not None and put is not None:
            libraries[path] = get, put
    return libraries


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
