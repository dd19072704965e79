"""Asynchronous operations that end elsewhere than they begin, as XLA has them since jaxlib 0.12."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from tests.text.building import module

_STARTED = "((f32[4], f32[4]), f32[4], s32[])"
_INNER = """difference {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT r = f32[4] subtract(x, y)
}
"""
_START = f"""a = f32[4] parameter(0)
b = f32[4] parameter(1)
s = {_STARTED} async-start(a, b), calls=difference
"""
_DONE = f"""done {{
  h = {_STARTED} parameter(0)
  ROOT d = f32[4] async-done(h)
}}
"""
_LOOP = f"""below {{
  p = (s32[], {_STARTED}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}
step {{
  p = (s32[], {_STARTED}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  h = {_STARTED} get-tuple-element(p), index=1
  d = f32[4] subtract-done(h)
  k = f32[4] constant({{0.5, 1, 2, 4}})
  s = {_STARTED} subtract-start(d, k)
  ROOT t = (s32[], {_STARTED}) tuple(j, s)
}}
"""
A, B = np.float32([8, 16, -4, 0.5]), np.float32([1, 2, 0.25, -1])


class _Watch:
    def on_instruction(self, event: hloexec.Event) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "computations", "subtracted"),
    [
        (f"t = ({_STARTED}, f32[4]) tuple(s, a)\nROOT d = f32[4] async-done(t#0)", "", 0),
        ("ROOT d = f32[4] call(s), to_apply=done", _DONE, 0),
        (
            "yes = pred[] constant(true)\n"
            "ROOT d = f32[4] conditional(yes, s, s), true_computation=done, false_computation=done",
            _DONE,
            0,
        ),
        (
            f"z = s32[] constant(0)\nt = (s32[], {_STARTED}) tuple(z, s)\n"
            f"w = (s32[], {_STARTED}) while(t), condition=below, body=step\n"
            "ROOT d = f32[4] async-done(w#1)",
            _LOOP,
            3,
        ),
    ],
    ids=["tuple", "call", "conditional", "while"],
)
def test_started_operations_go_through_tuples_calls_branches_and_loops(
    body: str, computations: str, subtracted: int
) -> None:
    found = hloexec.parse(module(_START + body, _INNER + computations), strict=True)
    assert hloexec.parse(hloexec.format(found), strict=True) == found
    expected = A - B - subtracted * np.float32([0.5, 1, 2, 4])  # exact: small multiples of 1/4
    for options in ({}, {"planner": False}, {"observers": [_Watch()]}):
        np.testing.assert_array_equal(hloexec.run(found, A, B, **options), expected)


def test_operands_that_come_late_are_refused_with_a_reason() -> None:
    text = module(
        f"""a = f32[4] parameter(0)
        b = f32[4] parameter(1)
        s = ((f32[4]), (), s32[]) async-start(a), calls=difference
        u = {_STARTED} async-update(s, b)
        ROOT d = f32[4] async-done(u)""",
        _INNER,
    )
    found = hloexec.parse(text, strict=True)
    with pytest.raises(
        hloexec.UnsupportedError, match=r"first: %u .*it gives operands to a computation that an async-start"
    ):
        hloexec.run(found, *hloexec.random_inputs(found, seed=0))
