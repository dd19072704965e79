"""`hloexec minify`: the smallest module that still shows a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import against_option, executor_options, file_argument, json_option, printed_if_unwritable
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options
from hloexec.errors import InputError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    from hloexec.core.ir import Module
    from hloexec.core.values import Array
    from hloexec.engine.options import Options
    from hloexec.report.json.printed import Run
    from hloexec.tools.counterparts.answers import Counterpart


@click.command(
    "minify",
    epilog=examples(
        "hloexec minify module.hlo --against bf16 -o small",
        "hloexec minify module.hlo -o crash \\\n  --check 'grep -q cosine' --outcome pass",
    ),
)
@file_argument
@click.option(
    "--check",
    metavar="COMMAND",
    help="The failure shows if this command ends as --outcome says. It gets the path of a module as its last word, or "
    "wherever a word has {}. It is split into words as a shell does, but run without one.",
)
@click.option("--nan", is_flag=True, help="The failure is NaN or an infinity that the module makes.")
@click.option(
    "--differs-from", metavar="FILE", help="The failure is that the results differ from those of this module."
)
@against_option("The failure is that the results differ from those of {}.", may_be_file=False)
@click.option(
    "--expected",
    metavar="FILE",
    help="The failure is that the results differ from these, which are for the given module alone; so no more is left "
    "out than results that agree, and what only they need.",
)
@click.option(
    "--outcome",
    type=click.Choice(("pass", "fail", "crash", "hang")),
    default="pass",
    show_default=True,
    help="How --check ends where the failure shows: with exit code 0, with another, by a signal, or not in time.",
)
@click.option("--says", metavar="TEXT", default="", help="What --check prints, too, where the failure shows.")
@click.option(
    "--check-timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Stop --check after this time.",
)
@executor_options("checks", may_share=False)
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    help="End the search after this time, and keep the best that was found; so does Ctrl-C.",
)
@click.option(
    "-o", "--output", "folder", metavar="DIR", help="The folder to write; it must be new.  [default: print the module]"
)
@run_options
@json_option
def command(
    file: str,
    check: str | None,
    nan: bool,
    differs_from: str | None,
    against: str | None,
    expected: str | None,
    outcome: str,
    says: str,
    check_timeout: float,
    jobs: int,
    executor: str | None,
    budget: float | None,
    folder: str | None,
    as_json: bool,
    given: Given,
) -> int:
    """Find the smallest module that still shows a failure, and write all that shows it to DIR.

    DIR/module.hlo is the module, DIR/README.md has the command that shows the failure. DIR/inputs.npz has its inputs,
    DIR/expected.npz the result that it should have or, where nothing says so, has; DIR/other.hlo what --differs-from
    became, and DIR/module.mlir is the module as StableHLO, where it can be. Give one of --check, --nan, --differs-from,
    --against and --expected. Exits with 0 if the small module shows the failure, read from its text once more; with 1
    if it does not; with 2 if the given module does not show it.
    """
    _require_one(check, nan, differs_from, against, expected)
    _require_check(check, outcome, says, jobs, executor, check_timeout)
    import hloexec
    from hloexec.cli.reports import ProgressBar
    from hloexec.core.files import require_new_folder
    from hloexec.report.json.printed import Folder
    from hloexec.report.reducing.minified import minified_view
    from hloexec.tools.minifying import minify

    if folder is not None:
        require_new_folder(folder)
    module, inputs, options, facts = _given(file, given, is_checked=check is not None)
    failure: dict[str, Any] = {"command": check, "nan": nan, "against": _counterpart(against)}
    failure["differs_from"] = None if differs_from is None else _other(differs_from)
    failure["expected"] = None if expected is None else _expected(module, expected)
    if check is not None:
        failure |= {
            "outcome": outcome,
            "says": says,
            "command_timeout": check_timeout,
            "jobs": jobs,
            "executor": executor,
        }
    with ProgressBar() as progress:
        minified = minify(module, inputs, budget=budget, observers=[progress], **failure, **options)
    text = hloexec.format(minified.module)
    if folder is not None:
        with printed_if_unwritable(text, as_json):
            minified.save(folder)
    show_report(
        "minify",
        as_json,
        lambda: [facts, Folder(folder), minified],
        lambda: text if folder is None else minified_view(minified, folder),
    )
    return 0 if minified.is_confirmed else 1


def _require_one(check: str | None, nan: bool, *files: str | None) -> None:
    names = ("--check", "--nan", "--differs-from", "--against", "--expected")
    chosen = [name for name, value in zip(names, (check, nan or None, *files), strict=True) if value is not None]
    if len(chosen) != 1:
        many = f", not {' and '.join(chosen)} at once" if chosen else ""
        raise click.UsageError(f"say what the failure is: give one of {', '.join(names)}{many}")


def _require_check(check: str | None, outcome: str, says: str, jobs: int, executor: str | None, timeout: float) -> None:
    if check is not None:
        return
    for name, is_given in (
        ("--outcome", outcome != "pass"),
        ("--says", bool(says)),
        ("--jobs", jobs != 1),
        ("--executor", executor is not None),
        ("--check-timeout", timeout != 60.0),
    ):
        if is_given:
            raise click.UsageError(f"{name} is about a --check; give --check, too")


def _given(file: str, given: Given, *, is_checked: bool) -> tuple[Module, list[list[Any]] | None, Options, Run]:
    """The module, its inputs, the options of its runs, and what a record says of them.

    A module for a check need not run here: it then has no inputs.
    """
    from hloexec.language.loading import load
    from hloexec.report.json.printed import Run

    try:
        run = prepared(file, given)
    except (UnsupportedError, ResourceError):
        if not is_checked:
            raise
        module = load(file)
        devices = module.replica_count * module.num_partitions
        options = given.options
        return module, None, options, Run(file, module.name, devices, options.seed, options.numerics.name)
    return run.module, run.inputs, run.options, run.facts()


def _counterpart(against: str | None) -> Counterpart | None:
    from hloexec.tools.counterparts.specs import counterpart_of

    instead = "--differs-from compares with a module, --expected with a file of results"
    return None if against is None else counterpart_of(against, instead=instead)


def _other(path: str) -> Module:
    from hloexec.language.literals.files import holds_values
    from hloexec.language.loading import load

    if holds_values(path):
        raise InputError(f"--differs-from takes a module, but {path!r} is a file of arrays; give it as --expected")
    return load(path)


def _expected(module: Module, path: str) -> dict[str, Array]:
    from hloexec.tools.results import read_result, result_shapes

    return read_result(path, result_shapes(module))
