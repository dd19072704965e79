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
from conformance.xla import knows_latest_opcodes
from hloexec.ops import LATEST

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
@click.option(
    "--beside",
    type=click.Path(exists=True, dir_okay=False),
    help="Such a page of another jaxlib: list what was otherwise there.",
)
@click.pass_context
def main(
    context: click.Context,
    opcodes: str | None,
    types: str | None,
    examples: int,
    seed: int,
    workers: int,
    output: str | None,
    beside: str | None,
) -> None:
    """Run the matrix of opcodes and element types on XLA:CPU and on hloexec, and compare.

    Opcodes that the installed jaxlib does not know are left out.
    """
    if context.invoked_subcommand is not None:
        return
    console = _console()
    names = [name for name in GENERATORS if name not in LATEST or knows_latest_opcodes()]
    chosen, columns = _listed(opcodes, names, "opcode"), _listed(types, _NAMES, "element type")
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
        other = Path(beside).read_text(encoding="utf-8") if beside else ""
        Path(output).write_text(markdown(cells, examples, seed, other), encoding="utf-8")
    context.exit(any(cell.status is Status.FAIL for cell in cells))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for each step of each file.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Here: --executor processes:N.")
@click.option(
    "--executor", metavar="SPEC", help="What runs them, as of `hloexec triage`; it needs this package and JAX."
)
def corpus(folder: str, seed: int, timeout: float, workers: int, executor: str | None) -> None:
    """Parse and run every HLO file of FOLDER with XLA and hloexec, on the same random inputs, and compare."""
    from conformance.corpus import examine, files_of
    from conformance.summary import show_corpus
    from hloexec.errors import HloError
    from hloexec.tools.executing.engines import opened_engine

    files = files_of(Path(folder))
    if not files:
        raise click.ClickException(f"{folder} holds no HLO text (*.hlo, *.txt, also .gz)")
    reports = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("files", total=len(files))
        try:
            with opened_engine(executor, workers) as engine:
                for report in examine(files, engine, seed, timeout):
                    reports.append(report)
                    bar.advance(task)
        except HloError as error:
            raise click.ClickException(str(error)) from error
    show_corpus(_console(), sorted(reports, key=lambda report: report.path), Path(folder))
    raise SystemExit(any(report.failures or not report.agrees for report in reports))


@main.command()
@click.argument("names", nargs=-1)
@click.option("--draws", default=3, show_default=True, type=click.IntRange(1), help="Of each program's arguments.")
@click.option("--first", default=0, show_default=True, type=click.IntRange(0), help="Draw.")
@click.option("--faults", default=2, show_default=True, type=click.IntRange(1), help="Of each kind and size, per draw.")
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, writable=True),
    help="Write the tables into this page, below its last rule.",
)
def verdicts(names: tuple[str, ...], draws: int, first: int, faults: int, into: str | None) -> None:
    """Count how often a comparison misses a fault, or takes rounding for one: of the programs NAMES, or all."""
    from conformance.verdicts import Case, markdown, studied, studies

    head, rule = "", ""
    if into is not None:
        head, rule, _ = Path(into).read_text(encoding="utf-8").rpartition("\n---\n")
        if not rule:
            raise click.ClickException(f"{into} has no rule (---) below which the tables could stand")
    try:
        todo = list(studies(names, range(first, first + draws)))
    except KeyError as error:
        raise click.UsageError(f"{error.args[0]}: no program that is compared by its roundings") from error
    cases: list[Case] = []
    skipped: set[str] = set()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("programs", total=len(todo))
        for name, draw in todo:
            try:
                cases += studied(name, draw, faults)
            except (RuntimeError, NotImplementedError) as error:
                # JAX has no kernels for it here; what hloexec cannot do is an error of this command.
                skipped.add(f"{name}: {str(error).splitlines()[0]}")
            bar.advance(task)
    for case in cases:
        if case.is_wrong and not case.size:
            click.echo(f"{case.where}, {case.kind}, {case.way}: {case.said}")
    for line in sorted(skipped):
        click.echo(f"skipped {line}")
    if not cases:
        raise click.ClickException("nothing ran")
    if into is None:
        click.echo(markdown(cases))
        return
    programs = len({case.where.partition(",")[0] for case in cases})
    line = f"{programs} programs, {draws} seeds each, {len(cases)} verdicts; {len(skipped)} programs cannot run here."
    Path(into).write_text(f"{head}{rule}\n{line}\n\n{markdown(cases)}", encoding="utf-8")


if __name__ == "__main__":
    main()
