"""Records what a GPU computes: `python -m conformance.record_gpu -o FOLDER [--only PATTERN]`.

Needs JAX on the machine whose device is recorded (CUDA, by default), NumPy, ml_dtypes, and this repository. The folder
gets `recording.json`, and for each program of `conformance.gpu_programs` a folder with its module before and after
optimization (`before.hlo.gz`, `optimized.hlo.gz`), `inputs.npz` and `outputs.npz`. Programs run in a process of their
own; one that fails is listed with what it said, and the rest goes on. `recording.json` is written after each program,
so that what an interrupted recording has done is kept, and another call with the same folder adds to it.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from conformance.gpu_recording import policy_of, serve
from conformance.worker import Worker, XlaRefused
from hloexec.core.files import open_atomically

FORMAT = 1
INDEX = "recording.json"
_LIMIT = 15_000_000
_UNUSABLE = ("CUDA_ERROR", "illegal memory access", "misaligned address", "unspecified launch failure")
"""What is said of a device whose process has to be started again."""


class _Refused(Exception):  # noqa: N818 - a refusal is an answer
    """Why nothing is recorded."""


def record(
    folder: Path, patterns: list[str], limit: int = _LIMIT, timeout: float = 180.0, missing: bool = False
) -> dict[str, Any]:
    """Record the programs whose names match a pattern; the index, as it stands in `recording.json`.

    `missing` leaves alone what the folder holds already. Raises _Refused where the folder, the patterns or JAX do not
    allow it.
    """
    programs = _programs(patterns)
    index = _index(folder)
    if missing:
        programs = [program for program in programs if program.name not in index["programs"]]
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    worker = Worker(timeout, serve)
    try:
        _describe_machine(worker, index, folder)
        for number, program in enumerate(programs, 1):
            line = _record_one(worker, program, folder, index, limit)
            print(f"{number:3}/{len(programs)} {program.name:36} {line}", flush=True)
            _write_index(folder, index)
    finally:
        worker.close()
    return index


def _programs(patterns: list[str]) -> list[Any]:
    try:
        from conformance.gpu_programs import PROGRAMS
    except ImportError as error:
        raise _Refused(f"recording needs JAX, which cannot be imported here: {error}") from error
    unmatched = [pattern for pattern in patterns if not fnmatch.filter(PROGRAMS, pattern)]
    if unmatched:
        some = ", ".join(list(PROGRAMS)[:4])
        raise _Refused(f"no program is called {' or '.join(unmatched)}; --list shows all of them ({some}, …)")
    return [program for name, program in PROGRAMS.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def _index(folder: Path) -> dict[str, Any]:
    """The folder's index, or a new one. The folder is made, and tried whether it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
        path = folder / INDEX
        if not path.exists():
            if any(folder.iterdir()):
                raise _Refused(f"{folder} holds files and no {INDEX}: give an empty folder, or a recording to add to")
            return {"format": FORMAT, "machine": None, "programs": {}, "failed": {}}
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _Refused(f"cannot write to {folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise _Refused(f"{folder / INDEX} is no JSON: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise _Refused(f"{folder / INDEX} is not of format {FORMAT}: give an empty folder")
    return index


def _describe_machine(worker: Worker, index: dict[str, Any], folder: Path) -> None:
    try:
        machine = worker.ask("machine")
    except XlaRefused as error:
        raise _Refused(f"JAX finds no device: {error}") from error
    # As it reads when it comes from a file.
    machine = json.loads(json.dumps(machine))
    if index["machine"] not in (None, machine):
        raise _Refused(f"{folder} holds a recording of another machine or other versions: give another folder")
    index["machine"] = machine
    print(f"{machine['platform']}: {machine['device_kind']} {machine['compute_capability'] or ''}", flush=True)


def _record_one(worker: Worker, program: Any, folder: Path, index: dict[str, Any], limit: int) -> str:
    """Record a program into the folder and the index; a line that says how it went."""
    name = program.name
    shutil.rmtree(folder / name, ignore_errors=True)
    index["programs"].pop(name, None)
    index["failed"].pop(name, None)
    try:
        recorded = worker.ask(name)
    except XlaRefused as error:
        if any(words in str(error) for words in _UNUSABLE):
            worker.close()
        index["failed"][name] = {"about": program.about, "error": str(error)}
        return f"failed: {error}"
    files = {
        "before.hlo.gz": gzip.compress(recorded["before"].encode(), mtime=0),
        "optimized.hlo.gz": gzip.compress(recorded["optimized"].encode(), mtime=0),
        "inputs.npz": recorded["inputs"],
        "outputs.npz": recorded["outputs"],
    }
    size = sum(map(len, files.values()))
    used = sum(entry["bytes"] for entry in index["programs"].values())
    if used + size > limit:
        error_text = f"left out: its {size} bytes would exceed the limit of {limit} for all"
        index["failed"][name] = {"about": program.about, "error": error_text}
        return error_text
    (folder / name).mkdir()
    for filename, content in files.items():
        with open_atomically(folder / name / filename) as file:
            file.write(content)
    index["programs"][name] = {
        "about": program.about,
        "element_type": program.type_name,
        "rule": program.rule,
        "precision": program.precision,
        "policy": policy_of(index["machine"], program.precision),
        "compiler_options": dict(program.options),
        "options_refused": recorded["options_refused"],
        "custom_calls": recorded["custom_calls"],
        "bytes": size,
        "seconds": recorded["seconds"],
    }
    return f"{size:7} bytes  {recorded['seconds']:6.2f} s  {' '.join(recorded['custom_calls'])}"


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    with open_atomically(folder / INDEX) as file:
        file.write((json.dumps(index, indent=1, sort_keys=True) + "\n").encode())


def main(arguments: list[str] | None = None) -> int:
    """The command; 0 where something was recorded, 1 where nothing was, 2 for what cannot be asked."""
    parser = argparse.ArgumentParser(prog="python -m conformance.record_gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="where the recording goes")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="only programs of this name, with * and ?")
    parser.add_argument("--missing", action="store_true", help="only programs that FOLDER does not hold yet")
    parser.add_argument("--limit", metavar="BYTES", type=int, default=_LIMIT, help="of all files (%(default)s)")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=180.0, help="per program (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the programs, and record nothing")
    options = parser.parse_args(arguments)
    patterns = options.only or ["*"]
    try:
        if options.list:
            for program in _programs(patterns):
                print(f"{program.name:36} {program.about}")
            return 0
        if options.output is None:
            parser.error("-o FOLDER is needed")
        index = record(options.output, patterns, options.limit, options.timeout, options.missing)
    except _Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(entry["bytes"] for entry in index["programs"].values())
    print(f"{len(index['programs'])} recorded, {size} bytes; {len(index['failed'])} failed")
    return 0 if index["programs"] else 1


if __name__ == "__main__":
    sys.exit(main())
