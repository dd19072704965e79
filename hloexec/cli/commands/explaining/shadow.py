"""`hloexec shadow`: which digits of a result are right, and where the others were lost."""

from __future__ import annotations

from functools import partial

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options


@click.command("shadow", epilog=examples("hloexec shadow module.hlo", "hloexec shadow module.hlo --samples 10"))
@file_argument
@click.option(
    "--samples",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    metavar="N",
    help="Also run N times (at least 2, better 10) with random rounding, for digits with a confidence interval.",
)
@click.option(
    "--share-runs",
    type=click.IntRange(0),
    metavar="N",
    help="Measure shares in at most so many runs in f64, in each of which one instruction rounds; 0 for estimates.  "
    "[default: as many as cost no more than the run before]",
)
@top_option(10)
@html_option
@run_options
@json_option
def command(
    file: str, samples: int, share_runs: int | None, top: int, html: str | None, as_json: bool, given: Given
) -> None:
    """Compute beside each value the number that it would be without rounding, and rank where digits are lost.

    The shadow of a value is computed in f64 (of f64: in more), along the branches and indices of the run. Shows how
    many digits of each output are right, and which instructions the errors of the outputs come from: cancellation,
    absorption, lost updates, overflow, underflow or plain rounding, with source line, path and iteration. Inputs and
    constants count as exact. Where much is lost, each instruction that rounds then runs alone, all others in f64, which
    measures its share.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.explaining.shadows import shadow_view
    from hloexec.tools.shadowing import shadow

    run = prepared(file, given)
    with ProgressBar() as progress:
        result = shadow(
            run.module, run.inputs, samples=samples, share_runs=share_runs, observers=[progress], **run.options
        )
    view = partial(shadow_view, result, run.module.name, run.devices, command=run.command)
    blamed = None if result.culprit is None else run.module
    show_report("shadow", as_json, lambda: [run.facts(), result], lambda: view(top), blamed)
    if html is not None:
        write_run_page(html, result, run, view)
