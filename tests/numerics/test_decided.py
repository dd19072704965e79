"""Verdicts where rounding decides between separate values: what jumps says nothing of what does not."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.dataflow.decisions import decided_leaves
from hloexec.numerics.comparison import Comparison, Verdict
from tests.text.building import module

TIE = module(
    """x = f32[1024] parameter(0)
    y = f32[1024] parameter(1)
    s = f32[1024] add(x, y)
    ROOT f = f32[1024] floor(s)"""
)


def tie(change: float, place: int, ties: int = 1, share: float = 0.3) -> Comparison:
    """A sum that is so much of a unit below 1 in the first places, and 1.5 in the others; its floor, against one that
    is changed at one place."""
    x, y = np.full(1024, 1.0, np.float32), np.full(1024, 0.5, np.float32)
    y[:ties] = -(2.0**-24) * share
    parsed = hloexec.parse(TIE)
    ours = np.array(hloexec.run(parsed, x, y))
    theirs = ours.copy()
    theirs[place] += np.float32(change)
    return hloexec.compare(ours, theirs, module=parsed, inputs=[x, y])


@pytest.mark.parametrize("ties", [1, 20, 100])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_floor_at_a_tie_says_nothing_of_others(ties: int, change: float) -> None:
    found = tie(change, 500, ties)
    assert found.verdict is Verdict.DIFFERENT, str(found)
    assert [element.index for element in found.leaves[0].first] == [(500,)]


@pytest.mark.parametrize("ties", [1, 20])
def test_a_floor_at_a_tie_is_either_value(ties: int) -> None:
    assert not tie(-1, 0, ties).different


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ROOT r = f32[4] floor(x)", True),
        ("ROOT r = f32[4] negate(x)", False),
        ("ROOT r = s32[4] convert(x)", True),
        ("ROOT r = f32[4] convert(k)", False),
        ("p = pred[4] compare(x, x), direction=LT\n ROOT r = f32[4] select(p, x, x)", True),
        ("p = pred[4] compare(k, k), direction=LT\n ROOT r = f32[4] select(p, x, x)", False),
    ],
)
def test_decisions_are_about_floats(line: str, expected: bool) -> None:
    parsed = hloexec.parse(module(f"x = f32[4] parameter(0)\n k = s32[4] parameter(1)\n {line}"))
    assert decided_leaves(parsed) == (frozenset({()}) if expected else frozenset())


def test_only_leaves_behind_which_a_decision_is_are_decided() -> None:
    text = module(
        """x = f32[4] parameter(0)
        f = f32[4] floor(x)
        t = f32[4] tanh(x)
        ROOT r = (f32[4], f32[4]) tuple(t, f)"""
    )
    assert decided_leaves(hloexec.parse(text)) == frozenset({(1,)})
