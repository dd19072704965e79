"""Decisions that rounding lets go either way, beside decisions that are wrong.

`after` computes x · 49 / 49 where `before` computes x / 49 · 49. Both are x but for rounding, so that what is decided
about them, or about x and them, is not the same, and neither is wrong.
"""

import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing import judging
from tests.diffing.texts import diff_texts

_TEXT = """HloModule m

larger {
  v = f32[] parameter(0)
  i = s32[] parameter(1)
  w = f32[] parameter(2)
  j = s32[] parameter(3)
  above = pred[] compare(v, w), direction=GT
  same = pred[] compare(v, w), direction=EQ
  first = pred[] compare(i, j), direction=LT
  earlier = pred[] and(same, first)
  keeps = pred[] or(above, earlier)
  value = f32[] select(keeps, v, w)
  index = s32[] select(keeps, i, j)
  ROOT both = (f32[], s32[]) tuple(value, index)
}

below {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  r = f32[] parameter(2)
  s = f32[] parameter(3)
  ROOT lt = pred[] compare(p, q), direction=LT
}

larger_one {
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT most = f32[] maximum(c, d)
}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[64] parameter(0)
  w = f32[64] parameter(1)
  forty_nine = f32[] constant(49)
  n = f32[64] broadcast(forty_nine), dimensions={}
  zero = f32[] constant(0)
  none = s32[] constant(0)
  VALUE
  DECISION
}
"""
_BEFORE = "part = f32[64] divide(x, n)\n  y = f32[64] multiply(part, n)"
_AFTER = "part = f32[64] multiply(x, n)\n  y = f32[64] divide(part, n)"

