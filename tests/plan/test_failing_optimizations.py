"""No fault of an optimization makes a run fail: the run warns, goes on without it, and has the same bits."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import machine
from hloexec.engine.exec.code import loop_writer, writer
from hloexec.engine.plan import planner
from hloexec.engine.plan.regions.region import Region
from hloexec.engine.plan.steps import Plan
from hloexec.errors import EvaluationError, OptimizationWarning
from tests.plan.ways import bits

TEXT = """HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
body { s = (s32[], f32[300,200], f32[300,200]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  x = f32[300,200] get-tuple-element(s), index=1
  w = f32[300,200] get-tuple-element(s), index=2
  c = f32[300,200] cosine(w)
  y = f32[300,200] multiply(x, c)
  z = f32[300,200] tanh(y)
  ROOT t = (s32[], f32[300,200], f32[300,200]) tuple(n, z, w) }
condition { s = (s32[], f32[300,200], f32[300,200]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(40)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { x = f32[300,200] parameter(0)
  v = f32[300,200] exponential(x)
  u = f32[300,200] subtract(v, x)
  z = s32[] constant(0)
  s = (s32[], f32[300,200], f32[300,200]) tuple(z, u, x)
  w = (s32[], f32[300,200], f32[300,200]) while(s), condition=condition, body=body
  f = f32[300,200] get-tuple-element(w), index=1
  zero = f32[] constant(0)
  sums = f32[300] reduce(f, zero), dimensions={1}, to_apply=sum
  start = s32[] add(z, z)
  ROOT r = f32[299] dynamic-slice(sums, start), dynamic_slice_sizes={299} }
"""
X = np.random.default_rng(3).standard_normal((300, 200), dtype=np.float32)


class Watcher:
    def on_instruction(self, event: hloexec.Event) -> None:
        pass


def _broken(*given: Any, **options: Any) -> Any:
    raise RuntimeError("a fault")


def _require_warning_and_same_bits(runs: int = 1) -> None:
    module = hloexec.parse(TEXT)
    expected = bits(hloexec.run(module, X, planner=False))
    with pytest.warns(OptimizationWarning, match="a fault.*Please report this"):
        for _ in range(runs):
            assert bits(hloexec.run(module, X)) == expected


@pytest.mark.parametrize("name", [entry.name for entry in planner._PASSES])
def test_a_pass_that_fails_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = tuple(attrs.evolve(entry, run=_broken if entry.name == name else entry.run) for entry in planner._PASSES)
    monkeypatch.setattr(planner, "_PASSES", passes)
    _require_warning_and_same_bits()


def test_a_pass_whose_plan_does_not_verify_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(plan: Plan, _: object) -> Plan:
        return attrs.evolve(plan, steps=plan.steps[1:])

    passes = tuple(
        attrs.evolve(entry, run=shortened if entry.name == "unroll" else entry.run) for entry in planner._PASSES
    )
    monkeypatch.setattr(planner, "_PASSES", passes)
    module = hloexec.parse(TEXT)
    expected = bits(hloexec.run(module, X, planner=False))
    with pytest.warns(OptimizationWarning, match="unroll.*before they are filled"):
        assert bits(hloexec.run(module, X)) == expected


def test_a_region_that_fails_takes_its_steps_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Region, "_run", _broken)
    _require_warning_and_same_bits()


@pytest.mark.slow_cases("Writer")
@pytest.mark.parametrize("what", ["LoopWriter", "Writer"])
def test_plans_that_cannot_be_written_are_walked(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_writer if what == "LoopWriter" else writer, what, _broken)
    _require_warning_and_same_bits(machine.RUNS_BEFORE_CODE + 2)


def test_a_run_that_fails_as_planned_is_run_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Region, "__call__", _broken)
    _require_warning_and_same_bits()


@pytest.mark.parametrize("place", [(Region, "_run"), (Region, "__call__"), (Watcher, "on_instruction")])
def test_what_a_signal_handler_raises_ends_the_run(place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's time limit is no fault of a plan, and reaches the program as it was raised."""

    def expired(*_: object) -> None:
        raise TimeoutError("over")

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(*place, interrupted)
    before = signal.signal(signal.SIGINT, partial(expired, 1))
    try:
        with pytest.raises(TimeoutError, match="over"):
            hloexec.run(hloexec.parse(TEXT), X, observers=[Watcher()] if place[0] is Watcher else [])
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_no_signal_handler_raises_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals without a handler have a number in place of one, of a class whose metaclass is called for any enumeration."""
    expected = hloexec.run(hloexec.parse(TEXT), X, planner=False)

    def broken(*_: object, **__: object) -> None:
        signal.Signals(-1)

    monkeypatch.setattr(Region, "__call__", broken)
    with pytest.warns(OptimizationWarning, match="is not a valid Signals"):
        result = hloexec.run(hloexec.parse(TEXT), X)
    assert bits(result) == bits(expected)


def test_a_run_that_has_spoken_to_its_host_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host would be told twice."""
    spoken = "  k = token[] after-all()\n  o = token[] outfeed(x, k)\n"
    text = TEXT.replace("  zero = f32[]", spoken + "  zero = f32[]")
    monkeypatch.setattr(Region, "__call__", _broken)
    out: list[Any] = []
    with pytest.raises(EvaluationError, match="a fault"):
        hloexec.run(hloexec.parse(text), X, outfeed=out)
    assert len(out) <= 1
