"""Timing side by side: the contestants take turns, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import attrs


@attrs.frozen
class Timing:
    """The seconds of every turn of one contestant."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, peer: Timing) -> tuple[float, float, float]:
        """The median of the turn-by-turn ratios to a peer, with the lowest and the highest."""
        ratios = [ours / theirs for ours, theirs in zip(self.seconds, peer.seconds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def side_by_side(
    contestants: Mapping[str, Callable[[], object]], *, turns: int = 5, warm_up: int = 1
) -> dict[str, Timing]:
    """Let each contestant run `turns` times, one after the other, `warm_up` turns uncounted before."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + turns):
        for name, run in contestants.items():
            start = time.perf_counter()
            result = run()
            elapsed = time.perf_counter() - start
            del result
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}
