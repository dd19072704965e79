"""`diff` on drawn pairs, with its time and memory beside those of plain runs; a process of its own for some pairs.

The process reads names of pairs from its arguments and writes a line of JSON for each.
"""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hloexec
from hloexec.ir import Module
from tests.bug_farm.drawing import Drawn, Pair, draw, pairs
from tests.bug_farm.judging import judge

__all__ = ["LIMIT_SECONDS", "measured"]

LIMIT_SECONDS = 60
"""For one diff."""
_LEAST_BYTES = 2**20
"""What a plain run is taken to need at least."""


def measured(pair: Pair) -> dict[str, Any]:
    """What `diff` says of a pair, and what it costs."""
    record: dict[str, Any] = {"name": pair.name, "half": pair.half, "form": pair.form, "is_clean": pair.is_clean}
    start = time.perf_counter()
    try:
        drawn = draw(pair)
    except LookupError as reason:
        return record | {"kind": "", "failure": str(reason)}
    record |= {
        "kind": drawn.kind,
        "inputs": drawn.variant,
        "compare_agrees": drawn.agrees,
        "instructions": drawn.after.module.instruction_count,
        "drawing_seconds": time.perf_counter() - start,
    }
    plain_seconds, plain_bytes, _ = _cost(drawn, _run_both)
    try:
        with _limited(LIMIT_SECONDS):
            seconds, peak, found = _cost(drawn, _diff)
    except _OutOfTime:
        return record | {"failure": f"diff took more than {LIMIT_SECONDS} s"}
    except Exception as error:
        return record | {"failure": f"diff raised {type(error).__name__}: {error}"[:500]}
    judgement = judge(drawn, found)
    return record | {
        "verdict": judgement.verdict,
        "first": judgement.first,
        "rank": judgement.rank,
        "findings": len(found.findings),
        "named": judgement.named,
        "planted": judgement.planted,
        "plain_seconds": plain_seconds,
        "seconds": seconds,
        "plain_bytes": plain_bytes,
        "bytes": peak,
        "cost": seconds / plain_seconds,
        "memory": max(peak, _LEAST_BYTES) / max(plain_bytes, _LEAST_BYTES),
    }


def _run_both(before: Module, after: Module, drawn: Drawn) -> None:
    for module in (before, after):
        hloexec.run_devices(module, drawn.inputs_per_device)


def _diff(before: Module, after: Module, drawn: Drawn) -> hloexec.Diff:
    return hloexec.diff(before, after, drawn.inputs_per_device)


def _cost(drawn: Drawn, work: Callable[[Module, Module, Drawn], Any]) -> tuple[float, int, Any]:
    """Seconds, bytes at the peak, and the result of some work on modules that have not run yet."""
    before, after = (hloexec.parse(hloexec.format(each)) for each in (drawn.before, drawn.after.module))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held = _status("VmRSS")
    start = time.perf_counter()
    result = work(before, after, drawn)
    seconds = time.perf_counter() - start
    return seconds, _status("VmHWM") - held, result


def _status(name: str) -> int:
    """A figure of Linux about this process, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


class _OutOfTime(BaseException):
    """The limit has passed; no `except Exception` on the way catches this."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _OutOfTime

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Measure the pairs that the arguments name."""
    warnings.simplefilter("ignore")
    known = {pair.name: pair for pair in pairs()}
    small = hloexec.parse("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n")
    hloexec.diff(small, small)  # imports what is only imported when needed
    for name in sys.argv[1:]:
        print(json.dumps(measured(known[name])), flush=True)


if __name__ == "__main__":
    main()
