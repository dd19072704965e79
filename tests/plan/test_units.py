"""Units of steps: merging two keeps the graph acyclic, and is refused only where it would not be."""

from __future__ import annotations

import numpy as np
import pytest

from hloexec.engine.plan.units import UnitGraph


def _reaches(needs: list[set[int]], start: int, goal: int, but_directly: bool) -> bool:
    """Whether `start` needs `goal`, over others."""
    pending = [other for other in needs[start] if not but_directly or other != goal]
    seen = set(pending)
    while pending:
        unit = pending.pop()
        if unit == goal:
            return True
        new = needs[unit] - seen
        seen |= new
        pending += new
    return False


@pytest.mark.parametrize("seed", range(30))
def test_units_are_merged_wherever_that_leaves_no_circle(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 40))
    graph = UnitGraph()
    needs: list[set[int]] = []
    alias = list(range(count))
    """What each unit is part of, as a plain list."""
    for unit in range(count):
        among = random.random() * 3 / max(unit, 1)
        needs.append({other for other in range(unit) if random.random() < among})
        assert graph.add(needs[unit]) == unit
    refused = 0
    for _ in range(count * 3):
        one, other = (alias[int(unit)] for unit in random.integers(0, count, 2))
        if one == other:
            assert graph.merge(one, other)
            continue
        circular = _reaches(needs, one, other, True) or _reaches(needs, other, one, True)
        refused += circular
        assert graph.merge(one, other) is not circular
        if not circular:
            needs[one] = (needs[one] | needs[other]) - {one, other}
            needs[other] = set()
            alias = [one if unit == other else unit for unit in alias]
            needs = [{alias[unit] for unit in row} - {place} for place, row in enumerate(needs)]
        _require_order(graph, needs, alias)
    assert refused or count < 8


def _require_order(graph: UnitGraph, needs: list[set[int]], alias: list[int]) -> None:
    order = graph.in_order()
    assert len(order) == len(set(alias))
    place = {graph.find(unit): position for position, unit in enumerate(order)}
    for unit in set(alias):
        for other in needs[unit]:
            assert place[graph.find(other)] < place[graph.find(unit)]
