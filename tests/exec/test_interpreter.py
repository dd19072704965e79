"""The plain interpreter, which `planner=False` runs, beside the machine, which runs the same with limits or observers."""

import sys
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.exec import machine

PROGRAM = """HloModule m

double { x = f32[3] parameter(0)
  ROOT y = f32[3] add(x, x) }

half { x = f32[3] parameter(0)
  c = f32[] constant(0.5)
  h = f32[3] broadcast(c), dimensions={}
  ROOT y = f32[3] multiply(x, h) }

body { s = (s32[], f32[3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  x = f32[3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  two = s32[] constant(2)
  next = s32[] add(n, one)
  even = s32[] remainder(n, two)
  y = f32[3] conditional(even, x, x), branch_computations={double, half}
  z = f32[3] CALL
  ROOT r = (s32[], f32[3]) tuple(next, z) }

more { s = (s32[], f32[3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  limit = s32[] constant(5)
  ROOT r = pred[] compare(n, limit), direction=LT }

ENTRY main { x = f32[3] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[3]) tuple(zero, x)
  w = (s32[], f32[3]) while(t), condition=more, body=bodyCOUNT
  n = s32[] get-tuple-element(w), index=0
  y = f32[3] get-tuple-element(w), index=1
  u = (f32[3]) tuple(y)
  ROOT r = (s32[], (f32[3])) tuple(n, u)
}
"""
X = np.array([1, 2, 3], np.float32)


def _module(call: str = "add(y, x)", count: str = "") -> hloexec.Module:
    return hloexec.parse(PROGRAM.replace("CALL", call).replace("COUNT", count))


def test_it_runs_loops_conditionals_and_calls_without_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.Machine, "run", None)
    count, (result,) = hloexec.run(_module(), X, planner=False)
    # x becomes 2x + x, x / 2 + x, and so on.
    assert count == 5
    assert_array_equal(result, X * (3 * 1.5 * 3 * 1.5 * 3))


def test_errors_say_where_they_are_as_in_the_machine() -> None:
    def fails(y: Any, x: Any) -> Any:
        if x[0] > 4:
            raise ValueError("too large")
        return y + x

    hloexec.register_custom_call("fails", fails)
    try:
        module = _module('custom-call(y, x), custom_call_target="fails"')
        with pytest.raises(hloexec.EvaluationError, match=r"w\[2\]:body.*too large") as plain:
            hloexec.run(module, X, planner=False)
        with pytest.raises(hloexec.EvaluationError) as limited:
            hloexec.run(module, X, planner=False, max_iterations=1000)
    finally:
        hloexec.unregister_custom_call("fails")
    assert str(plain.value) == str(limited.value)


def test_it_warns_of_loops_that_run_otherwise_than_they_say() -> None:
    stated = ', backend_config={"known_trip_count":{"n":"%d"}}'
    with pytest.warns(hloexec.HloWarning, match="runs 4 times .* but runs 5"):
        hloexec.run(_module(count=stated % 4), X, planner=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hloexec.run(_module(count=stated % 5), X, planner=False)


def test_programs_may_be_nested_deeper_than_pythons_stack() -> None:
    depth = sys.getrecursionlimit() + 100
    levels = ["b0 { x = f32[3] parameter(0)\n ROOT y = f32[3] add(x, x) }"]
    for level in range(1, depth):
        levels.append(
            f"b{level} {{ x = f32[3] parameter(0)\n p = pred[] constant(true)\n"
            f" ROOT y = f32[3] conditional(p, x, x), true_computation=b{level - 1}, false_computation=b0 }}"
        )
    text = "HloModule m\n" + "\n".join(levels)
    entry = f"\nENTRY e {{ x = f32[3] parameter(0)\n ROOT y = f32[3] call(x), to_apply=b{depth - 1} }}\n"
    assert_array_equal(hloexec.run(hloexec.parse(text + entry), X, planner=False), X + X)


def test_what_it_has_used_is_freed_at_once() -> None:
    """Of a chain of calls and kernels, no more than two values live at a time."""
    alive: list[int] = []

    known: list[weakref.ref[Any]] = []

    def step(x: Any) -> Any:
        alive.append(sum(ref() is not None for ref in known))
        made = np.ascontiguousarray(x + np.float32(1))
        known.append(weakref.ref(made))
        return made

    hloexec.register_custom_call("step", step)
    call = 'custom-call({}), custom_call_target="step"'
    body = f"b {{ x = f32[3] parameter(0)\n y = f32[3] {call.format('x')}\n ROOT z = f32[3] {call.format('y')} }}\n"
    main = "ENTRY e { x = f32[3] parameter(0)\n p = pred[] constant(true)\n"
    main += " a = f32[3] conditional(p, x, x), true_computation=b, false_computation=b\n"
    main += f" c = f32[3] {call.format('a')}\n ROOT d = f32[3] {call.format('c')} }}\n"
    try:
        found = hloexec.run(hloexec.parse("HloModule m\n" + body + main), X, planner=False)
    finally:
        hloexec.unregister_custom_call("step")
    assert_array_equal(found, X + 4)
    assert alive == [0, 1, 1, 1]
