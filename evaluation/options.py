"""What the commands share: options, and how they choose cases, keep what is measured and print shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from evaluation.processes import Record
from hloexec.cli.options import executor_options

_Case = TypeVar("_Case")

ONLY = click.option("--only", default="", metavar="SUBSTRING", help="Cases whose name contains it.")
LIMIT = click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, spread evenly.")
EXECUTOR = executor_options("processes", may_share=False)
JSON = click.option(
    "--json", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write a line of JSON for each case."
)


def half_option(*names: str, default: str | None = "seen") -> Callable[[Any], Any]:
    """`--half`: one half of the programs, or a later set of them; README.md says what they are."""
    return click.option(
        "--half",
        type=click.Choice(names),
        default=default,
        show_default=True if default else "seen and held",
        help="One half of the programs, or a later set.",
    )


def spread(cases: Sequence[_Case], limit: int | None) -> Sequence[_Case]:
    """At most so many of the cases, spread evenly."""
    if limit is None or limit >= len(cases):
        return cases
    return [cases[number * len(cases) // limit] for number in range(limit)]


def taken(records: Iterable[Record], line: Callable[[Record], str], target: Path | None = None) -> list[Record]:
    """All records, each of them printed as it comes unless its line is empty, and written if there is a file for it."""
    found = []
    with nullcontext() if target is None else target.open("w", encoding="utf-8") as file:
        for record in records:
            found.append(record)
            if text := line(record):
                click.echo(text)
            if file is not None:
                file.write(f"{json.dumps(record)}\n")
                file.flush()
    return found


def share(part: int, whole: int) -> str:
    """`3 of 4 (75.0%)`."""
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")
