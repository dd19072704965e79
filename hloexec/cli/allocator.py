"""Keeping freed memory in the process.

A run allocates and frees many large arrays. By default the C library maps each of them anew and unmaps it when it is
freed, and the system clears every page again: that takes as long as computing with it.
"""

from __future__ import annotations

import ctypes
import os

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
