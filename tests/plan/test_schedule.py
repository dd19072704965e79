"""The order of steps: those whose operands die with them run early; merged units of steps keep the graph acyclic."""

import numpy as np
import pytest

import hloexec
from hloexec.engine.plan.schedule import effectful_computations, schedule
from hloexec.engine.plan.units import UnitGraph

MASKS = """HloModule masks

ENTRY main {
  x = f32[1024,1024] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[1024,1024] broadcast(zero), dimensions={}
  a = f32[1024,1024] sine(x)
  b = f32[1024,1024] cosine(a)
  c = f32[1024,1024] sine(b)
  d = f32[1024,1024] cosine(c)
  six = f32[] constant(6)
  sixes = f32[1024,1024] broadcast(six), dimensions={}
  above_a = pred[1024,1024] compare(a, zeros), direction=GT
  below_a = pred[1024,1024] compare(a, sixes), direction=LT
  above_b = pred[1024,1024] compare(b, zeros), direction=GT
  above_c = pred[1024,1024] compare(c, zeros), direction=GT
  within_a = pred[1024,1024] and(above_a, below_a)
  both = pred[1024,1024] and(above_b, above_c)
  masks = pred[1024,1024] and(within_a, both)
  ROOT result = f32[1024,1024] select(masks, d, zeros)
}
"""


def _order(text: str, *, is_scheduled: bool = False) -> list[str]:
    module = hloexec.parse(text)
    effectful = effectful_computations([module.entry])
    return [entry.name for entry in schedule(module.entry, effectful, is_scheduled=is_scheduled)]


def test_masks_are_made_as_soon_as_what_they_are_made_of_has_no_other_use() -> None:
    order = _order(MASKS)
    assert sorted(order) == sorted(_order(MASKS, is_scheduled=True))
    assert order.index("within_a") < order.index("c")
    assert order.index("above_b") < order.index("d")


def test_instructions_stay_behind_their_operands_and_control_predecessors() -> None:
    text = MASKS.replace("direction=LT", "direction=LT, control-predecessors={d}")
    order = _order(text)
    by_name = hloexec.parse(text).entry.by_name
    for place, name in enumerate(order):
        needed = (*by_name[name].operands, *by_name[name].control_predecessors)
        assert all(order.index(other) < place for other in needed)
    assert order.index("below_a") > order.index("d")


def test_scheduled_modules_run_in_the_order_of_their_text() -> None:
    assert _order(MASKS, is_scheduled=True) == [entry.name for entry in hloexec.parse(MASKS).entry]


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
