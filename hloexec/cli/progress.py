"""A progress bar for what takes longer than a second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from hloexec.engine.exec.observers import Progress, Stage

_PATIENCE_SECONDS = 1.0


class ProgressBar:
    """An observer that shows a progress bar on standard error, if that is a terminal.

    It appears after one second, and is erased at the end. Where no number of steps is known, it moves to and fro.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None
        self._is_hidden = False
        self._stage = ""

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
        if stage.name != self._stage and self._bar is not None:
            # A task whose steps are done stays done.
            self._bar.remove_task(self._task)
            self._add_task()
        self._stage = stage.name
        self._show(stage.done, stage.total, stage.name)

    def _show(self, done: int, total: int | None, text: str) -> None:
        if self._bar is None:
            if self._is_hidden or time.perf_counter() - self._start < _PATIENCE_SECONDS:
                return
            self._open()
        if self._bar is not None:
            count = "" if total is None else f"{done}/{total}"
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
