"""`python -m benchmarks`: hloexec beside its peers.

modules [NAME…] [--scale S] [--turns N] [--write DIR]    warm runs of the JAX programs, beside XLA:CPU
tables [parsing] [startup] [running] [opcodes] [FILE…]   the other tables
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import modules, opcodes, parsing, running, startup, warm

_TABLES = ("parsing", "startup", "running", "opcodes")


@click.group()
def main() -> None:
    """Measure hloexec beside XLA."""
    warnings.simplefilter("ignore")


@main.command("modules")
@click.argument("names", nargs=-1)
@click.option("--scale", default=1.0, help="Cut every size to this part of itself.")
@click.option("--turns", default=7, help="Turns that count, after two that do not.")
@click.option("--write", "folder", type=click.Path(path_type=Path), help="Write HLO text to this folder; run nothing.")
def measure_modules(names: tuple[str, ...], scale: float, turns: int, folder: Path | None) -> None:
    """Warm runs of the named programs (all of them without names), XLA:CPU beside."""
    from benchmarks.programs import PROGRAMS

    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise click.UsageError(f"there is no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    chosen = names or tuple(PROGRAMS)
    if folder is not None:
        for path in warm.write(chosen, folder, scale=scale):
            print(path)
        return
    for row in warm.rows(chosen, scale=scale, turns=turns):
        print("  ".join(f"{value:>16}" if key == "program" else f"{key} {value}" for key, value in row.items()))
        sys.stdout.flush()


@main.command("tables")
@click.argument("what", nargs=-1)
def tables(what: tuple[str, ...]) -> None:
    """Print the named tables (all of them without names), for the named FILES or the examples and dumps at hand."""
    names = [name for name in what if name in _TABLES] or list(_TABLES)
    paths = [Path(name) for name in what if name not in _TABLES]
    for path in paths:
        if not path.is_file():
            raise click.UsageError(f"{path} is neither a table ({', '.join(_TABLES)}) nor a file")
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    if "parsing" in names:
        show(console, "Parsing, XLA's own parser beside", parsing.rows(paths or modules.examples() + modules.dumps()))
    if "startup" in names:
        show(console, "Start-up", startup.rows())
    if "running" in names:
        runnable = [path for path in modules.dumps() if path.name.startswith("002")]
        show(console, "Running, XLA:CPU beside", running.rows(paths or modules.examples() + runnable))
    if "opcodes" in names:
        show(console, "Opcodes at a million elements, XLA:CPU beside", opcodes.rows())


def show(console: Console, title: str, rows: Iterable[dict[str, object]]) -> None:
    """Print rows as a table whose columns are the keys of the first."""
    found = list(rows)
    table = Table(title=title, title_justify="left")
    for name in found[0] if found else ():
        table.add_column(name, justify="left" if name in ("module", "program", "opcode") else "right")
    for row in found:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
