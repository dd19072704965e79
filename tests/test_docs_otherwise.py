"""The commands of the documentation on a narrow terminal, without colours, and as JSON: they say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import PAGES, commands_of, hloexec_words, run_command, start_page
from tests.otherwise import Runner, problems


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_commands_say_the_same_otherwise(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    run = Runner(folder)
    for command in start_page(page, folder):
        words = hloexec_words(command)
        if words:
            found = list(problems(words, command.code, run))
            assert not found, "\n".join([command.text, *found])
        else:
            run_command(command, folder, page.name)
