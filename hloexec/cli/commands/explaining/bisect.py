"""`hloexec bisect`: the version or the pass of a compiler that first gives another result."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options

if TYPE_CHECKING:
    from hloexec.tools.bisecting import PassBisection, VersionBisection


@click.command(
    "bisect",
    epilog=examples(
        "hloexec bisect module.hlo --passes --against xla:cpu",
        "hloexec bisect module.hlo --versions hloexec,hloexec:ftz,xla:cpu",
    ),
)
@file_argument
@click.option(
    "--versions",
    metavar="SPEC,SPEC,…",
    help="Find the first of these that gives another result, the oldest first: counterparts that run modules, such as "
    "python:PATH for each environment with another jaxlib.",
)
@click.option("--all", "try_all", is_flag=True, help="Try all --versions, and find each change.")
@click.option("--passes", is_flag=True, help="Find the passes of XLA without which its result comes right.")
@click.option(
    "--against", metavar="SPEC", help="The XLA of --passes: xla[:PLATFORM[:COUNT]] or python:PATH[:PLATFORM]."
)
@click.option("-o", "--output", metavar="DIR", help="Keep what XLA dumps after each of --passes in this new folder.")
@top_option(5)
@html_option
@run_options
@json_option
def command(
    file: str,
    versions: str | None,
    try_all: bool,
    passes: bool,
    against: str | None,
    output: str | None,
    top: int,
    html: str | None,
    as_json: bool,
    given: Given,
) -> int:
    """Find the version of a compiler that first gives another result, or the pass that is to blame for a wrong one.

    Results are judged by the bounds of their elements against hloexec's own. --versions tries the first, the last and,
    if they differ, those between by halves, and compares the optimized modules of the two neighbours. --passes switches
    passes off by halves until the result comes right, and compares the modules after each pass. Exits with 0 if there
    is nothing to find, with 1 if there is, and with 3 if it is not decided whether the result is right.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.explaining import bisections
    from hloexec.tools.bisecting import bisect_passes, bisect_versions

    _require_one(versions, passes, {"--all": try_all}, {"--against": against, "--output": output})
    run = prepared(file, given)

    def next_command(name: str, *more: str) -> str:
        return shlex.join(["hloexec", name, *more, *run.arguments[1:]])

    result: PassBisection | VersionBisection
    with ProgressBar() as progress:
        if versions is not None:
            result = bisect_versions(
                run.module, run.inputs, versions.split(","), try_all=try_all, observers=[progress], **run.options
            )
            view, code = partial(bisections.versions_view, result), int(bool(result.changes))
        else:
            assert against is not None
            result = bisect_passes(run.module, run.inputs, against, output=output, observers=[progress], **run.options)
            view = partial(bisections.passes_view, result, command=next_command)
            code = {"different": 1, "not decided": 3}.get(result.outcome, 0)
    name = "bisect-passes" if versions is None else "bisect-versions"
    show_report(name, as_json, lambda: [run.facts(), result], lambda: view(top))
    if html is not None:
        write_run_page(html, result, run, view)
    return code


def _require_one(
    versions: str | None, passes: bool, of_versions: dict[str, object], of_passes: dict[str, object]
) -> None:
    if (versions is not None) == passes:
        raise click.UsageError("say what to go through: give --versions or --passes" + " and not both" * passes)
    for name, value in (of_versions if passes else of_passes).items():
        if value:
            raise click.UsageError(f"{name} is about {'--versions' if passes else '--passes'}; leave it out")
    if passes and of_passes["--against"] is None:
        raise click.UsageError("--passes needs --against, the XLA whose passes are switched off, such as xla:cpu")
