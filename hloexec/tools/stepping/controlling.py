"""The controller of a run: it decides after each instruction whether the run stands still, and replaces values."""

from __future__ import annotations

import attrs

from hloexec.core.ir import Instruction
from hloexec.core.structs import define
from hloexec.core.values import Value
from hloexec.engine.exec.observers import Event, Failure
from hloexec.tools.stepping.breakpoints import Breakpoint
from hloexec.tools.stepping.kept import Kept
from hloexec.tools.stepping.stops import Stop
from hloexec.tools.stepping.worker import Worker


@define
class Going:
    """How far a run goes on if no breakpoint comes first."""

    count: int = 0
    """After so many instructions; 0 for as far as there are any."""
    depth: int | None = None
    """Those count that are no further in than this; None: all."""
    device: int | None = None
    """Those count that run on this device; None: all."""

    def is_over(self, event: Event) -> bool:
        """Whether this instruction is the last; called for each."""
        if self.count <= 0:
            return False
        if self.device is not None and self.device not in event.devices:
            return False
        if self.depth is not None and len(event.path) > self.depth:
            return False
        self.count -= 1
        return self.count == 0


class RunController:
    """Watches one run (`exec.observers.Controller`), and lets its worker wait where it stands still."""

    def __init__(self, breakpoints: list[Breakpoint], limit: int, worker: Worker) -> None:
        self._breakpoints = breakpoints
        self._worker = worker
        self.kept = Kept(limit)
        self.going = Going()
        self._has_begun = False
        self.is_interrupted = False
        """Whether to stand still after the next instruction; another thread may ask for it."""
        self.last: Event | Failure | None = None
        """What has run last."""
        self.to_come: dict[int, tuple[Instruction, Value]] = {}
        """Values of instructions that have not run yet, by identity."""
        self.replacement: Value | None = None
        """The value that takes the place of the one that the run stands still after."""

    def on_value(self, event: Event) -> Value | None:
        """Called by the run after each instruction."""
        self._begin()
        self.last = event
        self.kept.add(event)
        self.replacement = None
        planned = self.to_come.pop(id(event.instruction), None) if self.to_come else None
        if planned is not None:
            self.replacement = planned[1]
            self.kept.replace(event, planned[1])
            event = attrs.evolve(event, value=planned[1])
        stop = self._stop(event)
        if stop is not None:
            self._worker.wait(stop)
        return self.replacement

    def on_failure(self, failure: Failure) -> None:
        """Called by the run where an instruction fails."""
        self._begin()
        self.last = failure
        self._worker.wait(Stop("failed", failure))

    def _begin(self) -> None:
        """The run waits to be told to begin when it has a first value, and nothing has been said of that."""
        self._worker.require_open()
        if not self._has_begun:
            self._has_begun = True
            self._worker.wait(None)

    def _stop(self, event: Event) -> Stop | None:
        hit: Breakpoint | None = None
        for entry in self._breakpoints:
            if entry.is_met(event) and hit is None:
                hit = entry
        is_over = self.going.is_over(event)
        if hit is not None:
            hit.hits += 1
            return Stop(f"{'watch' if hit.is_watch else 'breakpoint'} {hit.number}", event, hit)
        if is_over:
            return Stop("step", event)
        if self.is_interrupted:
            self.is_interrupted = False
            return Stop("interrupted", event)
        return None
