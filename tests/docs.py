"""Runs the commands of a page of docs/ as they are written there, and holds what they print against the page.

A page's blocks of code that are fenced as `console` hold lines that start with `$ `, and what they print:

    ```console
    $ hloexec info examples/attention.hlo
    jit_attention  167 instructions in 6 computations, for one device
    …
    ```

The commands of a page are run one after the other in one folder, into which `examples/` is copied: by the shell, but
for those that are hloexec's or a script's alone. In either case this process does what `hloexec` and `pytest` would do:
the start of a process takes longer than most of what they do. A command is said to end with another exit code than 0 by
a comment: `$ hloexec compare a.npz b.npz  # exits with 1`.
Lines of output must be those of the page; a line `…` stands for any number of lines (what follows the last command of a
block may be left out as a whole), `…` within a line for any text, and numbers with a unit of time for any such.
Blocks with a first line `# FILE` (as `python`) or `// FILE` (as `hlo`) are files that are written before the next
command is run.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from unittest import mock

import attrs
import hypothesis
import pytest

from hloexec import pytest_plugin
from hloexec.cli import main
from hloexec.ops.registry import USER_CALLS
from tests.report.needs import require_report_packages

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(console|\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXITS = re.compile(r"\s+# exits with (\d+)$")
_FILE = re.compile(r"(?:#|//) ([\w./-]+\.\w+)\n")
_SECONDS = re.compile(r"\b[\d.]+ ?(?:µs|ms|s|min)\b")
_QUOTED = re.compile("'[^']*'")
_SHELL = re.compile(r"[|<>;&*]|\$\(")
_SHELL_TIMEOUT = 300
_ALONE = [
    word
    for name in "cacheprovider faulthandler threadexception unraisableexception".split()
    for word in ("-p", f"no:{name}")
]
"""Without the plugins that look at all there is in a process."""
_ASKING = """#!{python} -IS
import os, socket, sys
with socket.socket(fileno={asked}) as asked:
    words = [os.getcwd(), os.path.basename(sys.argv[0]), *sys.argv[1:]]
    socket.send_fds(asked, ["\\0".join(words).encode()], [0, 1, 2])
    sys.exit(asked.recv(1)[0])
"""
"""A program that tells the test what it was started with, and ends as it is told."""


@attrs.frozen
class Command:
    """A command of a page, or a file."""

    text: str
    output: tuple[str, ...] = ()
    code: int = 0
    file: str | None = None
    """Of a file, its name; `text` is its content."""


@attrs.frozen
class Ran:
    """What a command printed, and its exit code."""

    out: str
    code: int
    errors: str = ""
    """What it wrote to standard error, where that is not in `out`."""


def commands_of(page: Path) -> list[Command]:
    """The commands and files of a page in their order."""
    found: list[Command] = []
    for language, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            found += _console_commands(body)
        elif match := _FILE.match(body):
            found.append(Command(body, file=match[1]))
    return found


def _console_commands(body: str) -> list[Command]:
    found = []
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, *output = part.rstrip("\n").split("\n")
        while command.endswith("\\") and output:
            command = f"{command[:-1].rstrip()} {output.pop(0).strip()}"
        match = _EXITS.search(command)
        found.append(Command(_EXITS.sub("", command), tuple(output), int(match[1]) if match else 0))
    return found


def run_page(page: Path, folder: Path) -> None:
    """Run what a page says in a folder; fails where a command ends or prints otherwise than the page says."""
    for command in start_page(page, folder):
        run_command(command, folder, page.name)


def start_page(page: Path, folder: Path) -> list[Command]:
    """The commands of a page, which has some, and what they find in their folder."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    commands = commands_of(page)
    assert any(command.file is None for command in commands), f"{page.name} has no commands"
    if any(requires_graphviz(command.text) for command in commands):
        pytest.skip("Graphviz is not installed")
    if any("xla-cpu" in command.text or "import jax" in command.text for command in commands):
        pytest.importorskip("jax", reason="JAX is not installed, which commands of the page run")
    if any("--html" in command.text for command in commands):
        require_report_packages()
    if any(re.search(r"hloexec (shrink|minify|triage)|--shrink", command.text) for command in commands):
        pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")
    return commands


def run_command(command: Command, folder: Path, page: str) -> None:
    """Write a file, or run a command; fails where it ends or prints otherwise than the page says."""
    if command.file is not None:
        path = folder / command.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(command.text, encoding="utf-8")
        return
    if words := hloexec_words(command):
        ran = run_here(words, folder, COLUMNS="120")
    elif words := _script_words(command):
        ran = _run_script(words, folder)
    else:
        ran = _run_by_shell(command, folder)
    require_as_written(command, ran, page)


def require_as_written(command: Command, ran: Ran, page: str) -> None:
    """Fail where a command ended or printed otherwise than the page says."""
    printed = ran.errors + ran.out
    where = f"{page}: $ {command.text}"
    if ran.code != command.code:
        pytest.fail(f"{where}\nended with {ran.code}, not {command.code}:\n{printed}", pytrace=False)
    if command.output and not _matches(command.output, printed.splitlines()):
        shown = "\n".join(command.output)
        pytest.fail(f"{where}\nprinted\n{printed}\nbut the page has\n{shown}", pytrace=False)


