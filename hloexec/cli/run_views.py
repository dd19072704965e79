"""What `hloexec run` shows of a run as it goes on: tables on the terminal, a record of JSON, or a page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Protocol

import click

from hloexec.cli.inputs.loading import Prepared
from hloexec.cli.options import echo_json
from hloexec.core.structs import frozen

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from hloexec.analysis.numerics.comparison import Comparison
    from hloexec.analysis.numerics.leaves import LeafStatistics
    from hloexec.cli.running import Execution


@frozen(eq=False)
class Outcome:
    """The result of a run, and what is said of it."""

    rows: Sequence[tuple[str, LeafStatistics]]
    """The arrays of the result."""
    ran: Execution
    printed: Sequence[str]
    """The names of the values to print."""
    comparison: Comparison | None
    against: str | None
    """What the result is compared with; None if that is the result of a snapshot."""


class RunView(Protocol):
    """Is told of each part of a run as soon as it is known."""

    def begin(self, run: Prepared) -> None:
        """What is going to run."""

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        """The arrays of the inputs."""

    def result(self, outcome: Outcome) -> None:
        """What the run has come to."""

    def close(self) -> None:
        """Nothing more comes."""


def _spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """The shortest, the median and the longest time."""
    return min(seconds), median(seconds), max(seconds)


class TerminalView:
    """Shows each part as soon as it is known."""

    def begin(self, run: Prepared) -> None:
        from hloexec.report.layout import show

        show(_module_line(run))

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        from hloexec.report.layout import show
        from hloexec.report.tables import values_table

        show(values_table("inputs", rows))

    def result(self, outcome: Outcome) -> None:
        from rich.console import Group
        from rich.text import Text

        from hloexec.core.wording import byte_text
        from hloexec.report.layout import show
        from hloexec.report.tables import values_table
        from hloexec.report.units import seconds_text

        ran, comparison, against = outcome.ran, outcome.comparison, outcome.against
        show(values_table("result", outcome.rows))
        click.echo("\n" * bool(outcome.printed), nl=False)
        for label, literal in ran.printed(outcome.printed):
            click.echo(f"{label} = {literal}")
        if against is not None and comparison is not None:
            from hloexec.report.judging.comparison import comparison_view

            shown = comparison_view(comparison, devices=ran.device_count)
            show(Group(Text(f"\ncompared with {against}"), shown))
        elif comparison is not None:
            show(f"\ncompared with the snapshot's result: {comparison}")
        taken = ran.statistics
        per_device = f" in all, {byte_text(taken.device_peak_bytes)} on a device" if ran.device_count > 1 else ""
        show(
            f"\nran in {seconds_text(ran.seconds)}, "
            f"peak memory {byte_text(taken.peak_bytes)} beyond the inputs{per_device}"
        )
        if ran.warm_seconds:
            first, middle, last = (seconds_text(seconds) for seconds in _spread(ran.warm_seconds))
            show(f"then {len(ran.warm_seconds)} times in {middle} (median; {first} to {last})")

    def close(self) -> None:
        """Nothing is left to show."""


class JsonView:
    """Collects everything, and prints it at the end."""

    def begin(self, run: Prepared) -> None:
        self._run = run

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        self._inputs = rows

    def result(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def close(self) -> None:
        from hloexec.report.json.printed import leaves_of
        from hloexec.report.running.runs import Printed, RunResult, Timing

        module, outcome, ran = self._run.module, self._outcome, self._outcome.ran
        warm = ran.warm_seconds
        record = RunResult(
            module.instruction_count,
            len(module.computations),
            leaves_of(self._inputs),
            leaves_of(outcome.rows),
            outcome.against,
            outcome.comparison,
            tuple(Printed(label, text) for label, text in ran.printed(outcome.printed)),
            ran.seconds,
            Timing(len(warm), *_spread(warm)) if warm else None,
            ran.statistics.peak_bytes,
            ran.statistics.device_peak_bytes,
        )
        echo_json("run", self._run.facts(), record)


class PageView:
    """Collects everything, and writes a page at the end, for which the module runs once more."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: list[RenderableType] = []

    def begin(self, run: Prepared) -> None:
        self._run = run
        self._parts.append(_module_line(run))

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        from hloexec.report.tables import values_table

        self._parts.append(values_table("inputs", rows))

    def result(self, outcome: Outcome) -> None:
        from hloexec.report.judging.comparison import comparison_view, verdict_line
        from hloexec.report.layout import Titled
        from hloexec.report.tables import values_table

        comparison, against = outcome.comparison, outcome.against
        if comparison is not None:
            self._parts.insert(0, verdict_line(comparison))
            with_what = against if against is not None else "the snapshot's result"
            view = comparison_view(comparison, devices=outcome.ran.device_count)
            self._parts.append(Titled(f"compared with {with_what}", "", view))
        self._parts.append(values_table("result", outcome.rows))

    def close(self) -> None:
        from rich.console import Group

        from hloexec.cli.reports import write_run_page

        write_run_page(self._path, self._run.module, self._run, lambda rows: Group(*self._parts))


def _module_line(run: Prepared) -> Text:
    from hloexec.report.tables import module_line

    return module_line(run.module.name, run.module.instruction_count, len(run.module.computations), run.devices)
