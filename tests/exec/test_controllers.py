"""Controllers: values that they replace reach those who use them, and nothing is paid without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.tree import mapped
from hloexec.engine.exec.observers import Attached
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.kernels import Forward
from hloexec.engine.plan.steps import inner_plans
from hloexec.errors import EvaluationError, InputError
from tests.plan.audit import Audit
from tests.plan.random_programs import random_program
from tests.plan.ways import Values, bits

X = np.arange(4, dtype=np.float32)
MINUS = np.full(4, -1, np.float32)

FUSED = """HloModule m
fused { p = f32[4] parameter(0)
  q = f32[4] add(p, p)
  ROOT t = (f32[4], f32[4]) tuple(q, p) }
ENTRY main { x = f32[4] parameter(0)
  f = (f32[4], f32[4]) fusion(x), kind=kLoop, calls=fused
  a = f32[4] get-tuple-element(f), index=0
  b = f32[4] get-tuple-element(f), index=1
  c = f32[4] multiply(b, x)
  ROOT r = (f32[4], f32[4], f32[4], f32[4]) tuple(a, b, c, x) }
"""

DEVICES = """HloModule d, replica_count=4
sum { u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] add(u, v) }
ENTRY main { x = f32[] parameter(0)
  number = u32[] replica-id()
  id = f32[] convert(number)
  own = f32[] add(x, id)
  ROOT all = f32[] all-reduce(own), replica_groups={{0,1,2,3}}, to_apply=sum }
"""


class Idle:
    """A controller that replaces nothing."""

    def __init__(self) -> None:
        self.failures: list[hloexec.Failure] = []

    def on_value(self, event: hloexec.Event) -> Any:
        return None

    def on_failure(self, failure: hloexec.Failure) -> None:
        self.failures.append(failure)


class Replace(Idle):
    """Puts something else in the place of one value."""

    def __init__(self, name: str, value: Any, device: int = 0) -> None:
        super().__init__()
        self._name, self._value, self._device = name, value, device

    def on_value(self, event: hloexec.Event) -> Any:
        if event.name != self._name or self._device not in event.devices:
            return None
        return mapped(event.value, lambda _: self._value) if isinstance(event.value, tuple) else self._value


@pytest.mark.parametrize(
    ("name", "a", "b", "c", "x"),
    [
        ("x", 2 * MINUS, MINUS, MINUS * MINUS, MINUS),
        ("f/p", 2 * MINUS, MINUS, MINUS * X, X),
        ("f/q", MINUS, X, X * X, X),
        ("f/t", MINUS, MINUS, MINUS * X, X),
        ("f", MINUS, MINUS, MINUS * X, X),
        ("a", MINUS, X, X * X, X),
        ("b", 2 * X, MINUS, MINUS * X, X),
        ("c", 2 * X, X, MINUS, X),
        ("r", MINUS, MINUS, MINUS, MINUS),
    ],
)
def test_a_replaced_value_reaches_those_that_name_the_instruction_and_no_others(
    name: str, a: Any, b: Any, c: Any, x: Any
) -> None:
    found = hloexec.run(hloexec.parse(FUSED), X, observers=[Replace(name, MINUS)])
    assert isinstance(found, tuple)
    for actual, expected in zip(found, (a, b, c, x), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_other_observers_see_what_takes_the_place_of_a_value() -> None:
    module = hloexec.parse(FUSED)
    seen = Values(module)
    hloexec.run(module, X, observers=[seen, Replace("f/p", MINUS)])
    assert seen.seen["f/p", 0] == bits(MINUS) and seen.seen["x", 0] == bits(X)
    assert seen.seen["f/q", 0] == bits(2 * MINUS)


def test_a_value_may_be_replaced_on_some_of_the_devices() -> None:
    module = hloexec.parse(DEVICES)
    one = np.float32(1).reshape(())
    assert hloexec.run_devices(module, [one])[0] == 4 + 0 + 1 + 2 + 3
    replaced = hloexec.run_devices(module, [one], observers=[Replace("own", np.float32(100).reshape(()), device=2)])
    assert [float(value) for value in replaced] == [1 + 2 + 100 + 4] * 4  # type: ignore[arg-type]


def test_values_in_an_iteration_of_a_loop_may_be_replaced() -> None:
    module = hloexec.parse("""HloModule m
body { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  twice = f32[] add(v, v)
  ROOT t = (s32[], f32[]) tuple(next, twice) }
