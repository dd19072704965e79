"""Kernels that round at random, and the steps of loops, run for all classes of devices at once, and give the bits that each has alone."""

from __future__ import annotations

import re
import sys
from typing import Any

import attrs
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.exec.lockstep import per_class
from hloexec.engine.exec.statistics import Statistics
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops import registry
from hloexec.ops.library_calls.user_calls import unregister_custom_call
from hloexec.ops.policies import chance
from hloexec.ops.policies.random_rounding import RandomRounding
from tests.plan.ways import bits

MANY = 6

MODULE = """HloModule m, replica_count=6

add {{ a = {kind}[] parameter(0)
  b = {kind}[] parameter(1)
  ROOT s = {kind}[] add(a, b) }}

ENTRY e {{
  x = {kind}[{rows},{columns}] parameter(0)
  w = {kind}[{columns},8] parameter(1)
  n = {kind}[] parameter(2)
  zero = {kind}[] constant(0)
  y = {kind}[{rows},{columns}] multiply(x, x)
  e = {kind}[{rows},{columns}] exponential(y)
  z = {kind}[{rows},{columns}] divide(e, y)
  m = {kind}[] multiply(n, n)
  p = {kind}[{rows},8] dot(z, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  q = {kind}[{rows}] reduce(z, m), dimensions={{1}}, to_apply=add
  r = {kind}[{rows},{columns}] reduce-window(z, zero), window={{size=1x3 pad=0_0x2_0}}, to_apply=add
  f = f32[{rows},{columns}] convert(z)
  v = {kind}[8] reduce(w, zero), dimensions={{0}}, to_apply=add
  g = {kind}[8] multiply(v, v)
  ROOT t = ({kind}[{rows},8], {kind}[{rows}], {kind}[{rows},{columns}], f32[{rows},{columns}], {kind}[8], {kind}[]) tuple(p, q, r, f, g, m) }}
"""


