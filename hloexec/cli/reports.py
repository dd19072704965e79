"""What a command shows: a progress bar, then what it has found, as text, record or page."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.inputs.loading import Prepared
from hloexec.cli.options import echo_json
from hloexec.cli.problems import Warnings
from hloexec.engine.exec.observers import Progress, Stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloexec.analysis.numerics.comparison import Verdict
    from hloexec.core.ir import Module
    from hloexec.core.values import Array
    from hloexec.engine.options import Options
    from hloexec.ops.policies.policy import NumericsPolicy


_PATIENCE_SECONDS = 1.0


class ProgressBar:
    """An observer that shows a progress bar on standard error, if that is a terminal.

    It appears after one second, and is erased at the end. Where no number of steps is known, it moves to and fro. A
    stage with one also has its rate and the time left.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None
        self._is_hidden = False
        self._stage = ""
        self._stage_start = self._start

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_progress(self, progress: Progress) -> None:
        """Called by the run, at most ten times a second."""
        loop = f" [{progress.iteration}]" if progress.iteration is not None else ""
        stage = f"{self._stage}: " if self._stage else ""
        self._show(progress.index, progress.total, f"{stage}%{progress.instruction.name}{loop}")

    def on_stage(self, stage: Stage) -> None:
        """Called by what does more than run a module, at most ten times a second."""
        now = time.perf_counter()
        if stage.name != self._stage:
            self._stage_start = now
            if self._bar is not None:
                # A task whose steps are done stays done.
                self._bar.remove_task(self._task)
                self._add_task()
        self._stage = stage.name
        self._show(stage.done, stage.total, stage.name, _pace(stage.done, stage.total, now - self._stage_start))

    def _show(self, done: int, total: int | None, text: str, pace: str = "") -> None:
        if self._bar is None:
            if self._is_hidden or time.perf_counter() - self._start < _PATIENCE_SECONDS:
                return
            self._open()
        if self._bar is not None:
            count = "" if total is None else f"{done}/{total}{pace}"
            self._bar.update(self._task, completed=done, total=total, count=count, text=text, visible=True)

    def _open(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from hloexec.report.layout import console_for

        console = console_for(stderr=True)
        self._is_hidden = not console.is_terminal
        if self._is_hidden:
            return
        count = TextColumn("{task.fields[count]}", style="progress.download", markup=False)
        text = TextColumn("{task.fields[text]}", markup=False)
        self._bar = Bar(
            BarColumn(24), count, TimeElapsedColumn(), text, console=console, transient=True, get_time=time.perf_counter
        )
        self._add_task()
        self._bar.start()

    def _add_task(self) -> None:
        self._task = self._bar.add_task("run", total=None, count="", text="", visible=False)
        self._bar.tasks[-1].start_time = self._start


def _pace(done: int, total: int | None, seconds: float) -> str:
    """How fast a stage goes on and when it ends, to follow its count: `, 2.5/s, 0:01:20 left`."""
    if total is None or not 0 < done < total or seconds < _PATIENCE_SECONDS:
        return ""
    rate = done / seconds
    shown = f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
    return f", {shown}, {timedelta(seconds=math.ceil((total - done) / rate))} left"


_Facts = tuple[tuple[str, str], ...]
_MOST_ROWS = 200
"""Of a table on a page, which has more room than a terminal."""


def show_report(
    name: str,
    as_json: bool,
    results: Callable[[], Sequence[object]],
    view: Callable[[], RenderableType],
    blamed: Module | None = None,
) -> None:
    """Print what a command has found: the record of this name under --json, of these results, and what people look at
    otherwise, where a text is printed as it is. `blamed` is the module of which it names an instruction, if it does."""
    if as_json:
        echo_json(name, *results())
    elif isinstance(shown := view(), str):
        click.echo(shown, nl=False)
    else:
        from hloexec.report.layout import show

        show(shown)
        from hloexec.language.origins import advice_on_source_lines

        if blamed is not None and (advice := advice_on_source_lines(blamed)) is not None:
            click.echo(f"\n{advice}")


def exit_code(verdict: Verdict) -> int:
    """0 where two results agree, 1 where they differ, 3 where nothing can be said of what differs."""
    return 0 if verdict.agrees else 3 if verdict.value == "not decided" else 1


def write_run_page(
    path: str,
    result: object,
    run: Prepared,
    view: Callable[[int], RenderableType],
    facts: _Facts = (),
    policies: Sequence[NumericsPolicy] = (),
) -> None:
    """Write the page of what ran a module, or two under these policies, with the values of its instructions; `view`
    takes a number of rows."""
    from hloexec.report.html import Subject, write_page

    options = [attrs.evolve(run.options, numerics=policy) for policy in policies] or [run.options]
    facts = (*facts, *_facts(run.arguments[0], run.devices, options)[1 if facts else 0 :])
    subject = Subject(result, view(_MOST_ROWS), run.module, run.inputs, options, _command_line(), facts)
    write_page(path, subject)


def write_command_page(
    path: str,
    result: object,
    module: Module | None,
    view: Callable[[int], RenderableType],
    facts: _Facts,
    pairs: Mapping[str, tuple[Array, Array]] | None = None,
) -> None:
    """Write the page of a command that runs nothing; `pairs` are the arrays that were compared."""
    from hloexec.report.html import Subject, write_page

    subject = Subject(result, view(_MOST_ROWS), module, command=_command_line(), facts=facts, pairs=pairs or {})
    write_page(path, subject)


def _facts(file: str, devices: int, options: Sequence[Options]) -> _Facts:
    names = [given.numerics.name for given in options]
    told = names[0] if len({*names}) == 1 else f"{names[0]} before, {names[1]} after"
    return (("file", file), ("devices", str(devices)), ("policy", told), ("seed", str(options[0].seed)))


def _command_line() -> str:
    """What was typed."""
    said: Warnings = click.get_current_context().obj
    return shlex.join(["hloexec", *said.words])
