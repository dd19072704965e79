"""`hloexec diff`: find the instruction that makes two modules differ."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import bound_options, executor_options, html_option, json_option, named_policy
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options
from hloexec.core.structs import frozen
from hloexec.errors import HloError, HloWarning

if TYPE_CHECKING:
    from hloexec.cli.reports import ProgressBar
    from hloexec.engine.options import Options
    from hloexec.ops.policies.policy import NumericsPolicy
    from hloexec.report.judging.diffs import SavedPair
    from hloexec.tools.diffing import Diff


@frozen
class DiffOptions:
    """The options that hold for modules and for folders."""

    policies: tuple[NumericsPolicy, NumericsPolicy]
    """Of `before` and `after`."""
    top: int
    runs: int
    budget: float | None
    html: str | None
    as_json: bool
    given: Given
    workers: Mapping[str, Any]
    """What --executor and the options beside it say."""


@click.command(
    "diff",
    epilog=examples(
        "hloexec diff before.hlo after.hlo",
        "hloexec diff before.hlo after.hlo \\\n  --numerics-after tf32",
        "hloexec diff before.hlo after.hlo --extract part",
    ),
)
@click.argument("before", type=click.Path(), required=False)
@click.argument("after", type=click.Path(), required=False)
@click.option(
    "--sharded",
    metavar="FILE.py:FUNCTION",
    help="In place of BEFORE and AFTER: compare a function of JAX on one device with the same on a mesh. FUNCTION "
    "takes nothing, and returns (step, mesh, *arguments), as hloexec.jax.compare_sharded takes them; {'reference': f} "
    "may stand at the end.",
)
@click.option("--numerics-before", metavar="POLICY", help="Numerics policy of BEFORE.  [default: --numerics]")
@click.option("--numerics-after", metavar="POLICY", help="Numerics policy of AFTER.  [default: --numerics]")
@click.option(
    "--module", "select", metavar="NAME", multiple=True, help="For folders: compare only this module. May be repeated."
)
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of findings.")
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="End the search of a pair of modules after the work of N runs of an instruction (a large one counts as "
    "several), and show the best that was found; so does Ctrl-C.",
)
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    help="End it after this time, too: what is found then depends on the machine.",
)
@click.option(
    "--extract",
    "folder",
    metavar="DIR",
    help="Write what shows the first finding to DIR, which must be new: before.hlo, after.hlo and inputs.npz.",
)
@executor_options("modules of folders", is_always=False)
@bound_options("a module of folders", timeout="--module-timeout", seconds=600)
@html_option
@run_options
@json_option
def command(
    before: str | None,
    after: str | None,
    sharded: str | None,
    numerics_before: str | None,
    numerics_after: str | None,
    select: tuple[str, ...],
    top: int,
    runs: int,
    budget: float | None,
    folder: str | None,
    html: str | None,
    as_json: bool,
    given: Given,
    **workers: Any,
) -> int:
    """Run the modules BEFORE and AFTER on the same inputs, and find the instruction that makes their results differ.

    BEFORE and AFTER may be folders that XLA wrote with --xla_dump_to. For one folder, each module is compared before
    optimization, after each pass (--xla_dump_hlo_pass_re=.*) and after optimization, to find the pass that changed the
    result. For two folders, modules of the same name are compared. With --executor or --jobs, each module is compared
    in a process of its own, within --module-timeout and --memory; Ctrl-C shows the modules that have come.

    Instructions are matched by their values, not by their names, through fusions, loops and layouts. Prints `agree` if
    the results have the same bits, `rounding only` if rounding explains the difference, and otherwise the instructions
    of AFTER whose operands are as in BEFORE but whose results are not, in data-flow order. They are found by a search
    back from the results that differ; each is replaced by its counterpart to see whether the results come right. Exits
    with 0 if the modules agree or differ by rounding only, with 1 if they differ, with 2 if they cannot be compared.

    With --extract, what is to blame and what it should be become two small modules, DIR/after.hlo and DIR/before.hlo,
    with the same parameters; DIR/inputs.npz has the values that they had. diff compares them once more.
    """
    if sharded is not None:
        if before is not None:
            raise click.UsageError(f"--sharded compares a function with itself; {before} cannot be given, too")
        from hloexec.cli.commands.judging.diff_sharded import diff_sharded

        return diff_sharded(sharded, top, as_json)
    if before is None:
        raise click.UsageError("give the modules BEFORE and AFTER, a folder, or --sharded FILE.py:FUNCTION")
    policies = (
        named_policy(numerics_before, "--numerics-before") if numerics_before else given.options.numerics,
        named_policy(numerics_after, "--numerics-after") if numerics_after else given.options.numerics,
    )
    chosen = DiffOptions(policies, top, runs, budget, html, as_json, given, workers)
    if os.path.isdir(before):
        if after is not None and not os.path.isdir(after):
            raise click.UsageError(
                f"{before} is a folder, but {after} is not; give one folder, two folders, or two modules"
            )
        if folder is not None:
            raise click.UsageError("--extract takes two modules, but these are folders; name two files of them")
        from hloexec.cli.commands.judging.diff_folders import diff_dumps

        return diff_dumps(before, after, select, chosen)
    if after is None:
        raise click.UsageError(f"{before} is not a folder; give the module to compare it with, too")
    if select:
        raise click.UsageError("--module selects modules of folders, but these are files")
    for name, value in workers.items():
        if value is not None and value is not False:
            raise click.UsageError(f"--{name.replace('_', '-')} is for the modules of folders, but these are files")
    return _diff_files(before, after, folder, chosen)


def _diff_files(before: str, after: str, folder: str | None, chosen: DiffOptions) -> int:
    """The exit code of a diff of two modules, once it is shown."""
    from hloexec.cli.reports import ProgressBar
    from hloexec.core.files import require_new_folder
    from hloexec.language.loading import load
    from hloexec.report.json.printed import Sides
    from hloexec.report.judging.diffs import Pair, diff_view
    from hloexec.tools.diffing import diff

    if folder is not None:
        require_new_folder(folder)
    run_options, policies = chosen.given, chosen.policies
    run = prepared(before, run_options)
    other = load(after)
    # How many devices BEFORE itself says does not hold for AFTER.
    options = attrs.evolve(run_options.options, numerics="reference")
    with ProgressBar() as progress:
        result = diff(
            run.module,
            other,
            run.inputs,
            numerics=policies,
            top=chosen.top,
            runs=chosen.runs,
            budget=chosen.budget,
            observers=[progress],
            **options,
        )
        limits = {"runs": chosen.runs, "budget": chosen.budget}
        saved = None if folder is None or not result.findings else _saved(result, folder, options, limits, progress)
    on_after = attrs.evolve(run, arguments=(after, *run.arguments[1:]), options=options)
    view = partial(diff_view, result, command=on_after.command, saved=saved)
    sides = Sides(before, after, run_options.options.seed, *(policy.name for policy in policies))
    blamed = on_after.module if result.findings else None
    show_report("diff", chosen.as_json, lambda: [sides, result, Pair(saved)], lambda: view(chosen.top), blamed)
    if folder is not None and not result.findings and not chosen.as_json:
        click.echo(f"nothing is to blame, so nothing is extracted: {folder} is not written")
    if chosen.html is not None:
        files = ("before", before), ("after", after)
        write_run_page(chosen.html, result, on_after, view, files, policies)
    return 0 if result.agrees else 3 if result.verdict == "not decided" else 1


def _saved(
    result: Diff, folder: str, options: Options, limits: dict[str, Any], progress: ProgressBar
) -> SavedPair | None:
    """What shows the first finding, once it is written, with what diff says of it; None where it makes no module."""
    from hloexec.report.judging.diffs import SavedPair
    from hloexec.tools.diffing import diff

    try:
        pair = result.extract()
    except HloError as error:
        warnings.warn(f"the first finding cannot be extracted: {error}", HloWarning, stacklevel=2)
        return None
    pair.save(folder)
    if pair.before is None or not pair.is_comparable:
        return SavedPair(pair, folder)
    given = {**limits, "numerics": pair.numerics, "observers": [progress]}
    kept = attrs.evolve(options.of_parts, max_iterations=options.max_iterations, timeout=options.timeout)
    try:
        return SavedPair(pair, folder, diff(pair.before, pair.after, pair.inputs, **given, **kept))
    except (HloError, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        warnings.warn(f"what was extracted is written, but not compared: {reason}", HloWarning, stacklevel=2)
        return SavedPair(pair, folder)