_DECISIONS = {
    "floor": "down = f32[64] floor(y)\n  ROOT r = f32[64] multiply(down, w)",
    "ceil": "up = f32[64] ceil(y)\n  ROOT r = f32[64] multiply(up, w)",
    "round": """half = f32[] constant(0.5)
  halves = f32[64] broadcast(half), dimensions={}
  shifted = f32[64] multiply(y, halves)
  ROOT r = f32[64] round-nearest-even(shifted)""",
    "what is left": """half = f32[] constant(0.5)
  halves = f32[64] broadcast(half), dimensions={}
  shifted = f32[64] multiply(y, halves)
  level = f32[64] round-nearest-even(shifted)
  left = f32[64] subtract(shifted, level)
  size = f32[64] abs(left)
  most = f32[] reduce(size, zero), dimensions={0}, to_apply=larger_one
  whole = s32[64] convert(level)
  ROOT r = (s32[64], f32[]) tuple(whole, most)""",
    "to integers": "ROOT r = s32[64] convert(y)",
    "quantized": """half = f32[] constant(0.5)
  halves = f32[64] broadcast(half), dimensions={}
  scaled = f32[64] multiply(y, halves)
  level = f32[64] round-nearest-afz(scaled)
  low = f32[] constant(-20)
  high = f32[] constant(20)
  kept = f32[64] clamp(low, level, high)
  small = s8[64] convert(kept)
  wide = f32[64] convert(small)
  ROOT r = f32[64] multiply(wide, w)""",
    "compared": """above = pred[64] compare(y, x), direction=GE
  ROOT r = f32[64] select(above, w, n)""",
    "one-hot": """level = s32[64] convert(y)
  count = s32[64,64] iota(), iota_dimension=1
  levels = s32[64,64] broadcast(level), dimensions={0}
  is_it = pred[64,64] compare(count, levels), direction=EQ
  hot = f32[64,64] convert(is_it)
  ROOT r = f32[64] dot(hot, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
    "largest": """a = f32[64,1] reshape(y)
  b = f32[64,1] reshape(x)
  pairs = f32[64,2] concatenate(a, b), dimensions={1}
  places = s32[64,2] iota(), iota_dimension=1
  found = (f32[64], s32[64]) reduce(pairs, places, zero, none), dimensions={1}, to_apply=larger
  place = s32[64] get-tuple-element(found), index=1
  weight = f32[64] convert(place)
  ROOT r = f32[64] add(weight, w)""",
    "sorted": """a = f32[64,1] reshape(y)
  b = f32[64,1] reshape(x)
  pairs = f32[64,2] concatenate(a, b), dimensions={1}
  c = f32[64,1] reshape(w)
  d = f32[64,1] negate(c)
  others = f32[64,2] concatenate(c, d), dimensions={1}
  found = (f32[64,2], f32[64,2]) sort(pairs, others), dimensions={1}, to_apply=below
  ROOT r = f32[64,2] get-tuple-element(found), index=1""",
    "remainder": """three = f32[] constant(3)
  threes = f32[64] broadcast(three), dimensions={}
  left = f32[64] remainder(y, threes)
  ROOT r = f32[64] multiply(left, w)""",
    "sign": "off = f32[64] subtract(y, x)\n  side = f32[64] sign(off)\n  ROOT r = f32[64] multiply(side, w)",
}

_INPUTS = [np.arange(1, 65, dtype=np.float32), np.random.default_rng(0).normal(size=64).astype(np.float32)]


def _found(decision: str, *changes: tuple[str, str]) -> hloexec.Diff:
    before, after = (_TEXT.replace("DECISION", decision).replace("VALUE", value) for value in (_BEFORE, _AFTER))
    for old, new in changes:
        assert old in after
        after = after.replace(old, new)
    return diff_texts(before, after, _INPUTS)


@pytest.mark.parametrize("decision", _DECISIONS.values(), ids=_DECISIONS)
def test_what_rounding_lets_go_either_way_is_rounding(decision: str) -> None:
    found = _found(decision)
    assert any(leaf.unequal for leaf in found.outputs.leaves)
    assert (found.verdict, found.findings) == ("rounding only", ())
    assert found.outputs.agrees
    # If the runs with random rounding show the other way, no more has to be said.
    assert all("go either way" in note for note in found.notes) and len(found.notes) <= 1


_FAULTS = [
    ("floor", ("floor(y)", "ceil(y)"), "down"),
    ("round", ("round-nearest-even(shifted)", "round-nearest-afz(shifted)"), "r"),
    ("round", ("round-nearest-even(shifted)", "floor(shifted)"), "r"),
    ("to integers", ("convert(y)", "convert(w)"), "r"),
    ("quantized", ("constant(20)", "constant(19)"), "kept"),
    ("quantized", ("multiply(wide, w)", "add(wide, w)"), "r"),
    ("compared", ("direction=GE", "direction=LE"), "above"),
    ("one-hot", ("lhs_contracting_dims={1}", "lhs_contracting_dims={0}"), "r"),
    ("largest", ("direction=GT", "direction=LT"), "found"),
    ("remainder", ("remainder(y, threes)", "remainder(y, n)"), "left"),
    ("sign", ("subtract(y, x)", "subtract(y, w)"), "off"),
]


@pytest.mark.parametrize(("name", "change", "blamed"), _FAULTS)
def test_a_fault_beside_such_decisions_is_told_from_them(name: str, change: tuple[str, str], blamed: str) -> None:
    found = _found(_DECISIONS[name], change)
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == blamed


def test_a_value_that_is_further_off_than_rounding_decides_nothing_by_rounding() -> None:
    """A ten thousandth of y is enough for other decisions, and more than rounding."""
    more = "more = f32[] constant(1.0001)\n  s = f32[64] broadcast(more), dimensions={}\n  z = f32[64] divide(part, n)"
    found = _found(_DECISIONS["floor"], ("y = f32[64] divide(part, n)", f"{more}\n  y = f32[64] multiply(z, s)"))
    assert (found.verdict, found.findings[0].after.instruction) == ("differ", "y")


_LOOP = """HloModule m

body {
  state = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[8] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  seven = f32[] constant(7)
  n = f32[8] broadcast(seven), dimensions={}
  times = f32[] constant(7.7)
  VALUE
  ROOT t = (s32[], f32[8]) tuple(next, w)
}

condition {
  state = (s32[], f32[8]) parameter(0)
  v = f32[8] get-tuple-element(state), index=1
  first = f32[1] slice(v), slice={[0:1]}
  size = f32[] reshape(first)
  limit = f32[] constant(LIMIT)
  ROOT goes_on = pred[] compare(size, limit), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[8]) tuple(zero, x)
  ROOT loop = (s32[], f32[8]) while(start), condition=condition, body=body
}
"""


def test_how_often_a_loop_goes_round_may_be_such_a_decision() -> None:
    """v · 1.1 again and again, until a limit that only one of the sides has reached."""
    given = "m = f32[8] broadcast(times), dimensions={}\n  "
    before = f"{given}p = f32[8] divide(v, n)\n  w = f32[8] multiply(p, m)"
    after = f"{given}p = f32[8] multiply(v, m)\n  w = f32[8] divide(p, n)"
    seven, times = np.float32(7), np.float32(7.7)
    one = other = np.float32(1)
    while one == other:
        one, other = one / seven * times, other * times / seven
    texts = [_LOOP.replace("VALUE", text).replace("LIMIT", f"{max(one, other):.9g}") for text in (before, after)]
    found = hloexec.diff(*map(hloexec.parse, texts), [np.linspace(1, 2, 8, dtype=np.float32)])
    assert found.outputs.leaves[0].unequal == 1
    assert (found.verdict, found.findings) == ("rounding only", ())


def test_ctrl_c_while_it_runs_again_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "ties_of", interrupted)
    found = _found(_DECISIONS["to integers"])
    assert found.verdict == "differ"
    assert found.notes == ("the search was interrupted; this is the best that it had found",)
