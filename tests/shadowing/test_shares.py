"""Shares follow what each instruction's rounding does to the outputs: beside runs of NumPy's in which one rounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.shadowing.alone.shares import Work, affordable_runs

jax = pytest.importorskip("jax", reason="JAX lowers the programs")
jnp = jax.numpy

Round = Callable[[str, Any], Any]


def _inverse(h: Any) -> Any:
    """Gauss and Jordan, without pivots."""

    def step(k: Any, a: Any) -> Any:
        row = a[k] / a[k, k]
        column = a[:, k] * (1 - (jnp.arange(a.shape[0]) == k))
        return (a - column[:, None] * row[None, :]).at[k].set(row)

    both = jnp.concatenate([h, jnp.eye(h.shape[0], dtype=h.dtype)], 1)
    return jax.lax.fori_loop(0, h.shape[0], step, both)[:, h.shape[0] :]


def _inverse_in_f64(h: Any, rounded: Round) -> Any:
    size = len(h)
    a = np.concatenate([h.astype(np.float64), np.eye(size)], 1)
    for k in range(size):
        row = rounded("divide", a[k] / a[k, k])
        column = a[:, k] * (np.arange(size) != k)
        a = rounded("subtract", a - rounded("multiply", column[:, None] * row))
        a[k] = row
    return a[:, size:]


def _alone(h: Any, opcode: str) -> float:
    """The relative error of the inverse where only the results of one opcode are rounded."""
    exact = _inverse_in_f64(h, lambda _, value: value)
    found = _inverse_in_f64(
        h, lambda name, value: value.astype(np.float32).astype(np.float64) if name == opcode else value
    )
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def _hilbert(size: int) -> Any:
    return (1 / (np.arange(size)[:, None] + np.arange(size) + 1)).astype(np.float32)


@pytest.mark.parametrize("size", [4, 6])
def test_an_inverse_loses_its_digits_where_it_subtracts(size: int) -> None:
    h = _hilbert(size)
    found = hloexec.shadow(hloexec.from_jax(jax.jit(_inverse).lower(h)), [h])
    assert not found.estimates_reason and not found.estimated_count
    first = found.losses[0]
    assert (first.opcode, first.kind) == ("subtract", "cancellation")
    by_opcode = {loss.opcode: loss for loss in found.losses if (loss.alone or 0) > 1e-6}
    for opcode, loss in by_opcode.items():
        assert loss.alone == pytest.approx(_alone(h, opcode), rel=0.5)
    truth = {opcode: _alone(h, opcode) for opcode in ("divide", "multiply", "subtract")}
    largest = max(by_opcode, key=lambda opcode: by_opcode[opcode].alone or 0.0)
    assert truth[largest] == max(truth.values())
    assert sum(loss.share for loss in found.losses) == pytest.approx(1)
    shares = {loss.opcode: loss.share for loss in found.losses}
    assert shares.get("divide", 0.0) < 0.01


def test_no_runs_leave_estimates() -> None:
    h = _hilbert(6)
    found = hloexec.shadow(hloexec.from_jax(jax.jit(_inverse).lower(h)), [h], share_runs=0)
    assert found.estimates_reason == "no runs are allowed"
    assert found.share_runs == 0 and all(loss.alone is None for loss in found.losses)


def test_few_runs_are_not_exceeded() -> None:
    h = _hilbert(6)
    found = hloexec.shadow(hloexec.from_jax(jax.jit(_inverse).lower(h)), [h], share_runs=3)
    assert 0 < found.share_runs <= 3
    assert found.estimated_count
    assert [loss.is_measured for loss in found.losses] == [loss.alone is not None for loss in found.losses]


def test_other_numerics_leave_estimates() -> None:
    x = 1000 + np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    module = hloexec.from_jax(jax.jit(lambda x: (x * x).mean(-1) - x.mean(-1) ** 2).lower(x))
    assert "numerics" in hloexec.shadow(module, [x], numerics="ftz").estimates_reason
    assert hloexec.shadow(module, [x]).losses[0].kind == "cancellation"


def test_shares_are_measured_in_conditionals() -> None:
    def program(x: Any) -> Any:
        y = jax.lax.cond(x[0] > 0, lambda z: jnp.cos(z), lambda z: z * z, x)
        return (1 - y) / (x * x)

    x = np.linspace(0.01, 0.05, 12, dtype=np.float32)
    found = hloexec.shadow(hloexec.from_jax(jax.jit(program).lower(x)), [x])
    assert not found.estimates_reason
    assert (found.losses[0].opcode, found.losses[0].kind) == ("subtract", "cancellation")
    alone = {loss.opcode: loss.alone or 0.0 for loss in found.losses}
    exact = (1 - np.cos(x.astype(np.float64))) / x.astype(np.float64) ** 2
    rounded = (1 - np.cos(x.astype(np.float64)).astype(np.float32)) / x.astype(np.float64) ** 2
    assert alone["cosine"] == pytest.approx(np.linalg.norm(rounded - exact) / np.linalg.norm(exact), rel=1e-3)


def test_a_routine_of_a_library_rounds_alone() -> None:
    h = _hilbert(6)
    found = hloexec.shadow(hloexec.from_jax(jax.jit(lambda h: jnp.linalg.cholesky(h)[-1, -1]).lower(h)), [h])
    assert not found.estimates_reason
    exact = np.linalg.cholesky(h.astype(np.float64))[-1, -1]
    ours = hloexec.run(hloexec.from_jax(jax.jit(jnp.linalg.cholesky).lower(h)), h)[-1, -1]
    (loss,) = (loss for loss in found.losses if loss.opcode == "custom-call")
    assert loss.alone == pytest.approx(abs(ours - exact) / exact, rel=0.05)


def test_a_collective_rounds_alone() -> None:
    module = hloexec.parse("""
