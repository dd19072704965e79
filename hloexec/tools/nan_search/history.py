"""The history that a search keeps: the ranges of recent values, and the findings that their NaNs come from.

Values are identified by an instruction on a call path, and an index into its value. Memory is bounded by their number,
not by trip counts: only the last few executions of each instruction on each path are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hloexec.core.structs import frozen
from hloexec.engine.exec.observers import PathEntry
from hloexec.tools.nan_search.magnitudes import Range

_RUNS = 8
"""Runs of an instruction that are remembered, for chains that go back through iterations of a loop."""


Path: TypeAlias = tuple[tuple[str, str, int | None], ...]
"""The calling instruction, the called computation, and for loops the iteration, outermost first."""


@frozen
class ResultLeaf:
    """A leaf of what an instruction gives in one run of it."""

    path: Path
    instruction: str
    index: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As `Event.name`, without the names of computations."""
        calls = (caller if count is None else f"{caller}[{count}]" for caller, _, count in self.path)
        return "/".join([*calls, self.instruction])


def path_of(entries: tuple[PathEntry, ...]) -> Path:
    return tuple((entry.instruction.name, entry.computation, entry.iteration) for entry in entries)


@frozen
class Leaf:
    """What is remembered of one array."""

    range: Range | None
    """None for integers and preds."""
    causes: frozenset[int] = frozenset()
    """The findings, by number, that NaN and infinities in it come from."""
    is_constant: bool = False
    """Whether constants alone have made it; known of arrays with NaN or infinities only."""


@frozen
class _Run:
    iterations: tuple[int | None, ...]
    devices: tuple[int, ...]
    leaves: dict[tuple[int, ...], Leaf]


class History:
    """The latest values at every place."""

    def __init__(self) -> None:
        self._runs: dict[tuple[tuple[tuple[str, str], ...], str], deque[_Run]] = {}

    def add(self, path: Path, instruction: str, devices: Sequence[int], leaves: dict[tuple[int, ...], Leaf]) -> None:
        """Remember what an instruction has given on these devices."""
        key, iterations = _split(path)
        runs = self._runs.setdefault((key, instruction), deque())
        runs.append(_Run(iterations, tuple(devices), leaves))
        # Each of several devices may have a run of its own in an iteration.
        if len(runs) > _RUNS and sum(devices[0] in run.devices for run in runs) > _RUNS:
            runs.popleft()

    def leaf(self, place: ResultLeaf, device: int) -> Leaf | None:
        """What a device held at a place; None where it is not remembered."""
        runs = self._latest_runs(place.path, place.instruction)
        return next((run.leaves.get(place.index) for run in runs if device in run.devices), None)

    def leaves_of_all(self, place: ResultLeaf) -> list[Leaf]:
        """What any device held at a place."""
        runs = self._latest_runs(place.path, place.instruction)
        return [run.leaves[place.index] for run in runs if place.index in run.leaves]

    def has_run(self, path: Path, instruction: str) -> bool:
        """Whether an instruction has run in these iterations of the loops around it, not long ago."""
        return any(True for _ in self._latest_runs(path, instruction))

    def last_iteration(self, path: Path, loop: str, body_root: str, body: str) -> int | None:
        """The last iteration of a loop on a path, counted from 0; None where it had none."""
        key, iterations = _split(path)
        runs = self._runs.get(((*key, (loop, body)), body_root), ())
        counts = [run.iterations[-1] for run in runs if run.iterations[:-1] == iterations]
        return max((count for count in counts if count is not None), default=None)

    def _latest_runs(self, path: Path, instruction: str) -> Iterator[_Run]:
        """The runs in these iterations of the loops around an instruction, the latest first."""
        key, iterations = _split(path)
        return (run for run in reversed(self._runs.get((key, instruction), ())) if run.iterations == iterations)


def _split(path: Path) -> tuple[tuple[tuple[str, str], ...], tuple[int | None, ...]]:
    return tuple((caller, name) for caller, name, _ in path), tuple(count for _, _, count in path)
