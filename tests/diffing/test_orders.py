"""Elements in a wrong order are told by their places, also where a loop has them from a computation that others call,
and where bounds in a narrow type hide them."""

import ml_dtypes
import numpy as np

import hloexec
from tests.diffing.texts import diff_texts

_CONDITION = """condition {
  state.1 = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) parameter(0)
  n.1 = s32[] get-tuple-element(state.1), index=0
  last = s32[] constant(4)
  ROOT less = pred[] compare(n.1, last), direction=LT
}
"""
_END = """ENTRY main {
  x = f32[3,2] parameter(0)
  zero.2 = s32[] constant(0)
  none = f32[] constant(0)
  nothing = f32[4,3,2] broadcast(none), dimensions={}
  start = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) tuple(zero.2, nothing, nothing, x)
  end = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) while(start), condition=condition, body=body
  first = f32[4,3,2] get-tuple-element(end), index=1
  second = f32[4,3,2] get-tuple-element(end), index=2
  c = f32[4,3,2] cosine(first)
  ROOT r = f32[4,3,2] add(c, second)
}
"""
_STEP = """  state = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  kept = f32[4,3,2] get-tuple-element(state), index=1
  kept.1 = f32[4,3,2] get-tuple-element(state), index=2
  v = f32[3,2] get-tuple-element(state), index=3
  one = s32[] constant(1)
  next = s32[] add(n, one)
  s = f32[3,2] sine(v)
  t = f32[3,2] tanh(s)
"""
_CALLING = f"""HloModule calling
written {{
  into = f32[4,3,2] parameter(0)
  what = f32[3,2] parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  row = f32[1,3,2] reshape(what)
  ROOT w = f32[4,3,2] dynamic-update-slice(into, row, at, zero, zero)
}}
body {{
{_STEP}  a = f32[4,3,2] call(kept, s, n), to_apply=written
  b = f32[4,3,2] call(kept.1, t, n), to_apply=written
  ROOT both = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) tuple(next, a, b, t)
}}
{_CONDITION}{_END}"""
_INLINED = f"""HloModule inlined
body {{
{_STEP}  zero = s32[] constant(0)
  row = f32[1,3,2]{{2,1,0}} bitcast(s)
  a = f32[4,3,2] dynamic-update-slice(kept, row, n, zero, zero)
  row.1 = f32[1,3,2] reshape(t)
  b = f32[4,3,2] dynamic-update-slice(kept.1, row.1, n, zero, zero)
  ROOT both = (s32[], f32[4,3,2], f32[4,3,2], f32[3,2]) tuple(next, a, b, t)
}}
{_CONDITION}{_END}"""


def test_a_wrong_layout_in_a_loop_is_to_blame_though_others_call_what_does_the_same() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    assert diff_texts(_CALLING, _INLINED, [x]).agrees
    wrong = _INLINED.replace("{2,1,0} bitcast", "{1,2,0} bitcast")
    first = diff_texts(_CALLING, wrong, [x]).findings[0]
    assert first.after.instruction == "row"
    assert first.is_certain
    assert first.reason == ""


_NARROW = """HloModule narrow
ENTRY main {{
  x = bf16[6,8,4] parameter(0)
  w = bf16[4,64] parameter(1)
  v = bf16[64,6] parameter(2)
  y = bf16[6,8,4] multiply(x, x)
{squared}
  k = bf16[] constant(0.012)
  ks = bf16[6,8,4] broadcast(k), dimensions={{}}
  s = bf16[6,8,4] multiply(z, ks)
  t = bf16[6,8,4] add(s, x)
  u = bf16[6,8,4] tanh(t)
  d = bf16[6,8,64] dot(u, w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  g = bf16[6,8,64] exponential(d)
  ROOT r = bf16[6,8,6] dot(g, v), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
}}
"""
_MOVED = """  q = bf16[8,4,6] transpose(y), dimensions={1,2,0}
  m = bf16[8,4,6]{0,2,1} bitcast(y)
  p = bf16[8,4,6] multiply(m, q)
  z = bf16[6,8,4] transpose(p), dimensions={2,0,1}"""


def test_a_wrong_order_that_bounds_in_a_narrow_type_hide_is_told_where_it_is_taken() -> None:
    before = hloexec.parse(_NARROW.format(squared="  z = bf16[6,8,4] multiply(y, y)"))
    random = np.random.default_rng(0)
    sizes = ((6, 8, 4), (4, 64), (64, 6))
    inputs = [(random.normal(size=size) * 0.7).astype(ml_dtypes.bfloat16) for size in sizes]
    found = hloexec.diff(before, hloexec.parse(_NARROW.format(squared=_MOVED)), inputs)
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == "m"
    right = _MOVED.replace("{0,2,1}", "{1,0,2}")
    assert hloexec.diff(before, hloexec.parse(_NARROW.format(squared=right)), inputs).agrees
