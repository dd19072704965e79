"""The OpenBLAS that NumPy has loaded, asked through functions of its own.

Only the standard library is imported here, and that late, so that asking costs the command line nothing beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["openblas_function", "openblas_kernels"]

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
    name = openblas_function("get_corename")
    return "" if name is None else name().decode(errors="replace").lower()


@cache
def openblas_function(verb: str) -> Callable[..., Any] | None:
    """OpenBLAS's function of this name, one of those in _TYPES; None where it is not there."""
    import ctypes

    import numpy  # noqa: F401

    try:
        library = ctypes.CDLL(_loaded_file())
    except OSError:
        return None
    for prefix, suffix in _AFFIXES:
        function: Callable[..., Any] | None = getattr(library, f"{prefix}openblas_{verb}{suffix}", None)
        if function is not None:
            function.argtypes, function.restype = _TYPES[verb](ctypes)  # type: ignore[attr-defined]
            return function
    return None


def _loaded_file() -> str:
    """The file of the OpenBLAS that this process has loaded; OSError where there is none to be found."""
    if sys.platform == "linux":
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            path = line.split(maxsplit=5)[-1]
            if "openblas" in path.rpartition("/")[2]:
                return path
    raise OSError("no OpenBLAS")
