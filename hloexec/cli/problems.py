"""What goes wrong, for people on standard error, and for programs as a record on standard output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

import click

from hloexec.cli.options import as_options, echo_json
from hloexec.errors import HloError, HloWarning, printable

__all__ = ["Warnings", "echo_error", "kind_of", "show_problem", "wants_json"]

_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): ", re.MULTILINE)


class Warnings(list[str]):
    """Shows hloexec's warnings, and keeps them for the record that a command prints."""

    def show(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        """Takes the place of `warnings.showwarning`."""
        if issubclass(category, HloWarning):
            self.append(as_options(str(message)))
            show_problem("warning", self[-1], "yellow")


def show_problem(label: str, message: str, color: str) -> None:
    """A block on standard error."""
    with suppress(OSError):
        click.echo(click.style(f"{label}:", fg=color, bold=True) + " " + printable(message), err=True)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, be the rest of it right or wrong."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def echo_error(kind: str, message: str, warnings: Sequence[str]) -> None:
    """Print an error as JSON, with the first place that a line of the message begins with."""
    place = _PLACE.search(message)
    details = {
        "kind": kind,
        "message": message,
        "file": place and place["file"],
        "line": place and int(place["line"]),
        "column": place and int(place["column"]),
    }
    echo_json("error", {"error": details}, warnings)


def kind_of(error: HloError) -> str:
    """What kind of error it is: the name of its class, without `Error`."""
    return type(error).__name__.removesuffix("Error").lower()
