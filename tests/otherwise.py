"""Runs a command plainly, and on a narrow terminal, without colours, and as JSON; says where it then says something else.

What takes a command long is a search, which is the same however its result is shown. It is made once, by the plain run;
the others show what that has found.
"""

import importlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hloexec.core.ir import Module
from hloexec.tools.registration import TOOLS
from tests.docs import Ran, run_here
from tests.records import read_record

_STYLE = re.compile(r"\x1b\[([\d;]*)m")
_SECONDS = re.compile(r"\b[\d.]+ (?:µs|ms|s)\b")
_SEARCHES = (
    ("hloexec.tools.isolating", "isolate"),
    ("hloexec.tools.diffing", "diff"),
    ("hloexec.tools.diffing.folders", "diff_folders"),
    ("hloexec.tools.explaining", "explain"),
    ("hloexec.tools.minifying", "minify"),
    ("hloexec.tools.nan_search", "find_nan"),
    ("hloexec", "narrow"),
    ("hloexec.tools.shadowing", "shadow"),
    ("hloexec.tools.triaging", "triage"),
)
"""The functions that commands call to search, where they import them from."""


class _Searches:
    """What the searches of a run found, which those of other runs of the same command find again."""

    def __init__(self) -> None:
        self._found: list[tuple[str, list[Module], Any]] = []
        self._is_searching = False

    @contextmanager
    def made(self) -> Iterator[None]:
        """The searches are made, and what they find is kept."""
        with self._instead(self._kept):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """The same searches on the same modules find what was kept, and no other is made."""
        left = iter(self._found)

        def again(search: Callable[..., Any]) -> Callable[..., Any]:
            def found(*arguments: Any, **options: Any) -> Any:
                name, modules, result = next(left)
                assert (name, modules) == (search.__name__, _modules(arguments))
                return result

            return found

        with self._instead(again):
            yield
        assert next(left, None) is None

    def _kept(self, search: Callable[..., Any]) -> Callable[..., Any]:
        def found(*arguments: Any, **options: Any) -> Any:
            if self._is_searching:
                return search(*arguments, **options)
            self._is_searching = True
            try:
                result = search(*arguments, **options)
            finally:
                self._is_searching = False
            self._found.append((search.__name__, _modules(arguments), result))
            return result

        return found

    @contextmanager
    def _instead(self, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        with ExitStack() as stack:
            for place, name in _SEARCHES:
                module = importlib.import_module(place)
                stack.enter_context(mock.patch.object(module, name, wrapped(getattr(module, name))))
            yield


def _modules(arguments: Sequence[Any]) -> list[Module]:
    return [argument for argument in arguments if isinstance(argument, Module)]


def problems(words: Sequence[str], code: int, folder: Path, columns: int = 40) -> list[str]:
    """What a command that ends with `code` does wrong in other surroundings, a sentence each.

    Its files stay in the folder, as after a run of the command.
    """
    return otherwise(words, code, folder, columns)[1]


def otherwise(words: Sequence[str], code: int, folder: Path, columns: int = 40) -> tuple[Ran, list[str]]:
    """The plain run of a command, whose files stay in the folder, and its `problems`."""
    has_json = words[0] not in TOOLS or bool(TOOLS[words[0]].records)
    said = _without_page(words)
    searches = _Searches()
    copies = [folder.with_name(f"{folder.name}-{name}") for name in ("narrow", "json")]
    for copy in copies:
        shutil.copytree(folder, copy)
    with searches.made():
        plain = run_here(words, folder, COLUMNS="120")
    with searches.repeated():
        narrow = run_here(said, copies[0], COLUMNS=str(columns), FORCE_COLOR="1", NO_COLOR="1")
    codes = [plain.code, narrow.code]
    if has_json and "--json" not in words:
        with searches.repeated():
            ran = run_here([*said, "--json"], copies[1])
        read_record(ran.out)
        codes.append(ran.code)
    for copy in copies:
        shutil.rmtree(copy)
    return plain, list(_said_otherwise(words, plain, narrow, has_json, codes, code))


def _said_otherwise(
    words: Sequence[str], plain: Ran, narrow: Ran, has_json: bool, codes: Sequence[int], code: int
) -> Iterator[str]:
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
