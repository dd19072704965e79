"""The OpenBLAS libraries that this process has loaded (NumPy's, SciPy's), queried through their own functions.

Only the standard library is imported, and only on first use, so that it adds nothing to the start of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

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
