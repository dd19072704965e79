"""The verifier of plans finds what passes must not do."""

from collections.abc import Callable

import attrs
import pytest

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.plan.steps import Buffers, Counter, Limit, Plan, Step, While
from tests.plan.invariants import PlanError, verify_plan

LOOP = """HloModule m
body { s = (s32[], f32[300], f32[300]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  x = f32[300] get-tuple-element(s), index=1
  y = f32[300] get-tuple-element(s), index=2
  a = f32[300] add(x, y)
  b = f32[300] sine(a)
  c = f32[300] multiply(b, b)
  d = f32[300] add(c, x)
  ROOT t = (s32[], f32[300], f32[300]) tuple(n, d, y) }
condition { s = (s32[], f32[300], f32[300]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(40)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { x = f32[300] parameter(0)
  y = f32[300] parameter(1)
  z = s32[] constant(0)
  low = f32[] constant(0)
  r1 = f32[300] rng(low, low), distribution=rng_uniform
  r2 = f32[300] rng(low, low), distribution=rng_uniform
  u = f32[300] add(r1, r2)
  s = (s32[], f32[300], f32[300]) tuple(z, x, u)
  w = (s32[], f32[300], f32[300]) while(s), condition=condition, body=body
  v = f32[300] get-tuple-element(w), index=1
  ROOT r = f32[300] add(v, y) }
"""


def _plan() -> Plan:
    """A plan that no other test sees, so that it may be spoiled."""
    plan = plan_of(hloexec.parse(LOOP))
    verify_plan(plan)
    return plan


def _step(plan: Plan, name: str) -> int:
    return next(place for place, step in enumerate(plan.steps) if step.instruction.name == name)


def _with_steps(plan: Plan, steps: list[Step]) -> Plan:
    return attrs.evolve(plan, steps=steps)


def _with_step(plan: Plan, name: str, change: Callable[[Step], Step]) -> Plan:
    place = _step(plan, name)
    return _with_steps(plan, [*plan.steps[:place], change(plan.steps[place]), *plan.steps[place + 1 :]])


def _with_loop(plan: Plan, change: Callable[[While], While]) -> Plan:
    return _with_step(plan, "w", lambda step: attrs.evolve(step, flow=change(step.flow)))


def _with_buffers(plan: Plan, change: Callable[[Buffers], Buffers]) -> Plan:
    return _with_loop(plan, lambda flow: attrs.evolve(flow, buffers=change(flow.buffers)))


def _swapped(plan: Plan, first: str, second: str) -> Plan:
    steps = list(plan.steps)
    one, other = _step(plan, first), _step(plan, second)
    steps[one], steps[other] = steps[other], steps[one]
    return _with_steps(plan, steps)


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a step that is lost": (lambda plan: _with_steps(plan, plan.steps[:-1]), "never fill"),
    "a step whose value others need": (
        lambda plan: _with_steps(plan, [step for step in plan.steps if step.instruction.name != "u"]),
        "before they are filled",
    ),
    "a step before what it needs": (lambda plan: _swapped(plan, "u", "w"), "before they are filled"),
    "a slot that is filled twice": (
        lambda plan: _with_step(plan, "u", lambda step: attrs.evolve(step, tree=plan.parameters[0])),
        "fill slots .* again",
    ),
    "draws that have changed places": (lambda plan: _swapped(plan, "r1", "r2"), "effects"),
    "a draw that is lost": (
        lambda plan: attrs.evolve(
            _with_step(plan, "u", lambda step: attrs.evolve(step, operand_trees=(step.operands[0],) * 2)),
            steps=[
                attrs.evolve(step, operand_trees=(step.operands[0],) * 2) if step.instruction.name == "u" else step
                for step in plan.steps
                if step.instruction.name != "r2"
            ],
        ),
        "effects",
    ),
    "an operand to overwrite that is not there": (
        lambda plan: _with_step(
            plan, "u", lambda step: attrs.evolve(step, kernel=attrs.evolve(step.kernel, overwrites=2))
        ),
        "no operand to overwrite",
    ),
    "a result of another shape": (
        lambda plan: attrs.evolve(
            plan,
            slot_shapes=[
                plan.slot_shapes[plan.steps[_step(plan, "r1")].operands[0]]
                if slot == plan.steps[_step(plan, "u")].result
                else shape
                for slot, shape in enumerate(plan.slot_shapes)
            ],
        ),
        "is not f32",
    ),
    "a counter that is not carried": (
        lambda plan: _with_loop(plan, lambda flow: attrs.evolve(flow, counters={7: Counter(1, False)}, limit=None)),
        "counter is not a carried leaf",
    ),
    "a limit for what is no counter": (
        lambda plan: _with_loop(plan, lambda flow: attrs.evolve(flow, limit=Limit(1, 1, 40))),
        "no counter",
    ),
    "a compared value that is not carried": (
        lambda plan: _with_loop(plan, lambda flow: attrs.evolve(flow, compared=(9,))),
        "compared value is not a carried leaf",
    ),
    "a sum that something else reads": (
        lambda plan: _with_loop(plan, lambda flow: attrs.evolve(flow, sums={1: 100})),
        "is read by something else",
    ),
    "a loop that takes less than it carries": (
        lambda plan: _with_step(plan, "w", lambda step: attrs.evolve(step, operand_trees=(step.operands[0],))),
        "1 operands and 3 results do not fit",
    ),
    "a buffer that is lost": (
        lambda plan: _with_buffers(
            plan, lambda found: attrs.evolve(found, following=tuple(found.following[0] for _ in found.following))
        ),
        "buffers get lost",
    ),
    "one buffer for values that live at the same time": (
        lambda plan: _with_buffers(
            plan,
            lambda found: attrs.evolve(found, written=dict.fromkeys(found.written, next(iter(found.carried.values())))),
        ),
        "is written while|was overwritten|is not where",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_passes_are_found(name: str) -> None:
    change, message = FAULTS[name]
    with pytest.raises(PlanError, match=message):
        verify_plan(change(_plan()))


def test_the_loop_has_what_the_faults_are_in() -> None:
    flow = _plan().steps[_step(_plan(), "w")].flow
    assert flow.buffers is not None and len(flow.buffers.shapes) >= 2 and flow.buffers.carried
    assert flow.counters and flow.limit is not None
