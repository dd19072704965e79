"""`hloexec trace`: write the result of every instruction to disk."""

from __future__ import annotations

from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import ByteCount, file_argument, json_option
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options


@click.command("trace", epilog=examples("hloexec trace module.hlo -o trace"))
@file_argument
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="The folder to write; it must be new.")
@click.option(
    "--select",
    metavar="PATTERN",
    multiple=True,
    help="Only instructions whose name, opcode or op_name matches, e.g. 'add*', dot, '*attention*'. May be repeated.",
)
@click.option("--stats-only", "statistics_only", is_flag=True, help="Write only statistics, not the values.")
@click.option(
    "--disk-limit", type=ByteCount(), help="Refuse to write more than this, e.g. 8G.  [default: free disk space]"
)
@click.option(
    "--top",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="Number of rows in the table of notable values.",
)
@run_options
@json_option
def command(
    file: str,
    folder: str,
    select: tuple[str, ...],
    as_json: bool,
    given: Given,
    **settings: Any,
) -> None:
    """Write the result of every instruction to DIR, with statistics, path, loop iteration and devices.

    Instructions in fusions, branches and every iteration of loops are included. DIR/events.jsonl has one line of JSON
    for each; DIR/values.npy has the arrays, for hloexec.read_trace or NumPy. The table shows the first values that are
    not finite, then the largest ones.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.core.files import require_new_folder
    from hloexec.report.json.printed import Folder
    from hloexec.report.running.traces import trace_view
    from hloexec.tools.tracing.recording import Selection
    from hloexec.tools.tracing.running import record

    selection = Selection.of(select)
    require_new_folder(folder)
    run = prepared(file, given)
    with ProgressBar() as progress:
        traced = record(
            run.module, run.inputs, folder, select=selection.patterns, observers=[progress], **settings, **run.options
        )
    show_report(
        "trace",
        as_json,
        lambda: [run.facts(), Folder(folder), traced],
        lambda: trace_view(traced, folder, run.module.name, run.command),
    )
