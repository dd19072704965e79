"""Kernels that round at random take the operands of all classes of devices at once, and give the bits that each device
has alone."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.ops.policies import chance
from hloexec.ops.policies.random_rounding import RandomRounding
from tests.plan.ways import bits

DEVICES = 6

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
    inputs = [[xs[number % 4], w, numbers[number % 4]] for number in range(DEVICES)]
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
            assert together < 2.5 * calls / DEVICES


def test_a_fault_of_all_at_once_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no such thing")

    module = hloexec.parse(MODULE.format(kind="f32", rows=3, columns=5))
    inputs = [hloexec.random_inputs(module, seed=number) for number in range(DEVICES)]
    expected = hloexec.run_devices(module, inputs, numerics="random-rounding:0")
    monkeypatch.setattr(RandomRounding, "of_each", fail)
    with pytest.warns(hloexec.OptimizationWarning, match="for all devices at once failed"):
        found = hloexec.run_devices(module, inputs, numerics="random-rounding:0")
    assert list(map(bits, found)) == list(map(bits, expected))
