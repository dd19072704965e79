"""`hloexec nan`: find the instruction that produces a NaN or an infinity."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import file_argument, html_option, json_option
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options


@click.command("nan", epilog=examples("hloexec nan module.hlo", "hloexec nan module.hlo --first"))
@file_argument
@click.option("--first", is_flag=True, help="Stop at the very first NaN or infinity, whether or not it is used.")
@click.option(
    "--also",
    type=click.Choice(("overflow", "underflow", "cancellation")),
    multiple=True,
    help="Also look for converts that saturate, results that underflow to zero, or sums without significant digits.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="The fraction of an instruction's elements that must be affected for --also to report it.",
)
@click.option("--top", type=click.IntRange(0, 1000), default=5, show_default=True, help="Rows of each table.")
@html_option
@run_options
@json_option
def command(
    file: str,
    top: int,
    html: str | None,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> int:
    """Find the first instruction that turns finite numbers into NaNs or infinities that reach the result.

    Shows the instruction and its source line, its operands, the affected elements, and the chain of instructions that
    led to them. NaNs that a select discards, and infinities in masks and initial values of reductions, do not count.
    Exits with 0 if nothing was found, with 1 if something was.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.explaining.nan_search import nan_view
    from hloexec.tools.nan_search import find_nan

    if settings["share"] and not settings["also"]:
        raise click.UsageError("--share applies to --also; give --also, too")
    run = prepared(file, given)
    with ProgressBar() as progress:
        search = find_nan(run.module, run.inputs, elements=top, observers=[progress], **settings, **run.options)
    view = partial(nan_view, search, run.module.name, run.devices, command=run.command)
    blamed = None if search.finding is None else run.module
    show_report("nan", as_json, lambda: [run.facts(), search], lambda: view(top), blamed)
    if html is not None:
        write_run_page(html, search, run, view)
    return int(search.found)
