"""`python -m conformance`: the matrix of opcodes and element types, XLA:CPU beside hloexec."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from conformance.cell import TYPES
from conformance.cells import GENERATORS
from conformance.matrix import Status, run_matrix

_NAMES = [entry.name for entry in TYPES]


def _listed(text: str | None, allowed: list[str], what: str) -> list[str]:
    if text is None:
        return allowed
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        raise click.UsageError(f"{', '.join(unknown) or 'an empty list'}: no {what} of the matrix")
    return names


def _console() -> Console:
    """As wide as the terminal; where there is none, wide enough for the tables."""
    console = Console()
    if not console.is_terminal:
        console.width = 160
    return console


@click.group(invoke_without_command=True)
@click.option("--opcodes", metavar="NAME,…", help="Only these opcodes.")
@click.option("--types", metavar="NAME,…", help="Only these element types.")
@click.option("--examples", default=2, show_default=True, type=click.IntRange(1), help="Drawn per cell, at least.")
@click.option("--seed", default=0, show_default=True, help="Other seeds draw other operands and shapes.")
@click.option("--workers", default=os.cpu_count() or 2, show_default="processors", type=click.IntRange(1))
@click.option("--output", type=click.Path(dir_okay=False), help="Write the tables there, as Markdown.")
@click.pass_context
def main(
    context: click.Context,
    opcodes: str | None,
    types: str | None,
    examples: int,
    seed: int,
    workers: int,
    output: str | None,
) -> None:
    """Run the matrix of opcodes and element types on XLA:CPU and on hloexec, and compare."""
    if context.invoked_subcommand is not None:
        return
    console = _console()
    chosen, columns = _listed(opcodes, list(GENERATORS), "opcode"), _listed(types, _NAMES, "element type")
    started = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cells", total=None)
        cells = run_matrix(
            chosen, columns, examples=examples, seed=seed, workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    from conformance.summary import markdown, show

    show(console, cells, time.monotonic() - started)
    if output:
        Path(output).write_text(markdown(cells, examples, seed), encoding="utf-8")
    context.exit(any(cell.status is Status.FAIL for cell in cells))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for each step of each file.")
def corpus(folder: str, seed: int, timeout: float) -> None:
    """Parse and run every HLO file of FOLDER with XLA and hloexec, on the same random inputs, and compare."""
    from conformance.corpus import examine, files_of
    from conformance.summary import show_corpus

    files = files_of(Path(folder))
    if not files:
        raise click.ClickException(f"{folder} holds no HLO text (*.hlo, *.txt, also .gz)")
    reports = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("files", total=len(files))
        for report in examine(files, seed, timeout):
            reports.append(report)
            bar.advance(task)
    show_corpus(_console(), reports, Path(folder))
    raise SystemExit(any(report.failures or not report.agrees for report in reports))


if __name__ == "__main__":
    main()
