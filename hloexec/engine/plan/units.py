"""Units of steps, and merging two of them so that the dependence graph stays acyclic.

Units are kept in a topological order. Two of them are merged only if no path between them passes through a third; the
few between them are then reordered. Source: Pearce and Kelly, "A dynamic topological sort algorithm for directed
acyclic graphs" (2006); XLA's and TensorFlow's clustering do the same.
"""

from __future__ import annotations

from collections.abc import Iterable


class UnitGraph:
    """Units, by numbers; a unit that has become part of another is known by its number still."""

    def __init__(self) -> None:
        self._rank: list[int] = []
        """The position of each unit in the order."""
        self._needs: list[set[int]] = []
        self._feeds: list[set[int]] = []
        self._part_of: list[int] = []

    def add(self, needs: Iterable[int]) -> int:
        """A new unit behind all others, which needs these."""
        unit = len(self._rank)
        self._rank.append(unit)
        self._part_of.append(unit)
        self._needs.append({self.find(other) for other in needs})
        self._feeds.append(set())
        for other in self._needs[unit]:
            self._feeds[other].add(unit)
        return unit

    def find(self, unit: int) -> int:
        """The unit that one is part of now."""
        while self._part_of[unit] != unit:
            self._part_of[unit] = self._part_of[self._part_of[unit]]
            unit = self._part_of[unit]
        return unit

    def merge(self, first: int, second: int) -> bool:
        """Merge two units if no path between them passes through another; returns whether they are merged."""
        first, second = self.find(first), self.find(second)
        if first == second:
            return True
        if self._rank[first] > self._rank[second]:
            first, second = second, first
        behind = self._reached(first, self._feeds, self._rank[second], 1, skipping=second)
        if behind is None:
            return False
        before = self._reached(second, self._needs, self._rank[first], -1, skipping=first)
        assert before is not None
        self._place(first, second, before, behind)
        self._join(first, second)
        return True

    def in_order(self) -> list[int]:
        """All units, each behind those that it needs."""
        units = [unit for unit in range(len(self._rank)) if self._part_of[unit] == unit]
        return sorted(units, key=self._rank.__getitem__)

    def _reached(
        self, start: int, edges: list[set[int]], end_rank: int, sign: int, *, skipping: int
    ) -> list[int] | None:
        """The units that are reached from one without going beyond a rank; None where `skipping` is, but directly."""
        units: list[int] = []
        seen = {start}
        pending = [start]
        while pending:
            unit = pending.pop()
            for other in edges[unit]:
                if other == skipping:
                    if unit != start:
                        return None
                elif other not in seen and sign * self._rank[other] < sign * end_rank:
                    seen.add(other)
                    units.append(other)
                    pending.append(other)
        return units

    def _place(self, first: int, second: int, before: list[int], behind: list[int]) -> None:
        """Let what the second unit needs stand before both, and what needs the first behind them."""
        before.sort(key=self._rank.__getitem__)
        behind.sort(key=self._rank.__getitem__)
        order = [*before, first, second, *behind]
        for unit, rank in zip(order, sorted(self._rank[unit] for unit in order), strict=True):
            self._rank[unit] = rank

    def _join(self, first: int, second: int) -> None:
        for edges, reverse in (self._needs, self._feeds), (self._feeds, self._needs):
            for other in edges[second]:
                reverse[other].discard(second)
                if other != first:
                    reverse[other].add(first)
            edges[first] |= edges[second]
            edges[first] -= {first, second}
        self._part_of[second] = first
