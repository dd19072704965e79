"""The methods of observers: one protocol for each, of which an observer has any."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

from hloexec.core.values import Array, Value
from hloexec.engine.exec.observers.events import Event, Failure, LoopState, Progress, Stage


@runtime_checkable
class InstructionObserver(Protocol):
    """An observer of each instruction and its value."""

    def on_instruction(self, event: Event) -> None:
        """Called after the instruction has run, on each run of it; what it raises ends the run."""


@runtime_checkable
class LoopObserver(Protocol):
    """An observer that may run iterations of a loop, where no other is shown instructions."""

    def on_loop(self, loop: LoopState) -> tuple[list[Array], int] | None:
        """Called before each condition: the carried leaves after some iterations, and how many; None for none."""


@runtime_checkable
class ProgressObserver(Protocol):
    """An observer of the progress of a run, called at most ten times a second."""

    def on_progress(self, progress: Progress) -> None:
        """Called between two steps of the entry computation."""


@runtime_checkable
class StageObserver(Protocol):
    """An observer of the stages of what does more than run a module."""

    def on_stage(self, stage: Stage) -> None:
        """Called when a stage begins, and at most ten times a second while it goes on."""


@runtime_checkable
class Controller(Protocol):
    """An observer that may replace values, and that learns where a run fails."""

    def on_value(self, event: Event) -> Value | None:
        """Called after the instruction has run, before other observers.

        A value that it returns takes the place of the instruction's, for those that use it and for other observers: of
        the same element types and shapes. None leaves it as it is.
        """

    def on_failure(self, failure: Failure) -> None:
        """Called where an instruction has failed; the run ends."""


Observer: TypeAlias = InstructionObserver | ProgressObserver | Controller