def hloexec_words(command: Command) -> list[str]:
    """The arguments of a command that is hloexec's alone; none where the shell does more."""
    return _words_after("hloexec", command)


def _script_words(command: Command) -> list[str]:
    """A script and its arguments, where Python alone runs it; none elsewhere."""
    words = _words_after("python", command)
    return words if words and words[0].endswith(".py") else []


def _words_after(program: str, command: Command) -> list[str]:
    needs_shell = command.file is not None or _SHELL.search(_QUOTED.sub("", command.text))
    words = [] if needs_shell else shlex.split(command.text)
    return words[1:] if words[:1] == [program] else []


def requires_graphviz(text: str) -> bool:
    """Whether a command makes an image, for which there is no Graphviz here."""
    return "hloexec graph" in text and ".svg" in text and shutil.which("dot") is None


def run_here(words: Sequence[str], folder: Path, **environment: str) -> Ran:
    """Run a command of hloexec's in this process, with `folder` as the current one."""
    out, errors = io.StringIO(), io.StringIO()
    # What a command starts as `python` is that of the test.
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    with _as_if_started(folder, out, errors, environment):
        code = main(words)
    return Ran(out.getvalue(), code, errors.getvalue())


def _run_script(words: Sequence[str], folder: Path) -> Ran:
    """Run a script in this process, which has imported already what most of them import."""
    out, code = io.StringIO(), 0
    with (
        _as_if_started(folder, out, out, {"COLUMNS": "120"}),
        mock.patch.object(sys, "argv", list(words)),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = _print_warning
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    return Ran(out.getvalue(), code)


def _print_warning(message: object, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    print(warnings.formatwarning(str(message), category, filename, lineno), end="", file=sys.stderr)


def run_pytest(words: Sequence[str], folder: Path, **environment: str) -> Ran:
    """Run pytest in this process, with hloexec's plugin alone; of what it has imported and set, nothing stays."""
    out, before, profile = io.StringIO(), set(sys.modules), hypothesis.settings.get_current_profile_name()
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "120"} | environment
    hypothesis.settings.load_profile("default")
    with _as_if_started(folder, out, out, environment), mock.patch.object(sys, "path", [*sys.path]):
        code = pytest.main([*_ALONE, *words], plugins=[pytest_plugin])
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
    hypothesis.settings.load_profile(profile)
    return Ran(out.getvalue(), int(code))


@contextlib.contextmanager
def _as_if_started(folder: Path, out: IO[str], errors: IO[str], environment: dict[str, str]) -> Iterator[None]:
    """A program's folder, streams and environment; the library calls that it registers are gone afterwards.

    The first `python` on its path is that of the test.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (
        mock.patch.dict(USER_CALLS),
        mock.patch.dict(os.environ, {"PATH": path, **environment}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        for name in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"} - environment.keys():
            os.environ.pop(name, None)
        yield


def _run_by_shell(command: Command, folder: Path) -> Ran:
    """`hloexec` and `pytest` are this process, `python` is that of the test."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    asked, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.settimeout(_SHELL_TIMEOUT)
    ask = _ASKING.format(python=sys.executable, asked=asking.fileno())
    for name, text in {"hloexec": ask, "pytest": ask, "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }
    with (
        asked,
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        subprocess.Popen(
            ["/bin/sh", "-c", command.text],
            cwd=folder,
            env=environment,
            pass_fds=[asking.fileno()],
            stdout=printed,
            stderr=subprocess.STDOUT,
        ) as shell,
    ):
        asking.close()
        while (question := socket.recv_fds(asked, 1 << 16, 3))[0]:
            asked.send(bytes([_answer(*question[:2])]))
        shell.wait(_SHELL_TIMEOUT)
        printed.seek(0)
        return Ran(printed.read(), shell.returncode)


def _answer(question: bytes, streams: Sequence[int]) -> int:
    """Do what a program was started for, with its standard streams; its exit code."""
    folder, program, *words = question.decode().split("\0")
    with (
        open(streams[0], encoding="utf-8") as given,
        open(streams[1], "w", encoding="utf-8") as out,
        open(streams[2], "w", encoding="utf-8") as errors,
    ):
        if program == "pytest":
            ran = run_pytest(words, Path(folder))
            out.write(ran.out)
            return ran.code
        with _as_if_started(Path(folder), out, errors, {"COLUMNS": "120"}), mock.patch.object(sys, "stdin", given):
            return main(words)


def _matches(pattern: tuple[str, ...], lines: list[str]) -> bool:
    """Whether lines are those of the page, blank ones at either end aside."""
    parts = [r"(?:.*\n)*?" if line.strip() == "…" else _line(line) for line in _trimmed(pattern)]
    return re.fullmatch("".join(parts), "".join(f"{line.rstrip()}\n" for line in _trimmed(lines))) is not None


def _line(line: str) -> str:
    seconds = _SECONDS.sub("\0", line.rstrip())
    escaped = re.escape(seconds).replace("…", ".*").replace(re.escape("\0"), _SECONDS.pattern)
    return f"{escaped}\n"


def _trimmed(lines: tuple[str, ...] | list[str]) -> list[str]:
    found = list(lines)
    while found and not found[-1].strip():
        found.pop()
    while found and not found[0].strip():
        found.pop(0)
    return found
