"""Commands that are not typed: of a script, of the command line, or piped to standard input.

Each is printed behind the prompt before what it prints, as it would stand in a terminal. One that is wrong ends the
script with an error that names its line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from hloexec.cli.stepping.shell import PROMPT, Shell
from hloexec.core.files import opened
from hloexec.core.structs import frozen
from hloexec.errors import HloError, InputError, os_errors_named, printable


@frozen
class Line:
    """A command and where it is from."""

    text: str
    place: str


def lines_of_file(path: str) -> list[Line]:
    """The lines of a script; InputError where it cannot be read."""
    with os_errors_named(f"read the script {path!r}"), opened(path, from_shell=True) as file:
        try:
            return _numbered(path, file.read().decode("utf-8-sig").splitlines())
        except UnicodeDecodeError as error:
            raise InputError(f"the script {path!r} is not text in UTF-8") from error


def lines_of_input() -> list[Line]:
    """The lines of standard input, which is no terminal."""
    return _numbered("<stdin>", sys.stdin.read().removeprefix("\ufeff").splitlines())


def _numbered(name: str, lines: Iterable[str]) -> list[Line]:
    return [Line(text, f"{name}:{number}") for number, text in enumerate(lines, 1)]


def run_lines(shell: Shell, lines: Iterable[Line]) -> bool:
    """Carry out commands; returns whether one was to quit. InputError, with its place, for one that is wrong."""
    for line in lines:
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        shell.echo(printable(f"{PROMPT}{text}"))
        try:
            if shell.execute(text):
                return True
        except HloError as error:
            if shell.has_failed:
                raise
            raise type(error)(f"{line.place}: {error}") from error
    return False
