"""`python -m conformance`: the matrix of opcodes and element types, XLA:CPU beside hloexec."""

from __future__ import annotations

import os
import time

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


@click.group(invoke_without_command=True)
@click.option("--opcodes", metavar="NAME,…", help="Only these opcodes.")
@click.option("--types", metavar="NAME,…", help="Only these element types.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(1), help="Drawn per cell, at least.")
@click.option("--seed", default=0, show_default=True, help="Other seeds draw other operands and shapes.")
@click.option("--workers", default=os.cpu_count() or 2, show_default="processors", type=click.IntRange(1))
@click.option("--output", type=click.Path(dir_okay=False), help="Write the tables there, as Markdown.")
@click.pass_context
def main(
    context: click.Context, opcodes: str | None, types: str | None, examples: int, seed: int, workers: int, output: str | None
) -> None:
    """Run the matrix of opcodes and element types on XLA:CPU and on hloexec, and compare."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
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
        from pathlib import Path

        Path(output).write_text(markdown(cells, examples, seed), encoding="utf-8")
    context.exit(any(cell.status is Status.FAIL for cell in cells))


if __name__ == "__main__":
    main()