@pytest.mark.parametrize("kind", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("rows, columns", [(3, 5), (300, 70)])
def test_all_classes_round_at_once_as_each_alone(
    kind: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of arrays that are large together, too; whole numbers on one device, which have no errors, are not taken for
    those of others."""
    module = hloexec.parse(MODULE.format(kind=kind, rows=rows, columns=columns))
    rng = np.random.default_rng(3)
    dtype = hloexec.random_inputs(module, seed=0)[0].dtype
    xs = [rng.standard_normal((rows, columns)).astype(dtype) for _ in range(4)]
    xs[1] = np.ones((rows, columns), dtype)
    w = rng.standard_normal((columns, 8)).astype(dtype)
    numbers = [np.array(number, dtype) for number in (0.7, 0.7, 3, 1.1)]
    inputs = [[xs[number % 4], w, numbers[number % 4]] for number in range(MANY)]
    calls = 0
    mixed = chance._mixed

    def counted(*given: object) -> object:
        nonlocal calls
        calls += 1
        return mixed(*given)

    monkeypatch.setattr(chance, "_mixed", counted)
    alone = hloexec.parse(
        MODULE.format(kind=kind, rows=rows, columns=columns).replace("replica_count=6", "replica_count=1")
    )
    for seed in (0, 1):
        policy = f"random-rounding:{seed}"
        calls = 0
        found = hloexec.run_devices(module, inputs, numerics=policy)
        together, calls = calls, 0
        for number, given in enumerate(inputs):
            assert bits(found[number]) == bits(hloexec.run(alone, *given, numerics=policy))
        if rows == 3:
            # Where runs are spread over ranks, each is made by one process, too.
            runs = 2 if "tests.cluster.spreading" in sys.modules else 1
            assert together < runs * 2.5 * calls / MANY


def test_a_fault_of_all_at_once_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no such thing")

    module = hloexec.parse(MODULE.format(kind="f32", rows=3, columns=5))
    inputs = [hloexec.random_inputs(module, seed=number) for number in range(MANY)]
    expected = hloexec.run_devices(module, inputs, numerics="random-rounding:0")
    monkeypatch.setattr(RandomRounding, "of_each", fail)
    with pytest.warns(hloexec.OptimizationWarning, match="for all devices at once failed"):
        found = hloexec.run_devices(module, inputs, numerics="random-rounding:0")
    assert list(map(bits, found)) == list(map(bits, expected))


DEVICES = 4
TRIPS = 24
"""More than run before a loop is made into Python."""

LOOP = """HloModule m, replica_count=4
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }}
body {{ p = (s32[], f32[64,64], f32[64,64], f32[24,64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64,64] get-tuple-element(p), index=1
  w = f32[64,64] get-tuple-element(p), index=2
  h = f32[24,64,64] get-tuple-element(p), index=3
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  {step}
  slice = f32[1,64,64] reshape(y)
  g = f32[24,64,64] dynamic-update-slice(h, slice, i, zero, zero)
  ROOT t = (s32[], f32[64,64], f32[64,64], f32[24,64,64]) tuple(j, y, w, g) }}
condition {{ p = (s32[], f32[64,64], f32[64,64], f32[24,64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(24)
  ROOT r = pred[] compare(i, n), direction=LT }}
ENTRY e {{ x = f32[64,64] parameter(0)
  w = f32[64,64] parameter(1)
  i = s32[] constant(0)
  z = f32[] constant(0)
  h = f32[24,64,64] broadcast(z), dimensions={{}}
  t = (s32[], f32[64,64], f32[64,64], f32[24,64,64]) tuple(i, x, w, h)
  l = (s32[], f32[64,64], f32[64,64], f32[24,64,64]) while(t), condition=condition, body=body
  y = f32[64,64] get-tuple-element(l), index=1
  g = f32[24,64,64] get-tuple-element(l), index=3
  ROOT r = (f32[64,64], f32[24,64,64]) tuple(y, g) }}
"""

OWN = "y = f32[64,64] multiply(x, w)"
COMMON = """f = f32[] convert(i)
  k = f32[64,64] broadcast(f), dimensions={}
  a = f32[64,64] multiply(w, k)
  b = f32[64,64] multiply(a, w)
  c = f32[64,64] multiply(b, w)
  d = f32[64,64] multiply(c, w)
  y = f32[64,64] multiply(x, d)"""
TALKING = """q = f32[64,64] multiply(x, w)
  y = f32[64,64] all-reduce(q), replica_groups={{0,1,2,3}}, to_apply=add"""
DRAWING = """u = f32[] constant(1)
  v = f32[] constant(2)
  k = f32[64,64] rng(u, v), distribution=rng_uniform
  y = f32[64,64] multiply(x, k)"""


def inputs(*, shared: bool) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(7)
    weights = rng.uniform(0.5, 1.5, (64, 64)).astype(np.float32)
    return [(rng.standard_normal((64, 64), np.float32), weights if shared else weights + device) for device in range(4)]


def steps_of(step: str, given: list[tuple[Any, Any]]) -> int:
    statistics = Statistics()
    hloexec.run_devices(hloexec.parse(LOOP.format(step=step)), given, statistics=statistics)
    return statistics.steps


class Watcher:
    """An observer for whose sake all devices stay in lockstep."""

    def on_instruction(self, event: Any) -> None:
        pass


@pytest.mark.parametrize("step", [OWN, COMMON])
@pytest.mark.parametrize("shared", [False, True])
def test_devices_get_what_each_would_get_alone(step: str, shared: bool) -> None:
    module = hloexec.parse(LOOP.format(step=step))
    given = inputs(shared=shared)
    alone = hloexec.parse(LOOP.format(step=step).replace("replica_count=4", "replica_count=1"))
    for found, values in zip(hloexec.run_devices(module, given), given, strict=True):
        for leaf, expected in zip(found, hloexec.run(alone, *values), strict=True):
            assert_array_equal(leaf, expected)


def test_a_loop_on_different_values_runs_once_per_device() -> None:
    """A step that devices take in lockstep counts once for all of them."""
    alone = steps_of(OWN, inputs(shared=True)[:1] * DEVICES)
    assert steps_of(OWN, inputs(shared=True)) > (DEVICES - 1) * alone


@pytest.mark.parametrize("step", [COMMON, TALKING, DRAWING])
def test_a_loop_with_work_in_common_or_of_which_the_order_matters_stays_in_lockstep(step: str) -> None:
    together = steps_of(step, inputs(shared=True))
    assert together == steps_of(step, inputs(shared=True)[:1] * DEVICES)


@pytest.mark.parametrize("step", [OWN, COMMON, TALKING, DRAWING])
def test_observers_change_nothing(step: str) -> None:
    module = hloexec.parse(LOOP.format(step=step))
    given = inputs(shared=False)
    for found, expected in zip(
        hloexec.run_devices(module, given), hloexec.run_devices(module, given, observers=[Watcher()]), strict=True
    ):
        assert_array_equal(found[0], expected[0])
        assert_array_equal(found[1], expected[1])


def test_what_is_alive_is_counted_for_all_devices() -> None:
    """The history is 24 times the state; each device holds one, whether its turn has come or is over."""
    statistics = Statistics()
    module = hloexec.parse(LOOP.format(step=OWN))
    hloexec.run_devices(module, inputs(shared=False), statistics=statistics)
    histories = DEVICES * TRIPS * 64 * 64 * 4
    assert histories <= statistics.peak_bytes <= histories * 1.25


def test_results_are_checked_where_devices_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = attrs.evolve(
        registry.OPCODES["multiply"],
        evaluate=registry.Rule(lambda x, _: x.astype(np.float64)),
        fast_in=None,
    )
    monkeypatch.setitem(registry.OPCODES, "multiply", entry)
    module = hloexec.parse(LOOP.format(step=OWN))
    with pytest.raises(EvaluationError, match=r"%y .*float64\[64, 64\] as result 0, where the shape is f32\[64,64\]"):
        hloexec.run_devices(module, inputs(shared=False), check=True, planner=False)


@pytest.mark.parametrize("error", [ValueError, hloexec.UnsupportedError])
def test_an_error_names_the_step_and_the_way_to_it(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """Of a fault, the run is repeated as it is written; of what a kernel raises on purpose, it is not."""

    def fail(*_: Any) -> Any:
        raise error("it cannot be done")

    entry = attrs.evolve(registry.OPCODES["multiply"], evaluate=registry.Rule(fail), fast_in=None)
    monkeypatch.setitem(registry.OPCODES, "multiply", entry)
    module = hloexec.parse(LOOP.format(step=OWN))
    with pytest.raises(hloexec.HloError, match="it cannot be done") as caught:
        hloexec.run_devices(module, inputs(shared=False))
    assert "multiply" in str(caught.value)
    assert "in computation body, reached through" in str(caught.value)


@pytest.mark.parametrize("cores", [1, 4, 5])
def test_side_by_side_or_not_the_values_are_the_same(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(per_class, "core_count", lambda: cores)
    taken: set[int] = set()
    monkeypatch.setattr(
        per_class, "in_blocks", lambda run, count, _: [taken.add(n) or run(n, n + 1) for n in range(count)]
    )
    module = hloexec.parse(LOOP.format(step=OWN))
    given = inputs(shared=False)
    for found, (x, w) in zip(hloexec.run_devices(module, given), given, strict=True):
        with np.errstate(all="ignore"):
            expected = x
            for _ in range(TRIPS):
                expected = expected * w
        assert_array_equal(found[0], expected)
    assert taken == (set() if cores > DEVICES else set(range(DEVICES)))


def test_a_loop_whose_condition_exchanges_values_goes_on_in_lockstep() -> None:
    """The devices go on until the largest of their numbers has reached the end, each from a number of its own."""
    text = """HloModule m, replica_count=2
largest { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b) }
body { s = (f32[], f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  step = f32[] get-tuple-element(s), index=1
  y = f32[] add(x, step)
  ROOT t = (f32[], f32[]) tuple(y, step) }
condition { s = (f32[], f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  top = f32[] all-reduce(x), replica_groups={{0,1}}, to_apply=largest
  end = f32[] constant(100)
  ROOT more = pred[] compare(top, end), direction=LT }
ENTRY e { x = f32[] parameter(0)
  step = f32[] parameter(1)
  s = (f32[], f32[]) tuple(x, step)
  w = (f32[], f32[]) while(s), condition=condition, body=body
  ROOT r = f32[] get-tuple-element(w), index=0 }
"""
    module = hloexec.parse(text)
    for _ in range(20):
        results = hloexec.run_devices(module, [[np.float32(0), np.float32(2)], [np.float32(7), np.float32(1)]])
        assert [float(value) for value in results] == [100, 57]
        same = hloexec.run_devices(module, [[np.float32(0), np.float32(2)]])
        assert [float(value) for value in same] == [100, 100]


@pytest.mark.parametrize("planner", [True, False])
def test_parts_that_several_classes_need_stay_until_the_last_of_them(planner: bool) -> None:
    """Two values that divide the devices otherwise: each part of either is needed for two sums."""
    size = 1 << 20
    text = f"""HloModule m, replica_count=4
ENTRY e {{ x = f32[{size}] parameter(0)
  y = f32[{size}] parameter(1)
  a = f32[{size}] concatenate(x), dimensions={{0}}
  b = f32[{size}] concatenate(y), dimensions={{0}}
  ROOT r = f32[{size}] add(a, b) }}
"""
    xs, ys = ([np.full(size, number + start, np.float32) for number in range(2)] for start in (1, 10))
    inputs = [[xs[device // 2], ys[device % 2]] for device in range(4)]
    results = hloexec.run_devices(hloexec.parse(text), inputs, planner=planner)
    for device, result in enumerate(results):
        assert_array_equal(result, xs[device // 2] + ys[device % 2])


def test_observers_see_the_iterations_of_all_devices_in_their_order() -> None:
    class Observer:
        def __init__(self) -> None:
            self.iterations: list[int] = []

        def on_instruction(self, event: Any) -> None:
            if event.iteration is not None:
                self.iterations.append(event.iteration)

    observer = Observer()
    hloexec.run_devices(hloexec.parse(LOOP.format(step=OWN)), inputs(shared=False), observers=[observer])
    assert observer.iterations == sorted(observer.iterations)
    assert len(set(observer.iterations)) > 2


@pytest.mark.parametrize(
    ("second", "least", "where"),
    [(1.0, 1.0, " failed: "), (2.0, 1.0, " failed on device 0: "), (2.0, 2.0, " failed on device 1: ")],
)
def test_an_error_names_the_devices_of_its_own_kernel(second, least, where):
    """Neither those of the kernel before, which ran for each device by itself, nor those that it ran for before."""

    def fails(operand):
        if operand.max() >= least:
            raise ValueError("no")
        return operand

    text = (
        "HloModule m, replica_count=2\nENTRY e { p = f32[8] parameter(0)\n id = u32[] replica-id()\n"
        ' x = f32[] convert(id)\n s = f32[] sine(x)\n c = f32[8] custom-call(p), custom_call_target="fails"\n'
        " ROOT r = (f32[], f32[8]) tuple(s, c) }"
    )
    hloexec.register_custom_call("fails", fails)
    try:
        with pytest.raises(EvaluationError, match=re.escape(where)):
            hloexec.run_devices(hloexec.parse(text), [[np.ones(8, np.float32)], [np.full(8, second, np.float32)]])
    finally:
        unregister_custom_call("fails")


@pytest.mark.parametrize("planner", [True, False])
def test_an_error_in_a_loop_that_classes_run_apart_names_the_way_to_the_loop(monkeypatch, planner):
    """The loop stands in a branch, and fails once a device has multiplied its number often enough."""

    def fails(lhs, rhs):
        if lhs.max() > 100:
            raise UnsupportedError("no")  # Of another error, the run would be repeated as it is written.
        return lhs * rhs

    entry = registry.OPCODES["atan2"]
    changed = attrs.evolve(entry, evaluate=registry.Rule(fails), fast_in=None, is_elementwise=False)
    monkeypatch.setitem(registry.OPCODES, "atan2", changed)
    state = "(s32[], f32[64,64], f32[64,64], f32[24,64,64])"
    loop, branches = f"{state} while(t), condition=condition, body=body", f"{state} conditional(k, t, t)"
    text = LOOP.format(step="y = f32[64,64] atan2(x, w)")
    text = text.replace(
        f"  l = {loop}", f"  k = s32[] parameter(2)\n  l = {branches}, branch_computations={{taken, taken}}"
    )
    text = text.replace("ENTRY e {", f"taken {{ t = {state} parameter(0)\n  ROOT l = {loop} }}\nENTRY e {{")
    ones = np.ones((64, 64), np.float32)
    given = [[(1 + device) * ones, (2 + device) * ones, np.int32(0)] for device in range(DEVICES)]
    where = r"%y in computation body, reached through l:taken / l\[\d+\]:body failed"
    with pytest.raises(UnsupportedError, match=where):
        hloexec.run_devices(hloexec.parse(text), given, planner=planner)
