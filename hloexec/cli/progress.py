"""A progress bar for runs that take longer than a second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from hloexec.exec.observers import Progress

__all__ = ["ProgressBar"]

_PATIENCE_SECONDS = 1.0


class ProgressBar:
    """An observer that shows a progress bar on standard error, if that is a terminal.

    It appears after one second, and is erased at the end.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None
        self._is_hidden = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_progress(self, progress: Progress) -> None:
        """Called by the run, at most ten times a second."""
        if self._bar is None:
            if self._is_hidden or time.perf_counter() - self._start < _PATIENCE_SECONDS:
                return
            self._open(progress.total)
        if self._bar is not None:
            loop = f" [{progress.iteration}]" if progress.iteration is not None else ""
            name = f"%{progress.instruction.name}{loop}"
            self._bar.update(self._task, completed=progress.index, total=progress.total, instruction=name)

    def _open(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from hloexec.report.layout import console_for

        console = console_for(stderr=True)
        self._is_hidden = not console.is_terminal
        if self._is_hidden:
            return
        instruction = TextColumn("{task.fields[instruction]}", markup=False)
        columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), instruction)
        self._bar = Bar(*columns, console=console, transient=True, get_time=time.perf_counter)
        self._task = self._bar.add_task("run", total=total, instruction="")
        self._bar.tasks[0].start_time = self._start
        self._bar.start()
