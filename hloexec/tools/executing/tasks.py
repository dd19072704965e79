"""Tasks: what a worker does in a process of its own, which may crash, hang or run out of memory.

A task is a function of hloexec, a request that JSON can hold, and the files that the request names; or a command and
the files that it is run on. It travels as the bytes of a ZIP archive, and so does the answer: workers need hloexec and
nothing else. Wherever the files lie there, what the function is told and what it answers have the request's paths.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import attrs

from hloexec.core.files import open_atomically
from hloexec.core.process import KERNELS, better_kernels
from hloexec.core.structs import define, frozen
from hloexec.core.tree import fold, of_sequence
from hloexec.core.wording import byte_text
from hloexec.errors import HloError, HloWarning, InputError, OptimizationWarning, os_errors_named, warn
from hloexec.tools.executing.processes import Ended, Stop, run_command

Json: TypeAlias = "dict[str, Any]"
Tell: TypeAlias = "Callable[[Mapping[str, Any]], None]"
"""Takes what is known so far, which counts if the process does not come to its end."""

_COMMAND = "from hloexec.tools.executing.tasks import work; work()"
_STARTING_SECONDS = 10.0
"""What the start of a process may take besides, on a busy machine; the process itself counts the time from then on."""
_TASK, _ANSWER, _FILES, _CONTENTS, _MADE = "task.json", "answer.json", "files", "contents", "made"
THREADS = "OMP_NUM_THREADS"
"""The variable that says with how many threads a process works (`resources.core_count`)."""
PLACE = "{}"
"""What stands in a command for the folder of its files."""
_NO_ANSWER: Json = {"refused": "", "working_seconds": 0.0, "answer": None, "is_partial": True, "warnings": []}
MOST_CARRIED = 256 << 20
"""Bytes of files that a task carries at most."""


@frozen
class Task:
    """What is to be done in one process."""

    function: str
    """`module:name` of what is called with the request, a `Tell`, and a folder for files that belong to the answer."""
    request: Mapping[str, Any]
    files: tuple[str, ...]
    """The paths in the request, which may also have the folders that they are in."""
    seconds: float
    """What it may take."""
    memory: int
    """Bytes that it may take; -1 for as many as there are."""
    words: tuple[str, ...] = ()
    """A command in place of the function, in the worker's working folder and without a limit of memory. `{}` in a word
    stands for the folder of `contents`."""
    contents: Mapping[str, bytes] = attrs.field(factory=dict)
    """What is in the files that a command is run on, by their names."""
    variables: Mapping[str, str] = attrs.field(factory=dict)
    """Of the function's environment."""
    located: tuple[str, ...] = ()
    """The entries of the request that have paths; a text in others is none, whatever it says."""