HloModule apart, replica_count=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[16] parameter(0)
  y = f32[16] parameter(1)
  total = f32[16] all-reduce(x), replica_groups={{0,1}}, to_apply=add
  ROOT rest = f32[16] subtract(total, y)
}
""")
    rng = np.random.default_rng(0)
    first, second = rng.uniform(1, 2, (2, 16)).astype(np.float32)
    exact = first.astype(np.float64) + second
    y = (exact + 1e-5 * rng.uniform(1, 2, 16)).astype(np.float32)
    found = hloexec.shadow(module, [[first, y], [second, y]])
    assert not found.estimates_reason
    alone = {loss.opcode: loss.alone or 0.0 for loss in found.losses}
    error = exact.astype(np.float32) - exact
    assert alone["all-reduce"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(exact - y), rel=1e-3)
    assert found.losses[0].kind == "cancellation"


def test_runs_are_as_many_as_the_work_allows() -> None:
    def runs(**work: int) -> int:
        return affordable_runs(Work(**work), 10)

    assert runs(events=10) > 100
    assert runs(events=10) > runs(events=10, numbers=10**8) >= 3
    assert runs(events=10, loop_events=10**6) < 3
    assert runs(events=10, flops=10**11) < 3


def test_where_runs_would_take_long_shares_are_estimates() -> None:
    def program(x: Any) -> Any:
        total = jax.lax.fori_loop(0, 30_000, lambda k, s: s * 0.999 + jnp.sin(x * k), x)
        return (total + 1e3) - 1e3

    x = np.linspace(0.1, 1, 9, dtype=np.float32)
    module = hloexec.from_jax(jax.jit(program).lower(x))
    found = hloexec.shadow(module, [x])
    assert found.estimates_reason == "runs of single instructions would take long" and not found.share_runs
    assert not any(loss.is_measured for loss in found.losses)
    found = hloexec.shadow(module, [x], share_runs=3)
    assert not found.estimates_reason and found.share_runs == 3
