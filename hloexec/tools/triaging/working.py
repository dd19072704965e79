"""The process in which a case is judged or minified: it reads what to do from a file, and writes what came of it.

It may crash, hang or run out of memory, and nothing else is lost. What is known before the last of its steps is
written, too, and counts if the process does not come to its end.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import attrs

from hloexec.core.wording import byte_text
from hloexec.errors import HloError, HloWarning, InputError, os_errors_named, warn
from hloexec.language.loading import load, load_with_values
from hloexec.language.text import format as format_module
from hloexec.tools.minifying import Minified, minify
from hloexec.tools.minifying.processes import Ended, run_command
from hloexec.tools.results import read_result, result_shapes
from hloexec.tools.triaging.collecting import Case
from hloexec.tools.triaging.findings import MinifiedModule, TriagedModule
from hloexec.tools.triaging.judging import failed, has_results, inputs_of, judged, stages_to_blame
from hloexec.tools.triaging.settings import Settings
from hloexec.tools.triaging.storing import Store, read_json, write_json

_COMMAND = "from hloexec.tools.triaging.working import work; work()"
_BUDGET_SHARE = 0.8
"""Of the time that minifying may take: what it has found by then counts."""
_STARTING_SECONDS = 10.0
"""What the start of a process may take besides, on a busy machine; the process itself counts the time from then on."""


def judge_apart(case: Case, key: str, store: Store, stop: Event) -> TriagedModule | None:
    """Judge a case in a process of its own; None once `stop` is set."""
    start = time.monotonic()
    ended, found = _apart("judge", case, key, store, stop)
    if stop.is_set():
        return None
    seconds = time.monotonic() - start
    limit = f"{store.settings.timeout:g} s"
    known = None if found is None else TriagedModule.of_record(found["module"])
    if known is not None and found is not None and not found["is_partial"]:
        # A search that took its share of the time may have been cut.
        is_cut = known.outcome == "out of memory" or seconds > store.settings.search_seconds
        result = attrs.evolve(known, is_cut=is_cut)
    elif known is not None:
        how = f"more than {limit}" if ended.code is None else str(ended)
        note = f"what is to blame was not found to the end: {how}"
        result = attrs.evolve(known, notes=(*known.notes, note), is_cut=True)
    elif ended.code is None:
        result = failed(case, store.settings, "timed out", f"it took more than {limit}")
    else:
        last = (ended.output.strip().splitlines() or ["it printed nothing"])[-1]
        result = failed(case, store.settings, "crashed", f"{ended}: {last}")
    is_cut = result.is_cut or result.outcome in ("timed out", "crashed")
    return attrs.evolve(result, seconds=seconds, is_cut=is_cut)


def minify_apart(case: Case, module: TriagedModule, name: str, store: Store, stop: Event) -> MinifiedModule | None:
    """Minify a case in a process of its own, into a folder of this name; None once `stop` is set."""
    start = time.monotonic()
    ended, found = _apart("minify", case, name, store, stop, {"module": attrs.asdict(module)})
    if stop.is_set():
        return None
    if found is None:
        reason = f"it took more than {store.settings.timeout:g} s" if ended.code is None else str(ended)
        return MinifiedModule(case.name, None, reason=reason, seconds=time.monotonic() - start)
    return attrs.evolve(MinifiedModule(**found), seconds=time.monotonic() - start)


def _apart(
    what: str, case: Case, name: str, store: Store, stop: Event, more: Mapping[str, Any] | None = None
) -> tuple[Ended, dict[str, Any] | None]:
    """How a process ended, and what it has written."""
    folder = store.work / f"{what}-{name}"
    with os_errors_named(f"write {os.fspath(folder)!r}"):
        folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "request.json", folder / "answer.json"
    answered.unlink(missing_ok=True)
    record = {
        "what": what,
        "case": _case_record(case),
        "settings": attrs.asdict(store.settings),
        "folder": os.fspath((store.minified / name).resolve()),
        **(more or {}),
    }
    write_json(asked, record)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": os.fspath(folder.resolve())}
    words = [sys.executable, "-c", _COMMAND, os.fspath(asked), os.fspath(answered)]
    seconds = store.settings.timeout + _STARTING_SECONDS
    ended = run_command(words, folder / "printed.txt", seconds, stop, environment)
    if hasattr(signal, "SIGALRM") and ended.code == -signal.SIGALRM:
        ended = Ended(None, ended.output)
    return ended, read_json(answered) if answered.exists() else None


def _case_record(case: Case) -> dict[str, Any]:
    def path_text(_: Any, __: Any, value: Any) -> Any:
        return os.fspath(value) if isinstance(value, Path) else value

    return attrs.asdict(case, value_serializer=path_text)


def _case_of(record: Mapping[str, Any]) -> Case:
    optional = {name: None if record[name] is None else Path(record[name]) for name in ("expected", "dump")}
    return Case(
        name=record["name"],
        kind=record["kind"],
        files=tuple(map(Path, record["files"])),
        inputs=tuple(map(Path, record["inputs"])),
        **optional,
    )


def work(arguments: Sequence[str] | None = None) -> None:
    """What the process does."""
    asked, answered = map(Path, sys.argv[1:] if arguments is None else arguments)
    request = read_json(asked)
    case, settings = _case_of(request["case"]), Settings(**request["settings"])
    _limit(settings)
    if request["what"] == "judge":

        def tell(module: TriagedModule, *, is_partial: bool = True) -> None:
            write_json(answered, {"module": attrs.asdict(module), "is_partial": is_partial})

        tell(judged(case, settings, tell), is_partial=False)
        return
    module = TriagedModule.of_record(request["module"])
    write_json(answered, attrs.asdict(_minified(case, module, settings, Path(request["folder"]))))


def warn_of_unlimited_memory(size: int) -> None:
    """Warn where `_limit` does not hold: elsewhere the limit is of a heap in which no large array lies."""
    if sys.platform != "linux":
        warn(
            "only on Linux can the memory of a process be limited: a module is refused if its run is estimated to take "
            f"more than {byte_text(size)}, but nothing ends one that takes more"
        )


def _limit(settings: Settings) -> None:
    """No process may take more memory or time from now on; what the system does not limit so is as it was."""
    if hasattr(signal, "setitimer"):
        # What ends the process by default waits for no kernel.
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory, settings.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _minified(case: Case, module: TriagedModule, settings: Settings, folder: Path) -> MinifiedModule:
    try:
        with warnings.catch_warnings(action="ignore", category=HloWarning):
            found = _smallest(case, module, settings)
        found.save(folder)
    except (HloError, MemoryError) as error:
        return MinifiedModule(case.name, None, reason=str(error) or "there is not enough memory")
    return MinifiedModule(
        module_name=case.name,
        folder=os.fspath(folder),
        failure=found.failure,
        instruction_count=found.instruction_count,
        given_instruction_count=found.instruction_count_before,
        largest_dimension=found.largest_dimension,
        is_complete=found.is_complete,
        is_confirmed=found.is_confirmed,
        hlo_text=format_module(found.module),
        command=shlex.join(found.command),
    )


def _smallest(case: Case, module: TriagedModule, settings: Settings) -> Minified:
    """What `minify` makes of a case that differs."""
    options = {"budget": _BUDGET_SHARE * settings.timeout, **settings.options}
    if case.kind == "stages":
        _, step, _ = stages_to_blame(case, settings)
        if step is None:
            raise InputError("no stage differs any more")
        return minify(load(step.after.path), differs_from=load(step.before.path), **options)
    if case.kind == "pair":
        before, after = map(load, case.files)
        return minify(after, inputs_of(case, before, settings), differs_from=before, **options)
    snapshot = load_with_values(case.files[0])
    inputs = inputs_of(case, snapshot.module, settings, snapshot)
    if module.explained is not None:
        # A smaller module computes something else, for which nothing was recorded; the policy gives it, and in no time.
        return minify(snapshot.module, inputs, against=f"policy:{module.explained.policy}", **options)
    if not has_results(case, snapshot):
        return minify(snapshot.module, inputs, against=settings.against, **options)
    if module.difference == "NaN or infinities" and module.blamed is not None:
        return minify(snapshot.module, inputs, nan=True, **options)
    expected = snapshot.result if case.expected is None else read_result(case.expected, result_shapes(snapshot.module))
    return minify(snapshot.module, inputs, expected=expected, **options)
