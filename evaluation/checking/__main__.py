"""`python -m evaluation.checking`: how often `hx.check` names the line of a planted NaN, and how often it says nothing
of steps that have some on purpose."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

DEVICES = "--xla_force_host_platform_device_count=8"


def _judged(case: Any, run: Any) -> str:
    """What is wrong with the answer; empty if nothing is."""
    try:
        return str(run(case))
    except Exception as error:  # a case that fails is one that is wrong, whatever it raises
        return f"{type(error).__name__}: {error}"


def _of_plant(case: Any) -> str:
    import hloexec.jax as hx

    checked = hx.check(case.function)
    for number, arguments in enumerate(case.calls, 1):
        try:
            checked(*arguments)
        except hx.NonFiniteError as error:
            finding = error.search.finding
            if number < len(case.calls):
                return f"raised in call {number} of {len(case.calls)}: {error}"
            if finding is None:
                return f"nothing blamed: {error}"
            if case.place in [(line.file, line.line) for line in finding.source]:
                return ""
            return f"line {case.place[1]} expected: {error}"
    return "no error"


def _of_clean(case: Any) -> str:
    import hloexec.jax as hx
    from evaluation.checking.cases import CALLS
    from hloexec.tools import nan_search

    searches = []
    search = nan_search.find_nan
    nan_search.find_nan = lambda *given, **options: searches.append(1) or search(*given, **options)
    try:
        checked = hx.check(case.function)
        for number in range(CALLS):
            checked(*case.calls[number % len(case.calls)])
    finally:
        nan_search.find_nan = search
    return "" if len(searches) <= 2 else f"{len(searches)} searches"


@click.command()
@click.option("--group", type=click.Choice(["seen", "reserve"]), help="Only these; by default both.")
@click.option("--only", default="", help="Only cases whose name contains this.")
@click.option("--overhead", is_flag=True, help="Time clean calls instead, on one device.")
def main(group: str | None, only: str, overhead: bool) -> None:
    """How often `hx.check` is right.

    Of a plant, right is: the last call raises, no call before it does, and the lines of the finding contain the
    marked one. Of a clean step, right is: five calls raise nothing, and are searched twice at most.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if overhead:
        from evaluation.checking.overhead import measure

        click.echo(measure("small", 16, (16, 32, 32, 4), 2000))
        click.echo(measure("medium", 64, (512, 1024, 1024, 512), 100))
        return
    os.environ["XLA_FLAGS"] = DEVICES
    warnings.simplefilter("ignore")
    from evaluation.checking.reserve import CLEAN, PLANTS

    for title, table, run in (("plants", PLANTS, _of_plant), ("clean", CLEAN, _of_clean)):
        cases = [case for case in table.values() if group in (None, case.group) and only in case.name]
        answers = {case.name: _judged(case, run) for case in cases}
        wrong = {name: answer for name, answer in answers.items() if answer}
        for name, answer in wrong.items():
            click.echo(f"{title}/{name}: {answer}\n")
        click.echo(f"{title}: {len(cases) - len(wrong)} of {len(cases)} right")


if __name__ == "__main__":
    main()
