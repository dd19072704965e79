"""Loops that go round another number of times than in the other module, with and without reason."""

from __future__ import annotations

import numpy as np

import hloexec

_STEPS = """HloModule m
body {
  p = (s32[], f32[6], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[6] get-tuple-element(p), index=1
  w = f32[6,6] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
STEPS
  ROOT t = (s32[], f32[6], f32[6,6]) tuple(next, LAST, w)
}
condition {
  p = (s32[], f32[6], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant(END)
  ROOT more = pred[] compare(i, end), direction=LT
}
ENTRY main {
  x = f32[6] parameter(0)
  w = f32[6,6] parameter(1)
  zero = s32[] constant(0)
  start = (s32[], f32[6], f32[6,6]) tuple(zero, x, w)
  loop = (s32[], f32[6], f32[6,6]) while(start), condition=condition, body=body
  ROOT r = f32[6] get-tuple-element(loop), index=1
}
"""


def _steps(trips: int, *functions: str) -> str:
    """A loop whose iterations multiply by a matrix and apply a function, once for each of some functions."""
    lines, last = [], "x"
    for number, function in enumerate(functions):
        lines.append(f"  y{number} = f32[6] dot({last}, w), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}")
        lines.append(f"  z{number} = f32[6] {function}(y{number})")
        last = f"z{number}"
    return _STEPS.replace("STEPS", "\n".join(lines)).replace("LAST", last).replace("END", str(trips))


_START = (np.linspace(-1, 1, 6, dtype=np.float32), np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32))


def test_of_a_loop_that_was_unrolled_not_its_end_but_the_wrong_step_is_to_blame() -> None:
    """Two steps in each of three iterations are six iterations of one step: that it ends sooner is no fault."""
    before = hloexec.parse(_steps(6, "tanh"))
    assert hloexec.diff(before, hloexec.parse(_steps(3, "tanh", "tanh")), _START).verdict != "differ"
    found = hloexec.diff(before, hloexec.parse(_steps(3, "tanh", "sine")), _START)
    assert [finding.after.instruction for finding in found.findings] == ["z1"]


def test_a_loop_that_goes_round_half_as_often_is_to_blame_for_that() -> None:
    found = hloexec.diff(hloexec.parse(_steps(6, "tanh")), hloexec.parse(_steps(3, "tanh")), _START)
    assert [(finding.after.instruction, finding.is_certain) for finding in found.findings] == [("more", True)]
