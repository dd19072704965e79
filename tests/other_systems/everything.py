"""`python everything.py FOLDER`: import all of hloexec, run the modules in a folder and the command lines that standard
input has as JSON, and print what came of each as JSON."""

import hashlib
import importlib
import io
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import hloexec
from hloexec.core.tree import flat


def digests(folder: Path) -> dict[str, list[str]]:
    """The SHA-256 of each array that the modules of a folder give, by their files."""
    found = {}
    for path in sorted(folder.glob("*.hlo")):
        module = hloexec.load(path)
        results = hloexec.run_devices(module, hloexec.random_inputs(module, seed=0), numerics="exact")
        found[path.name] = [hashlib.sha256(leaf.tobytes()).hexdigest() for each in results for leaf in flat(each)]
    return found


def _main() -> None:
    lines: list[list[str]] = json.load(sys.stdin)
    os.chdir(sys.argv[1])
    parts: list[Callable[[], Any]] = [
        _absent,
        _import_all,
        _recorded_twice,
        _stopped,
        _machine,
        partial(digests, Path()),
    ]
    parts += [partial(_ran, *line) for line in lines]
    print(json.dumps([_tried(part) for part in parts]))


def _tried(part: Callable[[], Any]) -> Any:
    """What a part returns, or the traceback of what it raises."""
    try:
        return part()
    except BaseException:
        return traceback.format_exc()


def _absent() -> list[bool]:
    """Whether some of what only Linux has is there."""
    found = [
        os.path.exists("/proc/self"),
        hasattr(os, "fork"),
        hasattr(os, "sched_getaffinity"),
        sys.platform == "linux",
    ]
    return [*found, importlib.util.find_spec("resource") is not None]


def _import_all() -> int:
    names = [found.name for found in pkgutil.walk_packages(hloexec.__path__, "hloexec.")]
    for name in names:
        importlib.import_module(name)
    return len(names)


def _recorded_twice() -> bool:
    """A folder is replaced."""
    module = hloexec.load("doubles.hlo")
    for replace in (False, True):
        hloexec.record_golden(module, None, "twice.golden", replace=replace)
    return hloexec.check_golden("twice.golden").passed


def _stopped() -> str:
    """What is said of a command that takes too long, and of one that Windows ends as it crashes."""
    from hloexec.tools.executing.processes import Ended, run_command

    with tempfile.TemporaryDirectory() as folder:
        late = run_command([sys.executable, "-c", "import time; time.sleep(60)"], Path(folder, "printed"), 0.2)
    crashed = Ended(0xC0000005, "")
    return f"{late.outcome}; {crashed.outcome}: {crashed}"


def _machine() -> str:
    """What benchmarks are measured on."""
    from benchmarks.growth import rows
    from benchmarks.results import machine

    return f"{machine()['memory_bytes']} {next(iter(rows([0.01])))['peak MB/MB']}"


def _ran(given: str, *words: str) -> list[Any]:
    """The exit code of a command, and what it prints; it is started as from a shell, with a text as standard input."""
    from hloexec.cli import main

    sys.argv, sys.stdin = ["hloexec", *words], io.StringIO(given)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        code = main()
    return [code, out.getvalue(), errors.getvalue()]


if __name__ == "__main__":
    _main()
