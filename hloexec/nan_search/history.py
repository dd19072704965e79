"""What a search remembers: the ranges of the latest values at every place, and which findings they owe their NaN to.

Memory is bounded by the number of places, not by trip counts: of each instruction on each path the last
few runs are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from hloexec.nan_search.dataflow import Path, ResultLeaf
from hloexec.nan_search.magnitudes import Range

__all__ = ["History", "Leaf"]

_RUNS = 8
"""Runs of an instruction that are remembered, for chains that go back through iterations of a loop."""


@attrs.frozen
class Leaf:
    """What is remembered of one array."""

    range: Range | None
    """None for integers and preds."""
    causes: frozenset[int] = frozenset()
    """The findings, by number, that NaN and infinities in it come from."""


@attrs.frozen
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
        runs = self._runs.get((key, instruction))
        if runs is None:
            runs = self._runs[key, instruction] = deque()
        runs.append(_Run(iterations, tuple(devices), leaves))
        # Each of several devices may have a run of its own in an iteration.
        if len(runs) > _RUNS and sum(devices[0] in run.devices for run in runs) > _RUNS:
            runs.popleft()

    def leaf(self, place: ResultLeaf, device: int) -> Leaf | None:
        """What a device held at a place; None where it is not remembered."""
        key, iterations = _split(place.path)
        for run in reversed(self._runs.get((key, place.instruction), ())):
            if run.iterations == iterations and device in run.devices:
                return run.leaves.get(place.index)
        return None

    def leaves_of_all(self, place: ResultLeaf) -> Iterable[Leaf]:
        """What any device held at a place."""
        key, iterations = _split(place.path)
        for run in self._runs.get((key, place.instruction), ()):
            if run.iterations == iterations and place.index in run.leaves:
                yield run.leaves[place.index]

    def has_run(self, path: Path, instruction: str) -> bool:
        """Whether the latest run of an instruction was in these iterations of the loops around it."""
        key, iterations = _split(path)
        return any(run.iterations == iterations for run in self._runs.get((key, instruction), ()))

    def last_iteration(self, path: Path, loop: str, body_root: str, body: str) -> int | None:
        """The last iteration of a loop on a path, counted from 0; None where it had none."""
        key, iterations = _split(path)
        runs = self._runs.get(((*key, (loop, body)), body_root), ())
        counts = [run.iterations[-1] for run in runs if run.iterations[:-1] == iterations]
        return max((count for count in counts if count is not None), default=None)


def _split(path: Path) -> tuple[tuple[tuple[str, str], ...], tuple[int | None, ...]]:
    return tuple((caller, name) for caller, name, _ in path), tuple(count for _, _, count in path)
