"""Instructions whose operands die with them run early where they make less than they free."""

from __future__ import annotations

import hloexec
from hloexec.engine.plan.schedule import effectful_computations, schedule

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
