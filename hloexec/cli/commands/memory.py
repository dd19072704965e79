"""`hloexec memory`: what a module's values take, and how that compares with XLA's buffer assignment."""

from __future__ import annotations

import click

from hloexec.cli.help import examples
from hloexec.cli.options import echo_json, file_argument, json_option

__all__ = ["command"]


@click.command("memory", epilog=examples("hloexec memory module.hlo --top 0"))
@file_argument
@click.option(
    "--assignment",
    "assignments",
    type=click.Path(allow_dash=True),
    multiple=True,
    metavar="FILE",
    help="XLA's buffer assignment for the module; again for each further file where XLA wrote several.",
)
@click.option("--top", type=click.IntRange(min=0), default=10, help="Rows of each table, 0 for all (default 10).")
@json_option
def command(file: str, assignments: tuple[str, ...], top: int, as_json: bool) -> int:
    """Show when a module's values live and what they take.

    With --assignment, beside what XLA says: live ranges, sizes, allocations and the peak, with every difference. XLA
    writes that under --xla_dump_to, to …-buffer-assignment.txt, …-live-range.txt and the like. Exits with 1 where the
    two differ.
    """
    import hloexec

    if file == "-" and "-" in assignments:
        raise click.UsageError("the module and the assignment cannot both come from standard input")
    module = hloexec.load(file)
    usage = hloexec.memory_usage(module)
    comparison = None
    if assignments:
        comparison = hloexec.compare_memory(usage, hloexec.load_buffer_assignment(*assignments))
    from hloexec.buffers.running import run_estimate

    estimate = run_estimate(module)
    if as_json:
        from hloexec.report.memory import memory_record

        echo_json("memory", {"file": file, **memory_record(usage, comparison, estimate)})
    else:
        from hloexec.report.layout import show
        from hloexec.report.memory import memory_view

        show(memory_view(usage, comparison, estimate, top))
    return 0 if comparison is None or comparison.agrees else 1
