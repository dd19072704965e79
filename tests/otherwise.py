"""Runs a command on a narrow terminal, without colours, and as JSON, and says where it then says something else."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docs import Ran, run_here
from tests.records import read_record

__all__ = ["Runner", "problems"]

_STYLE = re.compile(r"\x1b\[([\d;]*)m")
_SECONDS = re.compile(r"\b[\d.]+ (?:µs|ms|s)\b")
_WITHOUT_JSON = ("fmt", "schema")


class Runner:
    """Runs commands in a folder, or in a copy of it where it is to stay as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def in_a_copy(self, *words: str, **environment: str) -> Ran:
        copy = self._folder.with_name(f"{self._folder.name}-copy")
        shutil.copytree(self._folder, copy)
        ran = run_here(words, copy, **environment)
        shutil.rmtree(copy)
        return ran

    def in_place(self, *words: str) -> Ran:
        return run_here(words, self._folder)


def problems(words: Sequence[str], code: int, run: Runner, columns: int = 40) -> Iterator[str]:
    """What a command that ends with `code` does wrong in other surroundings, a sentence each.

    Its files stay in the folder, as after a run of the command.
    """
    has_json = words[0] not in _WITHOUT_JSON
    said = _without_page(words)
    narrow = run.in_a_copy(*said, COLUMNS=str(columns), FORCE_COLOR="1", NO_COLOR="1")
    codes = [narrow.code]
    if has_json and "--json" not in words:
        ran = run.in_a_copy(*said, "--json")
        read_record(ran.out)
        codes.append(ran.code)
    plain = run.in_place(*words)
    codes.append(plain.code)
    if has_json and "--json" in words:
        read_record(plain.out)
    elif has_json:
        lost = _characters(plain.out) - _characters(narrow.out)
        if lost or narrow.out.count("…") > plain.out.count("…"):
            yield f"{''.join(lost)} lost, or something cut:\n{plain.out}\n{_STYLE.sub('', narrow.out)}"
    if "\x1b" in plain.out:
        yield "there are styles where there is no terminal"
    styles = {number for found in _STYLE.findall(narrow.out) for number in found.split(";")}
    if not styles <= {"", "0", "1", "2", "3"}:
        yield f"there are colours under NO_COLOR: {styles}"
    if set(codes) != {code}:
        yield f"ended with {codes}, not {code}"


def _without_page(words: Sequence[str]) -> list[str]:
    """Without --html and its file: a page is the same, whatever the terminal is, and takes long to draw."""
    where = words.index("--html") if "--html" in words else len(words)
    return [*words[:where], *words[where + 2 :]]


def _characters(out: str) -> Counter[str]:
    """What is said, wherever its lines end; times are never the same."""
    return Counter(_SECONDS.sub("", " ".join(_STYLE.sub("", out).split())).replace(" ", ""))