condition { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(5)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { start = (s32[], f32[]) parameter(0)
  w = (s32[], f32[]) while(start), condition=condition, body=body
  ROOT r = f32[] get-tuple-element(w), index=1 }
""")
    start = np.zeros((), np.int32), np.ones((), np.float32)
    assert hloexec.run(module, start) == 2**5
    assert hloexec.run(module, start, observers=[Replace("w[2]:body/twice", np.float32(3).reshape(()))]) == 3 * 2**2
    # The counter of the body's own frame: the condition still sees the one that the body returns.
    assert hloexec.run(module, start, observers=[Replace("w[1]:body/i", np.int32(3).reshape(()))]) == 2**3


@pytest.mark.slow_cases("12", "48")
@pytest.mark.parametrize("seed", (0, 6, 12, 24, 36, 48))
def test_a_controller_that_replaces_nothing_changes_no_bit(seed: int) -> None:
    program = random_program(seed)
    module, inputs = hloexec.parse(program.text), program.inputs
    expected = bits(hloexec.run_devices(module, inputs))
    seen = Values(module)
    assert bits(hloexec.run_devices(module, inputs, observers=[Idle(), seen])) == expected
    assert Audit(module, "reference", seen.values, program.devices).run(inputs) == []


@pytest.mark.parametrize("policy", "xla-cpu excess exact random-rounding:1".split())
def test_a_controller_changes_no_bit_under_other_policies(policy: str) -> None:
    module = hloexec.parse("""HloModule m
f { p = f32[64] parameter(0)
  q = f32[64] multiply(p, p)
  ROOT s = f32[64] add(q, p) }
ENTRY e { x = f32[64] parameter(0)
  y = f32[64] fusion(x), kind=kLoop, calls=f
  b = bf16[64] convert(y)
  c = bf16[64] add(b, b)
  ROOT z = (f32[64], bf16[64]) tuple(y, c) }
""")
    x = np.random.default_rng(0).standard_normal(64, np.float32)
    plain = bits(hloexec.run(module, x, numerics=policy))
    assert bits(hloexec.run(module, x, numerics=policy, observers=[Idle()])) == plain


def _steps(plan: Any) -> list[Any]:
    found = list(plan.program)
    for step in plan.program:
        for inner in inner_plans(step.flow):
            found += _steps(inner)
    return found


def test_nothing_is_paid_without_a_controller() -> None:
    module = hloexec.parse(FUSED)
    for is_observed in (False, True):
        assert not any(isinstance(step.kernel, Forward) for step in _steps(plan_of(module, is_observed=is_observed)))
    controlled = plan_of(module, is_observed=True, is_controlled=True, planner=False)
    assert any(isinstance(step.kernel, Forward) for step in _steps(controlled))
    seen = Values(module)
    hloexec.run(module, X, observers=[seen])
    assert plan_of(module, is_observed=True) is plan_of(module, is_observed=True)
    assert not Attached([seen]).controls and Attached([Idle()]).controls


def test_what_forwards_values_takes_no_memory_in_estimates() -> None:
    from hloexec.engine.plan.memory import entry_peak_bytes

    module = hloexec.parse(FUSED.replace("f32[4]", "f32[1000]"))
    plain = entry_peak_bytes(plan_of(module, is_observed=True, planner=False))
    assert entry_peak_bytes(plan_of(module, is_observed=True, is_controlled=True, planner=False)) == plain


@pytest.mark.parametrize(
    "value", [np.zeros(3, np.float32), np.zeros(4), (X, X), 1.0], ids="shape type tuple number".split()
)
def test_a_value_of_another_shape_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"the value for %c must have the shape f32\[4\]"):
        hloexec.run(hloexec.parse(FUSED), X, observers=[Replace("c", value)])


@pytest.mark.parametrize("policy", ["xla-cpu", "excess", "reference,c=excess"])
def test_nothing_is_replaced_where_values_are_read_before_they_are_rounded(policy: str) -> None:
    with pytest.raises(InputError, match="values cannot be replaced under this numerics policy"):
        hloexec.run(hloexec.parse(FUSED), X, numerics=policy, observers=[Replace("c", MINUS)])


def test_a_controller_learns_where_a_run_fails() -> None:
    module = hloexec.parse(FUSED.replace("multiply(b, x)", 'custom-call(b, x), custom_call_target="fails"'))

    def fails(*operands: Any) -> Any:
        raise ValueError("on purpose")

    hloexec.register_custom_call("fails", fails)
    try:
        idle = Idle()
        with pytest.raises(EvaluationError, match="on purpose"):
            hloexec.run(module, X, observers=[idle])
        (failure,) = idle.failures
        assert (failure.name, failure.devices) == ("c", (0,)) and "on purpose" in str(failure.error)
    finally:
        hloexec.unregister_custom_call("fails")
