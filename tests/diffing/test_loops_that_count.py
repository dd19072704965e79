"""Loops that run beside another loop, or never, and what counts their iterations."""

import numpy as np

import hloexec
from tests.diffing.texts import diff_texts

_BESIDE = """HloModule m

down {
  state = (s32[], u32[3], u32[8,3], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = u32[3] get-tuple-element(state), index=1
  all = u32[8,3] get-tuple-element(state), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  three = u32[] constant(2654435761)
  threes = u32[3] broadcast(three), dimensions={}
  y = u32[3] multiply(x, threes)
  row = u32[1,3] reshape(y)
  rows = u32[8,3] dynamic-update-slice(all, row, i, zero)
  w = f32[5] get-tuple-element(state), index=3
  ROOT t = (s32[], u32[3], u32[8,3], f32[5]) tuple(j, y, rows, w)
}

fewer {
  state = (s32[], u32[3], u32[8,3], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(8)
  ROOT below = pred[] compare(OPERANDS), direction=LT
}

up {
  state = (s32[], s32[3], s32[3], s32[8,3], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = s32[3] get-tuple-element(state), index=1
  y = s32[3] get-tuple-element(state), index=2
  all = s32[8,3] get-tuple-element(state), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  z = s32[3] add(x, y)
  row = s32[1,3] reshape(z)
  rows = s32[8,3] dynamic-update-slice(all, row, i, zero)
  w = f32[5] get-tuple-element(state), index=4
  ROOT t = (s32[], s32[3], s32[3], s32[8,3], f32[5]) tuple(j, y, z, rows, w)
}

less {
  state = (s32[], s32[3], s32[3], s32[8,3], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(8)
  ROOT below = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = u32[3] parameter(0)
  y = s32[3] parameter(1)
  w = f32[5] parameter(2)
  zero = s32[] constant(0)
  none = u32[] constant(0)
  nothing = u32[8,3] broadcast(none), dimensions={}
  naught = s32[8,3] broadcast(zero), dimensions={}
  first = (s32[], u32[3], u32[8,3], f32[5]) tuple(zero, x, nothing, w)
  one = (s32[], u32[3], u32[8,3], f32[5]) while(first), condition=fewer, body=down
  second = (s32[], s32[3], s32[3], s32[8,3], f32[5]) tuple(zero, y, y, naught, w)
  other = (s32[], s32[3], s32[3], s32[8,3], f32[5]) while(second), condition=less, body=up
  a = u32[8,3] get-tuple-element(one), index=2
  b = s32[8,3] get-tuple-element(other), index=3
  ROOT r = (u32[8,3], s32[8,3]) tuple(a, b)
}
"""


_FIVE = np.array([0.3, 1.5, -2.25, 0.75, 4.5], np.float32)


def test_the_condition_of_a_loop_that_never_ran_is_to_blame_beside_another_loop() -> None:
    before, after = (_BESIDE.replace("OPERANDS", names) for names in ("i, n", "n, i"))
    inputs = [np.array([3, 70000, 123456], np.uint32), np.array([1, 2, 5], np.int32), _FIVE]
    found = diff_texts(before, after, inputs).findings[0]
    assert (found.after.instruction, found.after.computation, found.is_certain) == ("below", "fewer", True)


_PLACES = """HloModule m

body {
  state = (s32[], s32[], f32[6], f32[9]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  given = s32[] get-tuple-element(state), index=1
  x = f32[6] get-tuple-element(state), index=2
  table = f32[9] get-tuple-element(state), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  PLACE
  entry = f32[1] dynamic-slice(table, place), dynamic_slice_sizes={1}
  number = f32[] reshape(entry)
  numbers = f32[6] broadcast(number), dimensions={}
  y = f32[6] multiply(x, numbers)
  z = f32[6] sine(y)
  ROOT t = (s32[], s32[], f32[6], f32[9]) tuple(j, HANDED, z, table)
}

condition {
  state = (s32[], s32[], f32[6], f32[9]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(5)
  ROOT below = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[6] parameter(0)
  table = f32[9] parameter(1)
  first = s32[] parameter(2)
  zero = s32[] constant(0)
  start = (s32[], s32[], f32[6], f32[9]) tuple(zero, first, x, table)
  loop = (s32[], s32[], f32[6], f32[9]) while(start), condition=condition, body=body
  ROOT r = f32[6] get-tuple-element(loop), index=2
}
"""
_CARRIED_PLACE = (("PLACE", "place = s32[] copy(given)\n  next = s32[] add(given, one)"), ("HANDED", "next"))
_COUNTED_PLACE = (("PLACE", "place = s32[] add(given, i)"), ("HANDED", "given"))


def test_a_place_that_is_counted_instead_of_carried_is_not_to_blame() -> None:
    before, after = _PLACES, _PLACES
    for old, new in _CARRIED_PLACE:
        before = before.replace(old, new)
    for old, new in _COUNTED_PLACE:
        after = after.replace(old, new)
    inputs = [np.linspace(-1, 1.5, 6, dtype=np.float32), np.linspace(0.4, 1.9, 9, dtype=np.float32), np.int32(3)]
    assert diff_texts(before, after, inputs).verdict != "differ"
    wrong = after.replace("multiply(x, numbers)", "add(x, numbers)")
    found = diff_texts(before, wrong, inputs).findings[0]
    assert (found.after.instruction, found.is_certain) == ("y", True)


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
