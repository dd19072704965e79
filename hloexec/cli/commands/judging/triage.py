"""`hloexec triage`: judge all modules of a folder, and group those that differ for the same cause."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from hloexec.cli.help import examples
from hloexec.cli.options import ByteCount, against_option, executor_options, html_option, json_option
from hloexec.cli.reports import show_report, write_command_page
from hloexec.cli.run_options import run_option


@click.command(
    "triage",
    epilog=examples(
        "hloexec triage dumps -o found",
        "hloexec triage dumps --executor processes:2",
        "hloexec triage dumps -o part1 --shard 1/2",
        "hloexec triage --merge part1",
    ),
)
@click.argument("folders", metavar="FOLDER [OTHER]", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="Keep all results in this folder; a later call with it goes on where one was stopped.  [default: keep none]",
)
@against_option(
    "Compare the results of modules that are no pair and have no recorded results with those of {}.", may_be_file=False
)
@click.option(
    "--select",
    metavar="PATTERN",
    multiple=True,
    help="Only modules whose name fits, such as 'dumps/*'. May be repeated.",
)
@click.option("--minify/--no-minify", default=True, show_default=True, help="Minify the smallest module of each group.")
@executor_options("modules")
@click.option("--shard", metavar="I/N", help="Judge the I-th of N parts of the modules, into -o DIR; minify nothing.")
@click.option("--merge", is_flag=True, help="Make one report of what shards have left in their folders, FOLDER….")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="What a module may take; so much again to minify one.",
)
@click.option("--memory", type=ByteCount(), default="4G", show_default=True, help="Memory that a module may take.")
@click.option(
    "--numerics", metavar="POLICY", default="reference", show_default=True, help="Numerics policy of the runs."
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Seed of random inputs.")
@run_option("distribution")
@click.option(
    "--elided",
    type=click.Choice(("zeros", "random", "error")),
    default="zeros",
    show_default=True,
    help="Values of constants that the text elides.",
)
@click.option(
    "--unknown",
    type=click.Choice(("error", "zeros", "random")),
    default="error",
    show_default=True,
    help="Results of library calls that hloexec does not know.",
)
@click.option("--top", type=click.IntRange(0), default=40, show_default=True, help="Maximum number of modules; 0: all.")
@html_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    folders: tuple[str, ...],
    merge: bool,
    top: int,
    html: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run and compare all modules in FOLDER and below, and group those that differ for the same cause.

    Compared are pairs, NAME.before.hlo with NAME.after.hlo; with OTHER, modules of the same path in both folders; the
    stages of modules that XLA dumped; and other modules with NAME.expected.npz beside them, else with what --against
    says. Inputs are in NAME.inputs.npz, or random. Modules may be .hlo, .txt, .pb or .mlir files, or gzipped.

    Each runs in a process of its own, within --timeout and --memory. For what differs, the instruction to blame is
    found, and the numerics policy that explains it, if any does: TF32, flushed denormals. Modules with the same cause
    are a group, of which the smallest is minified, in DIR/minified. Ctrl-C shows what is known; with -o, the same
    command goes on, with any --executor. Exits with 1 if a module differs; with 2 if none does, but one could not be
    compared; with 3 if all could, but one is not decided, because it leaves open what differs; else with 0.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.judging.triages import triage_page_view, triage_view
    from hloexec.tools.triaging import merge_triages, triage

    with ProgressBar() as progress:
        if merge:
            _require_merging(context)
            names = ("output", "minify", "jobs", "executor", "shared")
            options = {name: settings[name] for name in names}
            result = merge_triages(folders, observers=[progress], **options)
        else:
            if len(folders) > 2:
                raise click.UsageError(f"triage takes one folder or two, not {len(folders)}; --merge takes more")
            result = triage(*folders, observers=[progress], **settings)
    reused = sum(module.is_reused for module in result.modules)
    if reused and not merge:
        click.echo(f"{reused} of {result.case_count} modules were known from before", err=True)
    show_report("triage", as_json, lambda: [result], lambda: triage_view(result, top))
    if html is not None:
        facts = {
            "folder": result.folder,
            "other folder": result.other,
            "against": settings["against"],
            "policy": settings["numerics"],
            "distribution": settings["distribution"],
        }
        told = tuple((name, value) for name, value in facts.items() if value is not None)
        write_command_page(html, result, None, partial(triage_page_view, result), told)
    if not result.is_complete:
        return 130
    if result.differing or result.agrees:
        return 1 if result.differing else 0
    return 3 if all(module.is_judged for module in result.modules) else 2


_OF_MERGING = ("folders", "output", "minify", "jobs", "executor", "shared", "merge", "top", "html", "as_json")


def _require_merging(context: click.Context) -> None:
    """UsageError where an option is given that the shards have settled."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_MERGING and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[-1]} is what the shards were made with; leave it out with --merge")
