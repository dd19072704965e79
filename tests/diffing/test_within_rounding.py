"""Where rounding, as it was measured, explains the results, little outweighs that."""

from __future__ import annotations

import pytest

import hloexec

_SUMS = """HloModule before
add { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT c = bf16[] add(a, b) }
ENTRY e {
  x = bf16[24] parameter(0)
  z = bf16[] constant(0)
  ROOT r = bf16[24] reduce-window(x, z), window={size=24 pad=23_0}, to_apply=add
}"""
_SUMS_IN_TWO_LEVELS = """HloModule after
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  n = bf16[] convert(c)
  ROOT w = f32[] convert(n)
}
ENTRY e {
  x = bf16[24] parameter(0)
  z = f32[] constant(0)
  w = f32[24] convert(x)
  p = f32[32] pad(w, z), padding=0_8
  m = f32[2,16] reshape(p)
  c = f32[2,16] reduce-window(m, z), window={size=1x16 pad=0_0x15_0}, to_apply=add
  l = f32[2,1] slice(c), slice={[0:2], [15:16]}
  t = f32[3,1] reduce-window(l, z), window={size=2x1 pad=2_0x0_0}, to_apply=add
  s = f32[2,1] slice(t), slice={[0:2], [0:1]}
  v = f32[2] reshape(s)
  b = f32[2,16] broadcast(v), dimensions={0}
  u = f32[2,16] map(c, b), dimensions={0,1}, to_apply=add
  f = f32[32] reshape(u)
  g = f32[24] slice(f), slice={[0:24]}
  ROOT r = bf16[24] convert(g)
}"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [0, 2, 10])
def test_a_change_that_makes_results_right_by_accident_shows_nothing(seed: int) -> None:
    """Cumulative sums in bf16, as XLA:CPU divides them: to round up the sum of a block gives the results of `before`."""
    found = hloexec.diff(hloexec.parse(_SUMS), hloexec.parse(_SUMS_IN_TWO_LEVELS), seed=seed)
    assert (found.verdict, found.findings) == ("rounding only", ())


_FACTOR = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  c = f32[64] parameter(2)
  s = f32[64] sine(c)
  o = f32[64] cosine(c)
  ss = f32[64] multiply(s, s)
  oo = f32[64] multiply(o, o)
  one = f32[64] add(ss, oo)
  r = f32[64] log(one)
  q = f32[64] exponential(r)
  xq = f32[64] multiply(x, q)
  d = f32[64] subtract(xq, y)
  z = f32[64] multiply(d, s)
  big = f32[64] multiply(y, y)
  ROOT out = f32[64] add(z, big)
}"""


def test_an_identity_may_be_further_off_than_the_roundings_on_the_way() -> None:
    """sin² + cos² is 1, but for what the module makes of it."""
    after = _FACTOR.replace("subtract(xq, y)", "subtract(x, y)")
    found = hloexec.diff(hloexec.parse(_FACTOR), hloexec.parse(after), seed=5)
    assert (found.verdict, found.findings) == ("rounding only", ())


def test_what_is_far_beyond_its_own_bound_is_to_blame_all_the_same() -> None:
    """A factor of 1.001 that a much larger term hides from the results, in which it is less than rounding may be."""
    text = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  k = f32[] constant(1.5)
  ks = f32[64] broadcast(k), dimensions={}
  d = f32[64] multiply(x, ks)
  t = f32[64] tanh(d)
  h = f32[] constant(3e4)
  hs = f32[64] broadcast(h), dimensions={}
  big = f32[64] multiply(y, hs)
  more = f32[64] add(big, hs)
  ROOT out = f32[64] add(t, more)
}"""
    found = hloexec.diff(hloexec.parse(text), hloexec.parse(text.replace("constant(1.5)", "constant(1.5005)")))
    assert found.outputs.agrees
    assert found.verdict == "differ"
    assert found.findings[0].is_certain
