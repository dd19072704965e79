"""`hloexec memory`: memory usage of a module, and its comparison with XLA's buffer assignment."""

from __future__ import annotations

from functools import partial

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_command_page


@click.command("memory", epilog=examples("hloexec memory module.hlo --top 0"))
@file_argument
@click.option(
    "--assignment",
    "assignments",
    type=click.Path(allow_dash=True),
    multiple=True,
    metavar="FILE",
    help="XLA's buffer assignment for the module. May be repeated if XLA wrote several files.",
)
@top_option(10)
@html_option
@json_option
def command(file: str, assignments: tuple[str, ...], top: int, html: str | None, as_json: bool) -> int:
    """Show the live ranges and sizes of a module's values, and the peak memory.

    With --assignment, compares live ranges, sizes, allocations and the peak with XLA's buffer assignment, which XLA
    writes with --xla_dump_to to …-buffer-assignment.txt, …-live-range.txt and similar files. Exits with 1 if the two
    differ.
    """
    import hloexec
    from hloexec.analysis.buffers.usage import run_estimate
    from hloexec.report.inspecting.memory import Memory, memory_view
    from hloexec.report.json.printed import File

    if file == "-" and "-" in assignments:
        raise click.UsageError("the module and the assignment cannot both come from standard input")
    module = hloexec.load(file)
    usage = hloexec.memory_usage(module)
    comparison = None
    if assignments:
        comparison = hloexec.compare_memory(usage, hloexec.load_buffer_assignment(*assignments))
    estimate = run_estimate(module)
    view = partial(memory_view, usage, comparison, estimate)
    show_report("memory", as_json, lambda: [File(file), usage, Memory(estimate, comparison)], lambda: view(top))
    if html is not None:
        facts = (("file", file), *(("assignment", assignment) for assignment in assignments))
        write_command_page(html, usage if comparison is None else comparison, module, view, facts)
    return 0 if comparison is None or comparison.agrees else 1
