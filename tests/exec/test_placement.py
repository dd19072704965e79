"""Arrays that are packed before a run take no more memory than those that are alive at once, and hold the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import machine, plan_of
from hloexec.engine.plan.steps import Plan
from hloexec.ops import resources
from hloexec.ops.resources import Placed

pytestmark = pytest.mark.skipif(not resources._IS_SUPPORTED, reason="needs counted references and MADV_DONTNEED")

SIDE = 512
BYTES = 4 * SIDE * SIDE
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GAP = f"""HloModule gap

ENTRY main {{
  x = f32[{SIDE},{SIDE}] parameter(0)
  wide = f32[{SIDE},{4 * SIDE}] parameter(1)
  half = f32[{SIDE},{2 * SIDE}] parameter(2)
  first = f32[{SIDE},{SIDE}] dot(x, x), {DOT}
  second = f32[{SIDE},{2 * SIDE}] dot(first, half), {DOT}
  third = f32[{SIDE},{4 * SIDE}] dot(x, wide), {DOT}
  ROOT both = (f32[{SIDE},{2 * SIDE}], f32[{SIDE},{4 * SIDE}]) tuple(second, third)
}}
"""
CUT = f"""HloModule cut

ENTRY main {{
  x = f32[{SIDE},{SIDE}] parameter(0)
  wide = f32[{SIDE},{4 * SIDE}] parameter(1)
  zero = f32[] constant(0)
  first = f32[{SIDE},{SIDE}] dot(x, x), {DOT}
  cut = f32[{SIDE - 2},{SIDE}] pad(first, zero), padding=-1_-1x0_0
  second = f32[{SIDE - 2},{4 * SIDE}] dot(cut, wide), {DOT}
  third = f32[{SIDE},{4 * SIDE}] dot(x, wide), {DOT}
  fourth = f32[{SIDE - 2},{SIDE}] dot(cut, x), {DOT}
  ROOT all = (f32[{SIDE - 2},{4 * SIDE}], f32[{SIDE},{4 * SIDE}], f32[{SIDE - 2},{SIDE}]) tuple(second, third, fourth)
}}
"""


def _inputs(module: Any) -> list[np.ndarray]:
    return list(hloexec.random_inputs(module, seed=7))


def _used(plan: Plan) -> int:
    assert plan.arenas is not None
    (found,) = plan.arenas._idle
    assert not found.missed
    return found.used


def _is_placed(plan: Plan) -> bool:
    return any(isinstance(step.function, Placed) for step in plan.steps)


def _bits(results: Any) -> list[bytes]:
    return [leaf.tobytes() for leaf in results]


@pytest.mark.slow_cases("text1")
@pytest.mark.parametrize("text", [GAP, CUT])
def test_packed_arrays_hold_the_same_bits_as_results_of_earlier_runs_are_kept(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RUNS_BEFORE_CODE", 4)
    module = hloexec.parse(text)
    inputs = _inputs(module)
    expected = _bits(hloexec.run(module, *inputs, planner=False))
    kept = []
    for _ in range(7):
        kept.append(hloexec.run(module, *inputs))
        assert _bits(kept[-1]) == expected
        del kept[:-3]
    assert all(_bits(results) == expected for results in kept)


def test_an_array_that_dies_early_leaves_no_gap_in_front_of_those_that_stay() -> None:
    module = hloexec.parse(GAP)
    inputs = _inputs(module)
    hloexec.run(module, *inputs)
    plan = plan_of(module)
    assert _is_placed(plan)
    # `first` is dead when `third` is made, which does not fit where it was.
    assert _used(plan) == 6 * BYTES


def test_an_array_lives_as_long_as_a_padding_that_only_cuts_it() -> None:
    module = hloexec.parse(CUT)
    inputs = _inputs(module)
    hloexec.run(module, *inputs)
    found = _used(plan_of(module))
    rows = 4 * (SIDE - 2) * SIDE
    assert found == BYTES + 4 * rows + 4 * BYTES + rows
