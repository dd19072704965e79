"""Runs commands of hloexec's in this process, each of which has to end with the exit code that is expected."""

from pathlib import Path
from typing import Any

import pytest

from hloexec.cli import main
from tests.records import read_record


class CommandLine:
    """The fixture `cli`: what commands print. Their first words are a line that is split; others may have spaces."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, *words: str | Path, code: int = 0) -> str:
        """On standard output."""
        return self.ended(line, *words, code=code).out

    def complaint(self, line: str, *words: str | Path, code: int = 2) -> str:
        """On standard error."""
        return self.ended(line, *words, code=code).err

    def record(self, line: str, *words: str | Path, code: int = 0) -> Any:
        """With `--json`."""
        return read_record(self(line, *words, "--json", code=code))

    def ended(self, line: str, *words: str | Path, code: int = 0) -> Any:
        """On both, as `out` and `err`."""
        self._capsys.readouterr()
        found = main([*line.split(), *map(str, words)])
        printed = self._capsys.readouterr()
        assert found == code, printed
        return printed
