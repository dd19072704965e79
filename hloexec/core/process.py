"""This process: the lifetimes of its objects, its memory, and the OpenBLAS libraries that it has loaded.

Lifetimes of objects: what is remembered as long as one lives, and how Python's cyclic garbage collector is paused.
Collections while a large structure is built only cost time: they traverse it repeatedly, and find nothing to free.

The OpenBLAS libraries that this process has loaded (NumPy's, SciPy's), queried through their own functions. Only the
standard library is imported, and only on first use, so that it adds nothing to the start of the command line.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar


@contextmanager
def collection_paused() -> Iterator[None]:
    """No cyclic garbage is collected within, in any thread; reference counts free things as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                # Moves everything to the oldest generation without a walk; the next collection would walk all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_Found = TypeVar("_Found")


def remembered(find: Callable[[Any], _Found]) -> Callable[[Any], _Found]:
    """A function of one object that is called once for each: objects are told apart by identity, not by value."""
    entries: dict[int, tuple[weakref.ref[Any], _Found]] = {}

    @wraps(find)
    def found(about: Any) -> _Found:
        key = id(about)
        entry = entries.get(key)
        if entry is None or entry[0]() is not about:
            entry = entries[key] = weakref.ref(about, lambda _: entries.pop(key, None)), find(about)
        return entry[1]

    return found


_SHARE = 0.8


def memory_limit_bytes(limit: int | None) -> int | None:
    """The limit in bytes; without one, 80 % of what is free, or None where that is not known."""
    if limit is not None:
        return limit
    free = available_bytes()
    return None if free is None else int(_SHARE * free)


def available_bytes() -> int | None:
    """Bytes that this process may still take without swapping: what the machine has, and what its cgroup leaves it."""
    sizes = [size for size in (_machine_bytes(), _cgroup_bytes()) if size is not None]
    return min(sizes, default=None)


def _machine_bytes() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _cgroup_bytes() -> int | None:
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as current:
            return int(most.read()) - int(current.read())
    except (OSError, ValueError):
        return None


_AFFIXES = tuple((prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", ""))
"""What builds of OpenBLAS put around the names of its functions."""

_TYPES: dict[str, Callable[[Any], tuple[tuple[Any, ...], Any]]] = {
    "get_corename": lambda c: ((), c.c_char_p),
    "get_num_threads": lambda c: ((), c.c_int),
    "set_num_threads": lambda c: ((c.c_int,), None),
}


@cache
def openblas_kernels() -> str:
    """The processor, in lower case, that OpenBLAS's kernels are made for; an empty text where BLAS is not OpenBLAS."""
    import numpy  # noqa: F401  # Loads its BLAS.

    for path in openblas_libraries():
        name = openblas_function(path, "get_corename")
        if name is not None:
            return str(name(), errors="replace").lower()
    return ""


KERNELS = "OPENBLAS_CORETYPE"
"""The variable that says which kernels OpenBLAS has, in place of its own choice."""
_WITHOUT_AVX512 = frozenset({"haswell", "zen", "sandybridge", "nehalem", "prescott", "generic", "excavator"})
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What OpenBLAS's SkylakeX kernels use."""


def better_kernels() -> dict[str, str]:
    """The variables with which a new process has kernels for AVX-512 where OpenBLAS has not chosen them here, though
    the processor has it; none where the user has chosen, or anything is unexpected."""
    if KERNELS in os.environ:
        return {}
    flags = _processor_flags()
    is_wrong = flags >= _NEEDED and lacks_avx512_kernels(openblas_kernels(), flags)
    return {KERNELS: "SkylakeX"} if is_wrong else {}


def lacks_avx512_kernels(kernels: str, flags: frozenset[str]) -> bool:
    """Whether BLAS chose kernels without AVX-512 (named by processor) for a processor that supports it."""
    return kernels in _WITHOUT_AVX512 and flags >= _NEEDED


def _processor_flags() -> frozenset[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


@cache
def openblas_function(path: str, verb: str) -> Callable[..., Any] | None:
    """The function of this name, one of those in _TYPES, of a loaded library; None where it is not there."""
    import ctypes

    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for prefix, suffix in _AFFIXES:
        function: Callable[..., Any] | None = getattr(library, f"{prefix}openblas_{verb}{suffix}", None)
        if function is not None:
            function.argtypes, function.restype = _TYPES[verb](ctypes)  # type: ignore[attr-defined]
            return function
    return None


def openblas_libraries() -> list[str]:
    """The files of the OpenBLAS libraries that this process has loaded, in the order in which they lie in memory; none
    where the system does not say (only Linux does)."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return list(dict.fromkeys(path for path in paths if "openblas" in path.rpartition("/")[2]))
