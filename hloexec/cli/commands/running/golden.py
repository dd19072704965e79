"""`hloexec golden`: record a module's result, and check later that it has not changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.against import expected_result
from hloexec.cli.help import HelpGroup, examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import bound_options, executor_options, file_argument, json_option
from hloexec.cli.problems import advice_for, commands_at_hand
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, register_custom_calls, run_option, run_options
from hloexec.tools.counterparts.forms import forms

if TYPE_CHECKING:
    from hloexec.core.ir import Module
    from hloexec.tools.executing.engines import Workers
    from hloexec.tools.golden import GoldenCheck

_SUFFIXES = (".gz", ".txt", ".hlo", ".pb", ".mlir")


_RECORD = "hloexec golden record module.hlo \\\n  -o goldens"
_CHECK = "hloexec golden check goldens"


@click.group("golden", cls=HelpGroup, epilog=examples(_RECORD, _CHECK))
def command() -> None:
    """Record a module's result, and check it later or elsewhere."""


@command.command("record", epilog=examples(_RECORD))
@file_argument
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="The folder to create NAME.golden in, or NAME.golden itself."
)
@run_options
@click.option(
    "--from",
    "--expected",
    "expected",
    metavar="SPEC",
    help=f"Record the result of {forms()}, or one in a snapshot, instead of the module's own.",
)
@click.option("--atol", type=float, help="Absolute tolerance of checks.")
@click.option("--rtol", type=float, help="Tolerance of checks, relative to the expected value.")
@click.option("--ulp", type=float, help="Tolerance of checks, in units in the last place.")
@click.option("--name", help="Name of the golden.  [default: the name of the file]")
@click.option("--force", "replace", is_flag=True, help="Replace an existing golden.")
@json_option
def record(
    file: str,
    output: str,
    expected: str | None,
    name: str | None,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> int:
    """Record a golden: the module, its inputs and its result, in a folder of plain files.

    A snapshot is recorded with its own inputs and result. With --numerics exact, the result has the same bits on every
    machine, and checks compare every bit; otherwise they allow for rounding. If --expected or a snapshot has another
    result than the module gives, that is recorded and said, and the exit code is that of `golden check`.
    """
    import hloexec
    from hloexec.analysis.numerics.tolerances import given_tolerance
    from hloexec.report.running.golden import Recorded
    from hloexec.tools.golden.recording import SUFFIX

    if not isinstance(given.options.elided, str):
        raise click.BadParameter("must be zeros, random or error for a golden", param_hint="'--elided'")
    given_tolerance(*(settings[name] for name in ("atol", "rtol", "ulp")))
    ready = prepared(file, given)
    folder = Path(output)
    if folder.suffix != SUFFIX:
        folder = folder / f"{name or _stem(file, ready.module)}{SUFFIX}"
    result: Any = ready.recorded_result
    if expected is not None:
        result = expected_result(expected, "--from", ready)
    golden = hloexec.record_golden(
        ready.module,
        ready.inputs,
        folder,
        expected=result,
        inputs_source=file if ready.recorded_result is not None else _source(given),
        expected_source=expected or file,
        **settings,
        **given.options,
    )
    golden_check = None if result is None else hloexec.check_golden(golden.folder)
    disagreement = None if golden_check is None or golden_check.passed else golden_check.message
    names = golden.module_name, golden.module_hash, golden.seed, golden.numerics
    recorded = Recorded(file, str(golden.folder), *names, disagreement)
    where = f"run under {golden.numerics}" if result is None else golden.expected_source
    said = f"recorded  {golden.folder}  inputs: {golden.inputs_source}; result: {where}\n\n"
    said += f"the module does not give this result: {disagreement}\n\n" if disagreement else ""
    said += "to check it:\n"
    calls = [word for call in given.custom_calls for word in ("--custom-call", "=".join(call))]
    said += f"  {shlex.join(['hloexec', 'golden', 'check', str(golden.folder), *calls])}\n"
    show_report("golden-record", as_json, lambda: [recorded], lambda: said)
    return 0 if golden_check is None else _exit_code([golden_check])


@command.command("check", epilog=examples(_CHECK))
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--module", "module_file", metavar="FILE", help="Run this module instead of each golden's own.")
@click.option(
    "--result",
    "result_file",
    metavar="FILE",
    help="Check this result, computed elsewhere, instead of running a module.",
)
@click.option("--update", is_flag=True, help="If the result has changed, record it as the expected result.")
@run_option("custom_calls")
@executor_options("goldens", is_always=False)
@bound_options("a golden")
@click.option(
    "--top", type=click.IntRange(min=0), default=3, help="Number of failures to show in detail, 0 for all (default 3)."
)
@json_option
def check(
    folders: tuple[str, ...],
    module_file: str | None,
    result_file: str | None,
    update: bool,
    custom_calls: tuple[tuple[str, str], ...],
    top: int,
    as_json: bool,
    **workers_given: Any,
) -> int:
    """Check goldens: each DIR is a golden, or a folder that contains some at any depth.

    Runs each golden's module on its inputs, and compares the results. Exits with 0 if all agree, 1 if one differs, 2 if
    one cannot be checked, and otherwise 3 if one is not decided, because the module leaves open what differs. Ctrl-C
    shows what came of those that have been checked. With --executor or --jobs, each is checked in a process of its own,
    within --timeout and --memory; what crashes, hangs or takes too much cannot be checked.
    """
    import hloexec
    from hloexec.report.running.golden import Checks, checks_view
    from hloexec.tools.golden.many import goldens_in

    paths = goldens_in(folders)
    module = None if module_file is None else hloexec.load(module_file)
    if module is not None and update:
        raise click.UsageError("--update records what a golden's own module gives; leave out --module")
    if result_file is not None and (module is not None or update or len(paths) > 1):
        raise click.UsageError("--result is checked against one golden, without --module and --update")
    workers = _workers(workers_given, is_here="--update" if update else "--result" if result_file is not None else None)
    register_custom_calls(custom_calls)
    check_by_path: dict[Path, GoldenCheck] = {}
    try:
        if workers is not None:
            _check_apart(paths, module, workers, check_by_path)
        else:
            for path in paths:
                check_by_path[path] = _checked(path, module, result_file, is_updated=update)
    except KeyboardInterrupt:
        if not check_by_path:
            raise
    checks = [_in_options(check_by_path[path]) for path in paths if path in check_by_path]
    advice = _advice(checks, module, module_file)
    is_complete = len(checks) == len(paths)
    show_report(
        "golden-check",
        as_json,
        lambda: [Checks(tuple(checks), is_complete, tuple(advice))],
        lambda: checks_view(checks, len(paths), top, advice),
    )
    if not is_complete:
        return 130
    return _exit_code(checks)


def _exit_code(checks: Sequence[GoldenCheck]) -> int:
    """That of the worst."""
    from hloexec.tools.golden.checking import Outcome

    outcomes = {entry.outcome for entry in checks}
    codes = {Outcome.BROKEN: 2, Outcome.FAILED: 1, Outcome.NOT_DECIDED: 3}
    return next((code for outcome, code in codes.items() if outcome in outcomes), 0)


def _advice(checks: Sequence[GoldenCheck], module: Module | None, module_file: str | None) -> list[str]:
    """Where to look if another module fails a check, by the first that it fails."""
    from hloexec.report.running.golden import change_lines
    from hloexec.tools.golden.checking import Outcome, diff_with_recorded

    failed = (check.golden for check in checks if check.outcome is Outcome.FAILED)
    golden = next((candidate for candidate in failed if candidate is not None), None)
    if module is None or module_file is None or golden is None:
        return []
    return change_lines(golden, module_file, diff_with_recorded(golden, module))


def _checked(path: Path, module: Module | None, result_file: str | None, *, is_updated: bool) -> GoldenCheck:
    """What came of a golden; one that cannot be updated does not keep others from it."""
    import hloexec
    from hloexec.errors import HloError
    from hloexec.tools.golden import GoldenCheck, update_golden
    from hloexec.tools.golden.checking import Outcome
    from hloexec.tools.golden.recording import MODULE
    from hloexec.tools.results import read_result, result_shapes

    try:
        actual = None if result_file is None else read_result(result_file, result_shapes(hloexec.load(path / MODULE)))
        golden_check = update_golden(path) if is_updated else hloexec.check_golden(path, module=module, actual=actual)
    except HloError as error:
        golden_check = GoldenCheck(path, Outcome.BROKEN, str(error))
    return golden_check


def _in_options(golden_check: GoldenCheck) -> GoldenCheck:
    """What it says, as options say it."""
    return attrs.evolve(golden_check, message=advice_for(golden_check.message, commands_at_hand()))


def _workers(options: dict[str, Any], *, is_here: str | None) -> Workers | None:
    """What --executor and the options beside it say; `is_here` is an option that nothing but this process can do."""
    from hloexec.tools.executing.engines import workers_of

    bounds = {name: options.pop(name) for name in ("timeout", "memory")}
    workers = workers_of(**options, bounds=bounds)
    if workers is not None and is_here is not None:
        raise click.UsageError(f"{is_here} is for this process alone; leave out --executor and --jobs")
    return workers


def _check_apart(
    paths: Sequence[Path], module: Module | None, workers: Workers, checks: dict[Path, GoldenCheck]
) -> None:
    from hloexec.cli.reports import ProgressBar
    from hloexec.tools.golden.many import check_apart

    with ProgressBar() as progress:
        check_apart(paths, module, workers, [progress], checks)


def _stem(file: str, module: Module) -> str:
    """What a golden is called after its module's file."""
    if file == "-":
        return module.name
    name = Path(file).name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def _source(given: Given) -> str:
    """Where the inputs come from, for people."""
    files = [*given.inputs, *(f"{key}={path}" for key, path in given.overrides)]
    return ", ".join(files) or f"random (seed {given.options.seed}, {given.distribution})"
