"""`diff` on pairs, with its time and memory beside those of plain runs: what the process of a program's pairs does."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Timer

import attrs

import hloexec
from evaluation.diffing.judging import judge
from evaluation.pairs.drawing import Drawn, Pair, draw
from evaluation.processes import Record
from hloexec.core.ir import Module

LIMIT_SECONDS = 60
"""Of the processor's time, for one diff."""
_WAITING = 4
"""How many times the limit may pass on the clock."""
_WARM_SECONDS = 0.1
"""Modules that have run before run again for so long; the clock of a process may be coarse."""
_LEAST_BYTES = 2**20
"""What a run is taken to need at least."""


def measured(name: str) -> Record:
    """What `diff` says of a pair, and what it costs."""
    _import_all()
    pair = Pair.of(name)
    start = time.perf_counter()
    try:
        drawn = draw(pair)
    except LookupError as reason:
        return {"kind": "", "is_drawn": False, "failure": str(reason)}
    record: Record = {
        "kind": drawn.kind,
        "inputs": drawn.variant,
        "compare_agrees": drawn.agrees,
        "instructions": drawn.after.module.instruction_count,
        "drawing_seconds": time.perf_counter() - start,
    }
    plain = _in_a_child(lambda: _plain_run(drawn))
    if "failure" in plain:
        return record | plain
    diff = _in_a_child(lambda: _diffed(drawn))
    record |= {f"plain_{name}": figure for name, figure in plain.items()} | diff
    if "seconds" in diff:
        record["cost"] = diff["seconds"] / plain["seconds"]
        record["warm_cost"] = diff["seconds"] / plain["warm_seconds"]
    if "bytes" in diff:
        record["memory"] = max(diff["bytes"], _LEAST_BYTES) / max(plain["bytes"], _LEAST_BYTES)
    return record


def _plain_run(drawn: Drawn) -> Record:
    """The cost of a first run of both modules, and the time of a warm one."""
    modules = _afresh(drawn)

    def run() -> None:
        for module in modules:
            hloexec.run_devices(module, drawn.inputs_per_device)

    with _measured() as cost:
        run()
    runs, start = 0, time.process_time()
    while time.process_time() < start + _WARM_SECONDS:
        run()
        runs += 1
    warm = (time.process_time() - start) / runs
    return cost | {"warm_seconds": warm}


def _diffed(drawn: Drawn) -> Record:
    """The cost of a diff, and what it says."""
    modules = _afresh(drawn)
    with _measured() as cost:
        found = hloexec.diff(*modules, drawn.inputs_per_device)
    return cost | attrs.asdict(judge(drawn, found)) | {"findings": len(found.findings)}


def _afresh(drawn: Drawn) -> list[Module]:
    """The modules as they are when nothing has been run, nor found out about them."""
    return [hloexec.parse(hloexec.format(each)) for each in (drawn.before, drawn.after.module)]


@contextmanager
def _measured() -> Iterator[Record]:
    """Gives seconds of the processor's time, and bytes at the peak."""
    cost: Record = {}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held, start = _status("VmRSS"), time.process_time()
    yield cost
    cost |= {"seconds": time.process_time() - start, "bytes": _status("VmHWM") - held}


def _status(name: str) -> int:
    """A figure of Linux about this process, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _in_a_child(work: Callable[[], Record]) -> Record:
    """What some work finds in a process of its own, so that none leaves anything behind for the next."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
        try:
            found = work()
        except Exception as error:
            found = {"failure": f"{type(error).__name__}: {error}"[:500]}
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    watch = Timer(_WAITING * LIMIT_SECONDS, os.kill, (child, signal.SIGKILL))
    watch.start()
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    watch.cancel()
    _, status = os.waitpid(child, 0)
    if not text:
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
        if not is_late:
            return {"failure": f"it died: status {status}"}
        return {"failure": f"it took more than {LIMIT_SECONDS} s", "seconds": LIMIT_SECONDS}
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@cache
def _import_all() -> None:
    """Import what is only imported when needed."""
    small = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n"
    hloexec.diff(hloexec.parse(small), hloexec.parse(small.replace("add", "multiply")))
