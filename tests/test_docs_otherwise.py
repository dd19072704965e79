"""The commands of the documentation on a narrow terminal, without colours, and as JSON: they say the same."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs import PAGES, Command, commands_of, run_command, start_page
from tests.otherwise import Runner, problems

SHELL = re.compile(r"[|<>;&]|\$\(")


def _words(command: Command) -> list[str]:
    """The words of a command that is hloexec's alone; none where the shell does more."""
    words = [] if command.file is not None or SHELL.search(command.text) else shlex.split(command.text)
    return words[1:] if words[:1] == ["hloexec"] else []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_commands_say_the_same_otherwise(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    run = Runner(folder, monkeypatch)
    for command in start_page(page, folder):
        words = _words(command)
        if words:
            found = list(problems(words, command.code, run))
            assert not found, "\n".join([command.text, *found])
        else:
            run_command(command, folder, page.name)
