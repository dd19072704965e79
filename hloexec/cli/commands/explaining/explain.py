"""`hloexec explain`: find the numerics policy under which a module gives what another backend gave."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.against import expected_result
from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import file_argument, html_option, json_option, named_policy, top_option
from hloexec.cli.reports import show_report, write_run_page
from hloexec.cli.run_options import Given, run_options
from hloexec.tools.counterparts.forms import forms

if TYPE_CHECKING:
    from hloexec.core.values import Array
    from hloexec.tools.tracing import Trace


@click.command(
    "explain",
    epilog=examples("hloexec explain module.hlo --expected gpu.npz \\\n  --policy tf32 --policy bf16x3"),
)
@file_argument
@click.option(
    "--expected",
    metavar="SPEC",
    help=f"What gave other results on the same inputs: {forms()}, or a snapshot's result.  [default: the snapshot's]",
)
@click.option(
    "--policy", "names", metavar="POLICY", multiple=True, help="Try only this policy. May be repeated.  [default: all]"
)
@click.option(
    "--values",
    metavar="FILE|DIR",
    help="What the instructions gave on the other side: a .npz file, keyed by their names, a trace, or a folder with "
    "a literal for each (NAME.pb or NAME.npy). Each is then explained by itself, from the operands that it had there.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1),
    help="End the search after so many runs, and show the best that was found.  [default: as the module's work]",
)
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    help="End it after this time, too.  [default: no limit]",
)
@top_option(12)
@html_option
@run_options
@json_option
def command(
    file: str,
    expected: str | None,
    names: tuple[str, ...],
    values: str | None,
    top: int,
    html: str | None,
    as_json: bool,
    given: Given,
    **limits: Any,
) -> int:
    """Find the numerics policy that explains a difference: TF32 or bf16 operands, excess precision, flushed denormals …

    Each policy is tried for the whole module, then for those instructions only whose effects are found in what is
    expected, then several at once. A policy explains it if what remains is what rounding leaves. Policies that the
    values cannot tell apart are all named. Exits with 0 if rounding or a policy explains it, with 1 if none does, and
    with 3 if what rounding does not explain is left open by the module.
    """
    from hloexec.ops.policies.policy import POLICIES
    from hloexec.report.explaining.explanations import explanation_view
    from hloexec.report.json.printed import Expected
    from hloexec.tools.explaining import explain
    from hloexec.tools.explaining.findings import Explained

    if given.options.numerics.name != "reference":
        raise click.UsageError("explain tries policies one after the other; choose those that it tries with --policy")
    policies = [named_policy(name, "--policy") for name in names] or list(POLICIES.values())
    run = prepared(file, given)
    other = None if values is None else _other_side(values)
    wanted = run.recorded_result if expected is None else expected_result(expected, "--expected", run)
    if wanted is None:
        raise click.UsageError("--expected is missing: the file with what the other backend gave on the same inputs")
    found = explain(run.module, run.inputs, wanted, policies=policies, values=other, **limits, **run.options)
    view = partial(explanation_view, found, command=run.command)
    show_report("explain", as_json, lambda: [run.facts(), Expected(expected or file), found], lambda: view(top))
    if html is not None:
        write_run_page(html, found, run, view)
    if found.verdict is Explained.NOT_DECIDED:
        return 3
    return 0 if found.is_explained and found.first_unexplained is None else 1


def _other_side(path: str) -> Trace | dict[str, Array]:
    if os.path.isdir(path):
        from hloexec.tools.explaining.running import read_literals
        from hloexec.tools.tracing import read_trace

        is_trace = os.path.exists(os.path.join(path, "trace.json"))
        return read_trace(path) if is_trace else read_literals(path)
    from hloexec.language import literals

    return literals.load_arrays(path)
