"""`budget` is kept wherever a search is when its time is over: by a clock that only runs of the module move."""

import time
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining import Explained, running

LAYERS = """HloModule layers
ENTRY main {
  x = f32[24,32] parameter(0)
  u = f32[32,24] parameter(1)
  v = f32[24,16] parameter(2)
  h = f32[24,24] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[24,24] tanh(h)
  ROOT r = f32[24,16] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
_LATE = 1.1


class _Clock:
    """Runs take a second each, and instructions a part of it where there is an observer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        for module in (running,):
            monkeypatch.setattr(module, "run_with", self._slowed(module.run_with, seconds))

    def _slowed(self, run: Any, seconds: float) -> Any:
        def slow(*arguments: Any, **options: Any) -> Any:
            self.now += seconds
            return run(*arguments, **options)

        return slow

    def on_instruction(self, _: Any) -> None:
        self.now += 0.25


@pytest.fixture(scope="module")
def module() -> hloexec.Module:
    return hloexec.parse(LAYERS)


@pytest.fixture(scope="module")
def inputs(module: hloexec.Module) -> list[Any]:
    return hloexec.random_inputs(module, seed=3)


def _expected(module: hloexec.Module, inputs: list[Any], case: str) -> Any:
    policy = {"parts": "reference,h=tf32,r=bf16", "whole": "bf16"}.get(case, "reference")
    result = np.array(hloexec.run(module, *inputs, numerics=policy))
    if case != "parts":
        # Rounding, so that the bits do not settle it.
        result = np.nextafter(result, np.float32(9))
    if case == "fault":
        result[3:5] *= np.float32(1.0004)
    return result


@pytest.mark.parametrize("case", "parts whole rounding fault".split())
@pytest.mark.parametrize("budget", [10, 17, 31, 80])
def test_a_search_ends_within_its_budget(
    module: hloexec.Module, inputs: list[Any], case: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _expected(module, inputs, case)
    whole = hloexec.explain(module, inputs, expected)
    clock = _Clock(monkeypatch)
    found = hloexec.explain(module, inputs, expected, budget=budget)
    assert clock.now - 1000 <= _LATE * budget
    assert found.is_complete == (whole.runs <= budget)
    if found.verdict is not Explained.NONE:
        named = {found.best.name, *(trial.name for trial in found.alike), *(each.policy for each in found.untold)}
        assert found.verdict is whole.verdict
        assert whole.best.name in named | {policy.name for policy in found.undecided} or whole.untold


@pytest.mark.parametrize("budget", [20, 75])
def test_values_of_instructions_are_explained_within_the_budget(
    module: hloexec.Module, inputs: list[Any], budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _expected(module, inputs, "rounding")
    product = inputs[0].astype(np.float64) @ inputs[1]
    values = {"h": product.astype(np.float32) * np.float32(1.01), "t": np.tanh(product).astype(np.float32)}
    clock = _Clock(monkeypatch)
    found = hloexec.explain(module, inputs, expected, values=values, budget=budget)
    assert clock.now - 1000 <= _LATE * budget
    assert found.is_complete == (clock.now - 1000 < budget)


@pytest.mark.parametrize("budget", [10, 20, 30, 50])
def test_what_the_text_leaves_open_is_looked_at_within_the_budget(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = hloexec.parse(
        """HloModule m
second {
  a = f32[] parameter(0)
  ROOT b = f32[] parameter(1)
}
ENTRY e {
  x = f32[6] parameter(0)
  i = s32[6,1] parameter(1)
  u = f32[6] parameter(2)
  ROOT r = f32[6] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second
}
"""
    )
    inputs = [np.zeros(6, "f4"), np.array([[1], [3], [1], [4], [3], [1]], "i4"), np.arange(1, 7, dtype="f4")]
    clock = _Clock(monkeypatch)
    found = hloexec.explain(module, inputs, np.array([0, 1, 0, 2, 4, 0], "f4"), budget=budget)
    assert clock.now - 1000 <= _LATE * budget
    assert found.verdict is Explained.NOT_DECIDED or not found.is_complete


def test_a_run_that_takes_too_long_is_ended(
    module: hloexec.Module, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock(monkeypatch, 0.0)
    found = hloexec.explain(module, inputs, _expected(module, inputs, "fault"), budget=13.1, observers=[clock])
    assert clock.now - 1000 <= _LATE * 13.1 and not found.is_complete


def test_a_budget_that_is_too_short_for_any_answer_says_so(
    module: hloexec.Module, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _Clock(monkeypatch)
    with pytest.raises(hloexec.ResourceError, match="budget=3 ends the search before"):
        hloexec.explain(module, inputs, _expected(module, inputs, "whole"), budget=3)


def test_a_nan_that_no_policy_makes_takes_no_long_search(module: hloexec.Module, inputs: list[Any]) -> None:
    result = np.array(hloexec.run(module, *inputs, numerics="bf16"))
    for value in (np.nan, np.inf):
        result[2, 3] = value
        found = hloexec.explain(module, inputs, result)
        assert found.verdict is Explained.NONE and found.runs < 60 and found.is_complete
    # A NaN of both sides is none of one side.
    inputs = [inputs[0].copy(), *inputs[1:]]
    inputs[0][5, 5] = np.nan
    expected = hloexec.run(module, *inputs, numerics="reference,r=bf16")
    assert hloexec.explain(module, inputs, expected).best.name == "reference,main/r=bf16"
