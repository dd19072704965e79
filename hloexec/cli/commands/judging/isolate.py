"""`hloexec isolate`: run each fusion, instruction or computation of a module alone on a counterpart."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import against_option, file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options


@click.command(
    "isolate",
    epilog=examples(
        "hloexec isolate module.hlo --against xla:cpu", "hloexec isolate module.hlo --against tf32 -o units"
    ),
)
@file_argument
@against_option("Compare what units give with what they give on {}.", may_be_file=False)
@click.option(
    "--by",
    type=click.Choice(("fusion", "instruction", "computation")),
    help="What a unit is: a fusion or an instruction outside of them, an instruction anywhere, or a computation.  "
    "[default: fusion, if there are some, else instruction]",
)
@click.option(
    "--iteration", type=click.IntRange(0), help="Look at this iteration of loops, too.  [default: at the first alone]"
)
@click.option(
    "-o", "--output", metavar="DIR", help="Keep each unit that differs in this folder, with what reproduces it."
)
@click.option("--shard", metavar="I/N", help="Look at the I-th of N parts of the units.")
@top_option(20)
@html_option
@run_options
@json_option
def command(
    file: str, against: str | None, top: int, html: str | None, as_json: bool, given: Given, **settings: Any
) -> int:
    """Run each fusion of a module, or each instruction or computation, alone on a counterpart, with its operands here.

    The module runs here once, and of each unit a module of its own is run on the counterpart. What that gives is
    compared with what the unit gave here, element by element. What differs is shown, the worst first, with the
    numerics policy that explains it, if any does. --timeout is what a unit may take there, by default 120 seconds.
    Exits with 1 if a unit differs as no policy explains; with 2 if none does, but one could not be compared; with 3 if
    all could, but one is not decided; else with 0.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.judging.isolations import isolation_view
    from hloexec.tools.isolating import isolate
    from hloexec.tools.isolating.findings import AGREEING

    if against is None:
        raise click.UsageError("--against says what units are run on, such as xla:cpu")
    run = prepared(file, given)
    with ProgressBar() as progress:
        result = isolate(run.module, run.inputs, against=against, observers=[progress], **settings, **run.options)
    view = partial(isolation_view, result)
    blamed = run.module if result.different else None
    show_report("isolate", as_json, lambda: [run.facts(), result], lambda: view(top), blamed)
    if html is not None:
        write_run_page(html, result, run, view)
    outcomes = result.counts.keys()
    if not result.is_complete or result.different:
        return 1 if result.is_complete else 130
    return 2 if outcomes - {"not decided", *AGREEING} else 3 if "not decided" in outcomes else 0
