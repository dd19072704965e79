"""What the contestants share: the loop that answers requests, repeated runs, the growth of memory."""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

_ENOUGH_SECONDS = 0.05

Answers = dict[str, Callable[..., dict[str, Any]]]
"""What answers each kind of request."""


class Stages:
    """Seconds between one call and the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def serve(first: Mapping[str, Any], answers: Answers) -> None:
    """Say `first`, then answer requests {"do": NAME, …} until stdin ends; an exception is an answer too."""
    _say(first)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = answers[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(answer)


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def per_device(arrays: list[Any], devices: int) -> list[list[Any]]:
    """The inputs of each device; the file holds them one device after the other."""
    count = len(arrays) // devices
    return [arrays[device * count : (device + 1) * count] for device in range(devices)]


def timed_runs(run: Callable[[], object]) -> dict[str, float]:
    """The median of runs, repeated for a twentieth of a second: quick modules are timed with warm caches."""
    seconds: list[float] = []
    while sum(seconds) < _ENOUGH_SECONDS:
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
        del result
    return {"seconds": statistics.median(seconds)}


def peak_growth(run: Callable[[], object]) -> int | None:
    """By how many bytes the resident set grew at most during a run; None where Linux does not say.

    What the C library keeps of freed memory is given back first: a run that used it would seem to need none.
    """
    _give_back_freed_memory()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = _status("VmRSS")
        result = run()
        grown = max(0, _status("VmHWM") - before)
        del result
    except OSError:
        run()
        return None
    return grown


def _give_back_freed_memory() -> None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