@define(eq=False)
class Reply:
    """What came of a task."""

    ended: Ended
    answer: Json | None
    """What the function returned, or told last; None where it did neither."""
    is_partial: bool
    """Whether the process ended before the function did."""
    seconds: float
    """By the worker's clock, the process's start included."""
    working_seconds: float = 0.0
    """What the function took, where it came to its end."""
    made: Mapping[str, bytes] = attrs.field(factory=dict)
    """The files that the function has made, by their names."""
    warnings: Sequence[tuple[str, bool]] = ()
    """What the function has warned of, if it came to its end, and whether that is an optimization that failed."""
    is_lost: bool = False
    """Whether it was the worker that ended, each time."""

    def failure(self, seconds: float) -> str:
        """What kept the function from its end, in words, where it might take so many seconds."""
        if self.ended.code is None:
            return f"it took more than {seconds:g} s"
        return f"{self.ended}: {(self.ended.output.strip().splitlines() or ['it printed nothing'])[-1]}"

    def warn(self) -> None:
        """Warn of the same in this process."""
        for text, is_optimization in self.warnings:
            warn(text, OptimizationWarning if is_optimization else HloWarning)

    def save(self, folder: Path) -> None:
        """Write the files that the function has made."""
        for name, data in self.made.items():
            path = folder / name
            with os_errors_named(f"write {os.fspath(path)!r}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


# Where tasks come from


def packed(task: Task, way: str) -> bytes:
    """A task as a worker takes it.

    `way` says how it comes to files: `here` where worker and caller share a working folder, `shared` where they see the
    same files by their absolute paths, `carried` where the task has to bring them. Raises InputError where they cannot
    be read, or all is too large to be carried.
    """
    folders = _folders(task.files)
    record: Json = {
        "function": task.function,
        "request": task.request,
        "seconds": task.seconds,
        "memory": task.memory,
        "identity": {} if way == "here" else identity(),
        "has_kernels": KERNELS in os.environ,
        "files": task.files,
        "way": way,
        "working_folder": os.getcwd() if way == "shared" else None,
        "words": task.words,
        "located": task.located,
        "variables": task.variables,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_TASK, json.dumps(plain(record)))
        if way == "carried":
            _require_portable(task)
            for path in task.files:
                with os_errors_named(f"read {path!r}"):
                    archive.write(path, f"{folders[_folder_of(path)]}/{os.path.basename(path)}")
        for name, data in task.contents.items():
            archive.writestr(f"{_CONTENTS}/{name}", data, zipfile.ZIP_STORED)
    return buffer.getvalue()


def _folder_of(path: str) -> str:
    return os.fspath(Path(path).parent)


def _folders(files: Iterable[str]) -> dict[str, str]:
    """Where in an archive each folder of files is: under a number, as messages name it."""
    folders = dict.fromkeys(map(_folder_of, files))
    names = ["" if os.path.basename(folder) == os.pardir else os.path.basename(folder) for folder in folders]
    return {
        folder: f"{_FILES}/{number:04}/{name}".rstrip("/")
        for number, (folder, name) in enumerate(zip(folders, names, strict=True))
    }


def _require_portable(task: Task) -> None:
    name = [*task.files, *task.contents, ""][0]
    with os_errors_named(f"read {name!r}"):
        size = sum(os.stat(path).st_size for path in task.files) + sum(map(len, task.contents.values()))
    if size > MOST_CARRIED:
        hint = "; say that workers see the same files (shared), or leave it out" if task.files else ""
        raise InputError(
            f"{name!r} and what belongs to it have {byte_text(size)}, and a task carries {byte_text(MOST_CARRIED)} "
            f"at most{hint}"
        )


def unpacked(data: bytes) -> Reply | HloError | str:
    """What `answer` gave; an error where a command cannot run, a sentence where the worker has refused the task."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        record = json.loads(archive.read(_ANSWER))
        made = {name.removeprefix(f"{_MADE}/"): archive.read(name) for name in archive.namelist() if name != _ANSWER}
    if record["refused"]:
        return str(record["refused"])
    if "error" in record:
        return InputError(record["error"])
    ended = Ended(record["code"], record["output"])
    worked, warned = record["working_seconds"], record["warnings"]
    return Reply(ended, record["answer"], record["is_partial"], record["seconds"], worked, made, warned)


# What workers do


def answer(data: bytes, stop: Stop | None = None, threads: str = "") -> bytes:
    """Carry out a packed task in a process of its own, which ends early, too, once `stop` is set.

    It works with so many threads, unless this process's environment says otherwise; by default, on all processors.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hloexec-task-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(folder)
        task = json.loads((folder / _TASK).read_bytes())
        try:
            ended = _ended(folder, task, stop, threads)
        except InputError as error:
            where = "" if task["way"] == "here" else f"; that is {_machine()}"
            return _packed_answer({"refused": "", "error": f"{error}{where}"}, folder)
        written = folder / _ANSWER
        record = json.loads(written.read_bytes()) if written.exists() else _NO_ANSWER
        record = _renamed(record, [(str(place), original) for original, place in _places(task, folder)])
        record |= {"code": ended.code, "output": ended.output, "seconds": time.monotonic() - start}
        return _packed_answer(record, folder)


def _packed_answer(record: Json, folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_ANSWER, json.dumps(record))
        for path in sorted((folder / _MADE).rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())
    return buffer.getvalue()


def _ended(folder: Path, task: Json, stop: Stop | None, threads: str) -> Ended:
    printed, seconds = folder / "printed.txt", task["seconds"]
    if task["words"]:
        words = [word.replace(PLACE, os.fspath(folder / _CONTENTS)) for word in task["words"]]
        return run_command(words, printed, seconds, stop, is_guarded=task["way"] != "here")
    environment = {**({THREADS: threads} if threads else {}), **os.environ, **task["variables"]}
    environment |= better_kernels() if task["has_kernels"] else {}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": os.fspath(folder)}
    words = [sys.executable, "-c", _COMMAND, os.fspath(folder)]
    ended = run_command(words, printed, seconds + _STARTING_SECONDS, stop, environment, is_tied=True)
    if hasattr(signal, "SIGALRM") and ended.code == -signal.SIGALRM:
        return Ended(None, ended.output)
    return ended


def _places(task: Json, folder: Path) -> list[tuple[str, Path]]:
    """The folders of a task's files, as the request has them and where they are here, where these are not the same.

    Those in the working folder are: it is that of the caller, or has the files that came along.
    """
    if task["way"] != "carried":
        return []
    return [(name, folder / place) for name, place in _folders(task["files"]).items() if name != os.curdir]


def _enter_working_folder(task: Json, folder: Path) -> None:
    """Make the working folder one in which the paths of the request that are relative hold, as far as there is one."""
    own = _folders(task["files"]).get(os.curdir)
    if task["way"] == "carried" and own is not None:
        os.chdir(folder / own)
    elif task["way"] == "shared":
        with suppress(OSError):
            os.chdir(task["working_folder"])


def _renamed(value: Any, folders: Sequence[tuple[str, str]]) -> Any:
    """What JSON holds, with the first of each two folders replaced by the second in all texts."""

    def leaf(text: Any) -> Any:
        for old, new in folders if isinstance(text, str) else ():
            prefix = "" if new == os.curdir else f"{new}{os.sep}"
            text = text.replace(f"{old}{os.sep}", prefix).replace(old, new)
        return text

    return _mapped(value, leaf)


def _localized(value: Any, paths: Mapping[str, str]) -> Any:
    """A part of a request in which paths are those here."""
    return _mapped(value, lambda text: paths.get(text, text) if isinstance(text, str) else text)


def work(folder: Path | None = None) -> None:
    """What the process does, in the folder of its task."""
    if folder is None:
        folder = Path(sys.argv[1])
        Thread(target=_end_with_worker, daemon=True).start()
    task = json.loads((folder / _TASK).read_bytes())
    if refused := difference(task["identity"]):
        write_json(folder / _ANSWER, {**_NO_ANSWER, "refused": refused})
        return
    limit(task["seconds"], task["memory"])
    places = dict(_places(task, folder))
    paths = {original: os.fspath(place) for original, place in places.items()}
    files = [path for path in task["files"] if _folder_of(path) in places]
    paths |= {path: os.path.join(places[_folder_of(path)], os.path.basename(path)) for path in files}
    made = folder / _MADE
    made.mkdir(exist_ok=True)
    _enter_working_folder(task, folder)
    request = task["request"]
    request |= {name: _localized(request[name], paths) for name in task["located"]}

    def tell(answer: Mapping[str, Any]) -> None:
        write_json(folder / _ANSWER, {**_NO_ANSWER, "answer": answer})

    module, _, name = task["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", HloWarning)
        result = function(request, tell, made)
    worked = time.monotonic() - start
    ours = [warning.message for warning in said if isinstance(warning.message, HloWarning)]
    told = list(dict.fromkeys((str(message), isinstance(message, OptimizationWarning)) for message in ours))
    write_json(
        folder / _ANSWER,
        _NO_ANSWER | {"answer": result, "is_partial": False, "working_seconds": worked, "warnings": told},
    )


def _end_with_worker() -> None:
    """Wait until the worker has ended, which closes its end of the pipe, and end this process and what it started."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    if hasattr(os, "killpg"):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def limit(seconds: float, memory: int) -> None:
    """This process may take no more memory or time from now on; what the system does not limit so is as it was."""
    if hasattr(signal, "setitimer"):
        # What ends the process by default waits for no kernel.
        signal.setitimer(signal.ITIMER_REAL, seconds)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def warn_of_unlimited_memory(size: int) -> None:
    """Warn where `limit` does not hold: elsewhere the limit is of a heap in which no large array lies."""
    if sys.platform != "linux":
        warn(
            "only on Linux can the memory of a process be limited: a module is refused if its run is estimated to take "
            f"more than {byte_text(size)}, but nothing ends one that takes more"
        )


# Whether workers compute the same


@cache
def identity() -> Mapping[str, str]:
    """What must be equal for the results of two machines' processes to be comparable, by what it is called.

    How they round is found by a process that does nothing else, as a task's process has done nothing before.
    """
    from hloexec.ops.identity import versions

    command = "from hloexec.ops.identity import rounding; print(rounding())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    return {**versions(), "rounding": done.stdout.strip()}


def difference(expected: Mapping[str, str]) -> str:
    """What is otherwise in this process than in the one with that identity, as a sentence; empty where nothing is."""
    from hloexec.ops.identity import rounding, versions

    ours = {**versions(), "rounding": rounding()} if expected else {}
    for name, value in expected.items():
        if ours.get(name) == value:
            continue
        where = _machine()
        if name == "rounding":
            return (
                f"{where} rounds products or functions otherwise than this process, as other processors and builds of "
                "NumPy and BLAS do: results of the two are not those of one machine"
            )
        return f"{where} has {name} {ours.get(name)}, and this process {value}: install the same on both"
    return ""


def _machine() -> str:
    import platform

    return f"a worker on {platform.node() or 'another machine'}"


# JSON


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a file at once."""
    text = json.dumps(plain(record), indent=1, allow_nan=False, sort_keys=True)
    with os_errors_named(f"write {os.fspath(path)!r}"), open_atomically(path) as file:
        file.write(text.encode() + b"\n")


def plain(record: Any) -> Any:
    """What JSON holds of a value: numbers that it has none for, and paths, are text."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Path):
            return os.fspath(value)
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return _mapped(record, leaf)


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value for JSON with `leaf` of what is neither a mapping nor a list in its place."""
    return fold(
        value,
        lambda node: list(node.values()) if isinstance(node, Mapping) else of_sequence(node),
        leaf,
        lambda node, parts: dict(zip(node, parts, strict=True)) if isinstance(node, Mapping) else parts,
    )
