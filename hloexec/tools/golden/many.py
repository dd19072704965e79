"""Checking many goldens, here or each in a process of its own, on whatever workers there are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import attrs

from hloexec.core.arguments import listed, require_module, require_path
from hloexec.core.ir import Module
from hloexec.core.wording import byte_text
from hloexec.engine.exec.observers import Attached, Observer, Stages
from hloexec.errors import HloError, InputError, unwarned
from hloexec.language.text import parse
from hloexec.tools.executing.codec import coded, decoded
from hloexec.tools.executing.engines import Workers, workers_of
from hloexec.tools.executing.functions import custom_calls_by_name, register_by_name
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Reply, Task, Tell
from hloexec.tools.golden.checking import GoldenCheck, Outcome, check_golden
from hloexec.tools.golden.recording import EXPECTED, INPUTS, MODULE, RECORD, SPREAD, find_goldens, module_text


def check_goldens(
    folders: Sequence[str | os.PathLike[str]],
    *,
    module: Module | None = None,
    executor: str | Executor | None = None,
    jobs: int | None = None,
    shared: bool = False,
    timeout: float | None = None,
    memory: int | str | None = None,
    observers: Sequence[Observer] = (),
) -> tuple[GoldenCheck, ...]:
    """`check_golden` of each of the goldens that are these folders, or are in them at any depth, in their order.

    They are checked one after the other in this process, unless `executor` or `jobs` is given: then each is checked in
    a process of its own, in at most `timeout` seconds (by default 120) and `memory` bytes (by default 4 GiB). One that
    crashes, hangs or takes too much is broken, and the others are checked. `executor` has the workers that start these
    processes, and `jobs` and `shared` are as for `triage`; tasks carry the files of the golden. Workers import what
    `register_custom_call` has registered by its name. Observers that have a method `on_stage(stage)` are told how far
    it is. The result is the same for any executor and number of workers, but for `seconds`.

    Raises InputError where there is no golden, and for what cannot travel to workers; UnsupportedError where a worker
    has other versions, or a machine that rounds otherwise; ResourceError where all workers are lost.
    """
    workers = workers_of(executor, jobs, shared, {"timeout": timeout, "memory": memory})
    if module is not None:
        require_module(module)
    watchers = listed("observers", observers, "observers")
    Attached(watchers)
    paths = goldens_in(listed("folders", folders, "paths of folders"))
    if not paths:
        raise InputError("folders must be paths of folders, but there is none")
    checks: dict[Path, GoldenCheck] = {}
    if workers is not None:
        check_apart(paths, module, workers, watchers, checks)
        return tuple(checks[path] for path in paths)
    stages = Stages(watchers)
    stages.begin("goldens", len(paths))
    for path in paths:
        checks[path] = check_golden(path, module=module)
        stages.tick()
    return tuple(checks.values())


def goldens_in(folders: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The goldens that folders are or hold, each once."""
    for folder in folders:
        require_path("folders", folder)
    return list(dict.fromkeys(path for folder in folders for path in find_goldens(folder)))


def check_apart(
    paths: Sequence[Path],
    module: Module | None,
    workers: Workers,
    observers: Sequence[Observer],
    checks: dict[Path, GoldenCheck],
) -> None:
    """Add the checks of goldens as they come: where an exception ends it, those that have come are there."""
    text = None if module is None else module_text(module).decode()
    common = {
        "module": text,
        "filename": None if module is None else module.filename,
        "memory": workers.memory,
        "custom_calls": custom_calls_by_name(),
    }

    def task_of(path: Path) -> Task:
        files = [path / name for name in (RECORD, MODULE, INPUTS, EXPECTED, SPREAD)]
        present = tuple(os.fspath(file) for file in files if file.is_file())
        request = {**common, "folder": os.fspath(path)}
        return Task(f"{__name__}:check_alone", request, present, workers.seconds, workers.memory, located=("folder",))

    stages = Stages(observers)
    stages.begin("goldens", len(paths))
    replies: dict[Path, Reply] = {}
    try:
        with workers.opened() as engine:
            for path, reply in run_tasks(paths, task_of, engine):
                checks[path] = _check_of(path, reply, workers.seconds)
                if isinstance(reply, Reply):
                    replies[path] = reply
                stages.tick()
    finally:
        for path in paths:
            if path in replies:
                replies[path].warn()


def _check_of(path: Path, reply: Reply | HloError, seconds: float) -> GoldenCheck:
    """What came of a golden's task."""
    if isinstance(reply, HloError):
        return GoldenCheck(path, Outcome.BROKEN, str(reply))
    if reply.answer is None:
        return GoldenCheck(path, Outcome.BROKEN, reply.failure(seconds))
    return attrs.evolve(decoded(reply.answer, GoldenCheck), folder=path)


def check_alone(request: Mapping[str, Any], _: Tell, __: Path) -> Mapping[str, Any]:
    """Check the golden of a task, in its process."""
    folder, module = Path(request["folder"]), None
    try:
        register_by_name(request["custom_calls"])
        if request["module"] is not None:
            with unwarned():
                module = parse(request["module"], filename=request["filename"])
        check = check_golden(folder, module=module)
    except HloError as error:
        check = GoldenCheck(folder, Outcome.BROKEN, str(error))
    except MemoryError:
        message = f"there is not enough memory: it may take {byte_text(request['memory'])}"
        check = GoldenCheck(folder, Outcome.BROKEN, message)
    return coded(check, GoldenCheck)  # type: ignore[no-any-return]
