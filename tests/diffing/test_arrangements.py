"""A product with the wrong dimension of a square matrix: the matrix is right, and what takes it is to blame, although the
results come right with the matrix transposed, too."""

import pytest

import hloexec
from hloexec.engine.inputs import random_inputs


def _module(steps: str) -> hloexec.Module:
    return hloexec.parse(
        f"""HloModule m, replica_count=2
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}
body {{
  c = (s32[], f32[2,3,6], f32[3,6,6]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  h = f32[2,3,6] get-tuple-element(c), index=1
  ws = f32[3,6,6] get-tuple-element(c), index=2
  zero = s32[] constant(0)
  slice = f32[1,6,6] dynamic-slice(ws, i, zero, zero), dynamic_slice_sizes={{1,6,6}}
  w = f32[6,6] reshape(slice)
{steps}
  all = f32[2,3,6] all-reduce(dot), replica_groups={{{{0,1}}}}, to_apply=sum
  next = f32[2,3,6] tanh(all)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[2,3,6], f32[3,6,6]) tuple(j, next, ws)
}}
cond {{
  c = (s32[], f32[2,3,6], f32[3,6,6]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  x = f32[2,3,6] parameter(0)
  ws = f32[3,6,6] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[2,3,6], f32[3,6,6]) tuple(zero, x, ws)
  r = (s32[], f32[2,3,6], f32[3,6,6]) while(t), condition=cond, body=body
  ROOT y = f32[2,3,6] get-tuple-element(r), index=1
}}
"""
    )


BEFORE = """  scaled = f32[2,3,6] multiply(h, h)
  dot = f32[2,3,6] dot(scaled, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}"""
IN_PLACE = """  scaled = f32[2,3,6] power(h, squared)
  dot = f32[2,3,6] dot(scaled, w), lhs_contracting_dims={2}, rhs_contracting_dims={1}"""
IN_ROWS = """  rows = f32[6,6] reshape(h)
  scaled = f32[6,6] multiply(rows, rows)
  product = f32[6,6] dot(scaled, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  dot = f32[2,3,6] reshape(product)"""
TWOS = "  two = f32[] constant(2)\n  squared = f32[2,3,6] broadcast(two), dimensions={}\n"


@pytest.mark.parametrize(
    ("steps", "blamed"), [(TWOS + IN_PLACE, "dot"), (IN_ROWS, "product")], ids=["in place", "in rows"]
)
def test_what_takes_the_wrong_dimension_is_to_blame(steps: str, blamed: str) -> None:
    before, after = _module(BEFORE), _module(steps)
    found = hloexec.diff(before, after, [random_inputs(before, seed) for seed in (1, 2)])
    assert (found.findings[0].after.instruction, found.findings[0].is_certain) == (blamed, True)
    assert "rhs_contracting_dims={0}" in found.findings[0].reason


_LARGEST = """HloModule m
most {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] maximum(a, b)
}}
ENTRY e {{
  x = f32[6,8] parameter(0)
  lowest = f32[] constant(-inf)
  m = f32[6,8]{{1,0}} abs(x)
{steps}
  ROOT y = f32[8] sine(r)
}}
"""
_AT_ONCE = "  r = f32[8] reduce(m, lowest), dimensions={0}, to_apply=most"
_IN_TWO = """  three = f32[2,3,8]{{{layout}}} bitcast(m)
  two = f32[2,8] reduce(three, lowest), dimensions={{1}}, to_apply=most
  r = f32[8] reduce(two, lowest), dimensions={{0}}, to_apply=most"""


@pytest.mark.parametrize("layout", ["1,0,2", "0,2,1"])
def test_a_bitcast_is_named_with_the_layout_that_it_should_have(layout: str) -> None:
    before, right, wrong = (
        hloexec.parse(_LARGEST.format(steps=steps))
        for steps in (_AT_ONCE, _IN_TWO.format(layout="2,1,0"), _IN_TWO.format(layout=layout))
    )
    assert hloexec.diff(before, right).verdict == "agree"
    finding = hloexec.diff(before, wrong).findings[0]
    assert finding.after.instruction == "three"
    assert "right if it is f32[2,3,8]{2," in finding.reason
    assert finding.reason.endswith("} bitcast(%m)")


_SQUARE = """HloModule m
ENTRY e {{
  x = f32[4,4]{{1,0}} parameter(0)
  v = f32[4,4] parameter(1)
  s = f32[4,4] sine(x)
{steps}
  d = f32[4,4] add(u, s)
  ROOT r = f32[4,4] multiply(d, v)
}}
"""
_THERE_AND_BACK = """  b = f32[4,4]{{{layout}}} bitcast(s)
  p = f32[4,4] tanh(b)
  o = f32[4,4] exponential(p)
  q = f32[4,4] multiply(o, o)
  u = f32[4,4] transpose(q), dimensions={{1,0}}"""


def test_a_transpose_is_not_certain_where_a_bitcast_further_back_may_have_been_to_transpose() -> None:
    steps = "  p = f32[4,4] tanh(s)\n  o = f32[4,4] exponential(p)\n  u = f32[4,4] multiply(o, o)"
    before, right, wrong = (
        hloexec.parse(_SQUARE.format(steps=each))
        for each in (steps, _THERE_AND_BACK.format(layout="0,1"), _THERE_AND_BACK.format(layout="1,0"))
    )
    assert hloexec.diff(before, right).verdict == "agree"
    finding = hloexec.diff(before, wrong).findings[0]
    assert finding.after.instruction in ("b", "u")
    assert not finding.is_certain
