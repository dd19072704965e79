"""Running a module up to one execution of an instruction, and recording the values that enter the slice there."""

from __future__ import annotations

from collections.abc import Collection

from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.engine.exec.observers import Event


class Enough(BaseException):
    """Ends a run: everything is recorded. No error, so nothing on the way may take it for one."""


@frozen
class Occurrence:
    """Which run of an instruction is meant; None where any will do, and then the first is."""

    instruction: str
    computation: str
    path: str | None = None
    """As `Event.name` gives it."""
    iteration: int | None = None
    """Of the innermost loop around it."""

    def is_met(self, event: Event) -> bool:
        is_named = event.instruction.name == self.instruction and event.computation.name == self.computation
        is_iteration = self.iteration is None or event.iteration == self.iteration
        return is_named and is_iteration and (self.path is None or event.name == self.path)


class Recorder:
    """Keeps what the boundary of a slice held when the instruction ran, for each of some devices."""

    def __init__(self, occurrence: Occurrence, boundary: Collection[str], devices: Collection[int]) -> None:
        self._occurrence = occurrence
        self._boundary = frozenset(boundary)
        self.missing = set(devices)
        """The devices on which the instruction has not run."""
        self._held: dict[tuple[str, str], dict[int, Value]] = {}
        self.values: dict[int, dict[str, Value]] = {}
        """What each device held at the boundary."""
        self.results: dict[int, Value] = {}
        self.path: str | None = None
        self.iteration: int | None = None
        self.iterations_seen: set[int] = set()
        self.ran_outside_loops = False

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if event.computation.name != self._occurrence.computation:
            return
        name = event.instruction.name
        if name in self._boundary:
            self._held.setdefault((_scope(event), name), {}).update(dict.fromkeys(event.devices, event.value))
        if name != self._occurrence.instruction:
            return
        if event.iteration is not None:
            self.iterations_seen.add(event.iteration)
        else:
            self.ran_outside_loops = True
        if not self._occurrence.is_met(event) or (self.path is not None and event.name != self.path):
            return
        self.path, self.iteration = event.name, event.iteration
        scope = _scope(event)
        for device in self.missing.intersection(event.devices):
            self.values[device] = {part: self._held[scope, part][device] for part in self._boundary}
            self.results[device] = event.value
        self.missing.difference_update(event.devices)
        if not self.missing:
            raise Enough


def _scope(event: Event) -> str:
    """Where the computation was called from, iterations apart: each overwrites what the one before has left."""
    return "/".join(f"{entry.instruction.name}:{entry.computation}" for entry in event.path)
