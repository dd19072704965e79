"""Memory that the process keeps.

Arrays come and go while a module runs. The C library asks the system for each large one and gives it back at once, and
the system clears every page before it hands it out again: that takes as long as computing with it.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Options of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Keep what arrays have freed for those to come, until the process ends.

    Does nothing where the C library is not glibc, or where the user has set its options.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)):
        mallopt(option, value)
