"""Help texts: examples that run, nothing lost on a narrow terminal, and completion in shells."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import click
import numpy as np
import pytest

from hloexec.cli import TOOLS, _hloexec, main
from tests.command_line import CommandLine
from tests.docs import requires_graphviz
from tests.here import triaging_here
from tests.otherwise import problems

ROOT = Path(__file__).parents[2]


def _commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*names, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, *names, name)


COMMANDS = dict(_commands(_hloexec))


def _examples(command: click.Command) -> list[list[str]]:
    text = (command.epilog or "").replace("\\\n", "")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("  hloexec")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What examples name."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("module", "before", "after"):
        shutil.copy(ROOT / "examples" / "attention.hlo", f"{name}.hlo")
    shutil.copy(ROOT / "examples" / "data_parallel_step.hlo", "step.hlo")
    for name in ("a", "b", "gpu"):
        np.savez(f"{name}.npz", value=np.ones((16, 32), np.float32))
    (tmp_path / "work/dumps").mkdir()
    for side in ("before", "after"):
        shutil.copy(ROOT / "examples" / "rnn_scan.hlo", f"dumps/jit_step.{side}.hlo")
    return tmp_path / "work"


@pytest.mark.slow_cases("run", "precision")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_examples_that_run(names: tuple[str, ...], folder: Path) -> None:
    found = _examples(COMMANDS[names])
    assert found
    if names == ("golden", "check"):
        found = _examples(COMMANDS["golden", "record"]) + found
    for words in found:
        if requires_graphviz(shlex.join(words)):
            pytest.skip("Graphviz is not installed")
        assert words[1 : len(names)] == list(names[:-1])
        # tf32 rounds otherwise than the reference, as the example shows; isolate says that this explains it.
        code = int("tf32" in words and words[1] != "isolate")
        with triaging_here():
            assert problems(words[1:], code, folder) == []


@pytest.mark.parametrize("names", [(), *COMMANDS], ids=" ".join)
def test_help_says_the_same_on_narrow_terminals(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    shown = []
    for columns in (1000, 80, 40):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = cli(*names, "--help").splitlines()
        longest_name = max(len(line) for line in lines if len(line.split()) == 1 or line.lstrip().startswith("-"))
        assert all(len(line) <= max(columns, longest_name) for line in lines)
        shown.append("".join("".join(lines).split()))
    assert shown[0] == shown[1] == shown[2]
    assert "..." not in shown[2].replace("[ARGS]...", "").replace("DIR...", "")
    assert shown[2].startswith("Usage:hloexec")


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_of_a_tool_with_records_prints_json(names: tuple[str, ...]) -> None:
    command = COMMANDS[names]
    options = {name for parameter in command.params for name in parameter.opts}
    assert ("--json" in options) == (bool(TOOLS[names[0]].records) and not isinstance(command, click.Group))


def _completed(shell: str, **environment: str) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        mock.patch.dict(os.environ, {"_HLOEXEC_COMPLETE": shell, **environment}),
        redirect_stdout(out),
        pytest.raises(SystemExit) as ended,
    ):
        main([])
    assert ended.value.code == 0
    out.seek(0)
    return out.read()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_given_a_script(shell: str) -> None:
    script = _completed(f"{shell}_source")
    assert f"_HLOEXEC_COMPLETE={shell}_complete" in script
    assert f"_HLOEXEC_COMPLETE={shell}_source hloexec" in (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def test_commands_and_options_are_completed() -> None:
    names = _completed("bash_complete", COMP_WORDS="hloexec ", COMP_CWORD="1").splitlines()
    assert names == [f"plain,{name}" for name in TOOLS]
    words = _completed("bash_complete", COMP_WORDS="hloexec run module.hlo --dist", COMP_CWORD="3").splitlines()
    assert words == ["plain,--distribution"]
    words = _completed("bash_complete", COMP_WORDS="hloexec compare --check-error m", COMP_CWORD="3").splitlines()
    assert words == ["plain,max", "plain,median", "plain,mean"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_HLOEXEC_COMPLETE": "bash_source"}
    words = [sys.executable, "-m", "hloexec"]
    script = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert script.strip() == _completed("bash_source").strip()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert re.search(r"^ *complete .* hloexec$", script, re.MULTILINE)
