"""The memory that this process may still allocate."""

from __future__ import annotations

import os

_SHARE = 0.8


def memory_limit_bytes(limit: int | None) -> int | None:
    """The limit in bytes; without one, 80 % of what is free, or None where that is not known."""
    if limit is not None:
        return limit
    free = available_bytes()
    return None if free is None else int(_SHARE * free)


def available_bytes() -> int | None:
    """Bytes that this process may still take without swapping: what the machine has, and what its cgroup leaves it."""
    found = [size for size in (_machine_bytes(), _cgroup_bytes()) if size is not None]
    return min(found, default=None)


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
