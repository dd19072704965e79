"""Loops of few iterations by rows become steps of the plan around them, and nothing else changes."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.tree import flat
from hloexec.engine.exec import plan_of
from hloexec.engine.plan.steps import While
from hloexec.ops import registry

_SIZE = 1 << 17


def _loop(trips: int, *, start: str = "constant(0)", size: int = _SIZE, more: str = "") -> str:
    """x and y turn round each other, and the iteration's number counts; `more` are instructions of the body."""
    array = f"f32[{size}]"
    state = f"(s32[], {array}, {array})"
    return f"""HloModule m
body {{ state = {state} parameter(0)
  count = s32[] get-tuple-element(state), index=0
  x = {array} get-tuple-element(state), index=1
  y = {array} get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(count, one)
  number = f32[] convert(count)
  numbers = {array} broadcast(number), dimensions={{}}
  sum = {array} add(x, numbers)
  product = {array} multiply(sum, y)
  small = {array} tanh(product)
{more}  ROOT r = {state} tuple(next, y, small) }}
condition {{ state = {state} parameter(0)
  count = s32[] get-tuple-element(state), index=0
  end = s32[] constant({trips})
  ROOT r = pred[] compare(count, end), direction=LT }}
ENTRY e {{ x = {array} parameter(0)
  y = {array} parameter(1)
  n = s32[] parameter(2)
  from = s32[] {start}
  first = {state} tuple(from, x, y)
  loop = {state} while(first), condition=condition, body=body
  count = s32[] get-tuple-element(loop), index=0
  last = {array} get-tuple-element(loop), index=2
  square = {array} multiply(last, last)
  ROOT r = ({array}, s32[]) tuple(square, count) }}
"""


def _inputs(size: int = _SIZE) -> tuple[Any, ...]:
    generator = np.random.default_rng(3)
    x, y = (generator.normal(size=size).astype(np.float32) for _ in range(2))
    return x, y, np.array(2, np.int32)


def _has_loop(text: str) -> bool:
    return any(isinstance(step.flow, While) for step in plan_of(hloexec.parse(text)).steps)


@pytest.mark.parametrize("trips", [1, 2, 5, 8])
def test_the_iterations_of_a_short_loop_become_one_region(trips: int) -> None:
    text = _loop(trips)
    module = hloexec.parse(text)
    assert not _has_loop(text)
    large = [step for step in plan_of(module).steps if step.instruction.shape.byte_size > 100]
    (region,) = (step.kernel.region for step in large)
    assert len(region.parts) == 3 * trips + 1
    inputs = _inputs()
    together, apart = flat(hloexec.run(module, *inputs)), flat(hloexec.run(module, *inputs, planner=False))
    for ours, theirs in zip(together, apart, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert together[1] == trips


def test_the_counter_may_stand_anywhere_among_what_is_carried() -> None:
    """A constant that looks like a beginning stands where the counter mostly does."""
    text = _loop(5, start="constant(2)")
    array = f"f32[{_SIZE}]"
    text = text.replace(f"(s32[], {array}, {array})", f"(s32[], {array}, {array}, s32[])")
    text = text.replace(
        "count = s32[] get-tuple-element(state), index=0", "count = s32[] get-tuple-element(state), index=3"
    )
    text = text.replace("  one = s32[]", "  other = s32[] get-tuple-element(state), index=0\n  one = s32[]", 1)
    text = text.replace("tuple(next, y, small)", "tuple(other, y, small, next)")
    text = text.replace("  first = ", "  zero = s32[] constant(0)\n  first = ").replace(
        "(from, x, y)", "(zero, x, y, from)"
    )
    text = text.replace(
        "count = s32[] get-tuple-element(loop), index=0", "count = s32[] get-tuple-element(loop), index=3"
    )
    assert not _has_loop(text)
    module, inputs = hloexec.parse(text), _inputs()
    together, apart = flat(hloexec.run(module, *inputs)), flat(hloexec.run(module, *inputs, planner=False))
    for ours, theirs in zip(together, apart, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert together[1] == 5


@pytest.mark.parametrize(
    "text",
    [
        _loop(9),
        _loop(0),
        _loop(5, start="copy(n)"),
        _loop(5, size=64),
        _loop(5, more="  turned = f32[131072] sort(small), dimensions={0}, to_apply=less\n")
        .replace("tuple(next, y, small)", "tuple(next, y, turned)")
        .replace(
            "HloModule m\n",
            "HloModule m\nless { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT }\n",
        ),
    ],
    ids=["long", "empty", "of unknown length", "small", "not by rows"],
)
def test_other_loops_stay_loops(text: str) -> None:
    assert _has_loop(text)


def test_observers_see_iterations() -> None:
    paths: list[str] = []

    class Seen:
        def on_instruction(self, event: Any) -> None:
            if event.instruction.name == "small":
                paths.append("/".join(map(str, event.path)))

    hloexec.run(hloexec.parse(_loop(3)), *_inputs(), observers=[Seen()])
    assert paths == [f"loop[{number}]:body" for number in range(3)]


def test_an_error_names_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ones, the product is 1 in the first iteration and 1.5 in the second."""

    def fail(product: Any) -> Any:
        if product.max() > 1.2:
            raise ValueError("no number")
        return np.tanh(product)

    monkeypatch.setitem(registry.FAST, "tanh", registry.Fast(bind=registry.Rule(lambda: fail)))
    module = hloexec.parse(_loop(3))
    assert not any(isinstance(step.flow, While) for step in plan_of(module).steps)
    ones = np.ones(_SIZE, np.float32)
    with pytest.raises(hloexec.EvaluationError, match=r"loop\[1\].*no number"):
        hloexec.run(module, ones, ones, np.array(2, np.int32))
