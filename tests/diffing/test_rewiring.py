"""Faults in what only hands values on: an element of a tuple, the operands of a fusion, the results of a fusion or a
loop. Each is one change of the text, and is itself to blame, though several instructions take a wrong value."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing import judging
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization import compensations
from tests.diffing.texts import diff_texts

_RANDOM = np.random.default_rng(3)
_SQUARES: list[Any] = [_RANDOM.normal(size=shape).astype(np.float32) for shape in ((6, 6), (6, 6), (6,), (6,))]

_FUSIONS = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

exponentials {
  x = f32[6,6] parameter(0)
  y = f32[6,6] parameter(1)
  xy = f32[6,6] subtract(x, y)
  e = f32[6,6] exponential(xy)
  zero = f32[] constant(0)
  s = f32[6] reduce(e, zero), dimensions={1}, to_apply=add
  ROOT t = (f32[6,6], f32[6]) tuple(e, s)
}

scaled {
  e = f32[6,6] parameter(0)
  s = f32[6] parameter(1)
  g = f32[6] parameter(2)
  h = f32[6] parameter(3)
  sb = f32[6,6] broadcast(s), dimensions={0}
  p = f32[6,6] divide(e, sb)
  gb = f32[6,6] broadcast(g), dimensions={1}
  hb = f32[6,6] broadcast(h), dimensions={1}
  n = f32[6,6] multiply(p, gb)
  o = f32[6,6] add(n, hb)
  ROOT t = (f32[6,6], f32[6,6]) tuple(p, o)
}

ENTRY main {
  x = f32[6,6] parameter(0)
  y = f32[6,6] parameter(1)
  g = f32[6] parameter(2)
  h = f32[6] parameter(3)
  first = (f32[6,6], f32[6]) fusion(x, y), kind=kInput, calls=exponentials
  e = f32[6,6] get-tuple-element(first), index=0
  s = f32[6] get-tuple-element(first), index=1
  second = (f32[6,6], f32[6,6]) fusion(e, s, g, h), kind=kLoop, calls=scaled
  p = f32[6,6] get-tuple-element(second), index=0
  o = f32[6,6] get-tuple-element(second), index=1
  q = f32[6,6] dot(o, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  z = f32[6,6] dot(q, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT r = (f32[6,6], f32[6], f32[6,6]) tuple(z, s, o)
}
"""


def _blamed(text: str, right: str, wrong: str, inputs: list[Any]) -> hloexec.Finding:
    assert text.count(right) == 1
    found = hloexec.diff(hloexec.parse(text), hloexec.parse(text.replace(right, wrong)), inputs)
    assert found.verdict == "differ"
    return found.findings[0]


@pytest.mark.parametrize(
    ("right", "wrong", "blamed", "reason"),
    [
        ("fusion(e, s, g, h)", "fusion(e, s, h, g)", "second", "fusion(%e, %s, %g, %h)"),
        (
            "o = f32[6,6] get-tuple-element(second), index=1",
            "o = f32[6,6] get-tuple-element(second), index=0",
            "o",
            "get-tuple-element(%second), index=1",
        ),
        ("tuple(p, o)", "tuple(o, p)", "t", "tuple(%p, %o)"),
    ],
    ids=["operands", "element", "results"],
)
def test_what_a_fusion_is_handed_or_hands_on_is_to_blame(right: str, wrong: str, blamed: str, reason: str) -> None:
    found = _blamed(_FUSIONS, right, wrong, _SQUARES)
    assert (found.after.instruction, found.is_certain) == (blamed, True)
    assert found.reason == f"the results are right if it is {reason}"


_EXCHANGED = ("fusion(e, s, g, h)", "fusion(e, s, h, g)")


def test_nothing_is_certain_where_other_changes_were_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compensations, "LIMITS", attrs.evolve(LIMITS, rewirings=4))
    found = _blamed(_FUSIONS, *_EXCHANGED, _SQUARES)
    assert (found.after.instruction, found.is_certain) == ("second", False)


def test_nothing_is_certain_where_the_work_was_over_before_all_changes_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def once(*given: Any) -> bool:
        is_right = bool(_comes_right(*given))
        pair, *_ = given
        pair.work.add(1e9 if is_right else 0)
        return is_right

    _comes_right = judging._comes_right
    monkeypatch.setattr(judging, "_comes_right", once)
    found = _blamed(_FUSIONS, *_EXCHANGED, _SQUARES)
    assert (found.after.instruction, found.is_certain) == ("second", False)


def test_ctrl_c_while_changes_are_tried_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "_comes_right", interrupted)
    text = _FUSIONS.replace(*_EXCHANGED)
    found = diff_texts(_FUSIONS, text, _SQUARES)
    assert (found.verdict, found.notes) == (
        "differ",
        ("the search was interrupted; this is the best that it had found",),
    )


_GATED = """HloModule m

gate {
  x = f32[8,6] parameter(0)
  v = f32[6,6] parameter(1)
  w = f32[6,6] parameter(2)
  h = f32[8,6] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k = f32[8,6] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  open = f32[8,6] logistic(k)
  ROOT y = f32[8,6] multiply(h, open)
}

ENTRY main {
  x = f32[8,6] parameter(0)
  v = f32[6,6] parameter(1)
  w = f32[6,6] parameter(2)
  y = f32[8,6] fusion(x, v, w), kind=kOutput, calls=gate
  ROOT r = f32[8,6] tanh(y)
}
"""


def test_a_fusion_is_to_blame_whose_products_are_those_of_each_other() -> None:
    inputs = [_RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 6), (6, 6), (6, 6))]
    found = _blamed(_GATED, "fusion(x, v, w)", "fusion(x, w, v)", inputs)
    assert (found.after.instruction, found.is_certain) == ("y", True)
    assert found.reason == "the results are right if it is fusion(%x, %v, %w)"


_LOOP = """HloModule m

mixed {
  buffer = f32[8,4] parameter(0)
  i = s32[] parameter(1)
  v = f32[4] parameter(2)
  w = f32[4] parameter(3)
  zero = s32[] constant(0)
  row = f32[1,4] dynamic-slice(buffer, i, zero), dynamic_slice_sizes={1,4}
  flat = f32[4] reshape(row)
  product = f32[4] multiply(flat, w)
  new = f32[4] subtract(product, v)
  update = f32[1,4] reshape(new)
  written = f32[8,4] dynamic-update-slice(buffer, update, i, zero)
  ROOT t = (f32[8,4], f32[4]) tuple(written, new)
}

body {
  state = (s32[], f32[8,4], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  buffer = f32[8,4] get-tuple-element(state), index=1
  v = f32[4] get-tuple-element(state), index=2
  w = f32[4] get-tuple-element(state), index=3
  one = s32[] constant(1)
  fused = (f32[8,4], f32[4]) fusion(buffer, i, v, w), kind=kLoop, calls=mixed
  written = f32[8,4] get-tuple-element(fused), index=0
  new = f32[4] get-tuple-element(fused), index=1
  other = f32[4] cosine(w)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[8,4], f32[4], f32[4]) tuple(j, written, new, other)
}

condition {
  state = (s32[], f32[8,4], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(7)
  ROOT below = pred[] compare(i, n), direction=LT
}

ENTRY main {
  buffer = f32[8,4] parameter(0)
  v = f32[4] parameter(1)
  w = f32[4] parameter(2)
  zero = s32[] constant(0)
  start = (s32[], f32[8,4], f32[4], f32[4]) tuple(zero, buffer, v, w)
  loop = (s32[], f32[8,4], f32[4], f32[4]) while(start), condition=condition, body=body
  rows = f32[8,4] get-tuple-element(loop), index=1
  last = f32[4] get-tuple-element(loop), index=2
  ends = f32[4] get-tuple-element(loop), index=3
  ROOT r = (f32[8,4], f32[4], f32[4]) tuple(rows, last, ends)
}
"""
_STATE: list[Any] = [_RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 4), (4,), (4,))]


@pytest.mark.parametrize(
    ("right", "wrong", "blamed", "path"),
    [
        ("fusion(buffer, i, v, w)", "fusion(buffer, i, w, v)", "fused", "loop[0]:body/fused"),
        ("tuple(j, written, new, other)", "tuple(j, written, other, new)", "t", "loop[0]:body/t"),
        (
            "w = f32[4] get-tuple-element(state), index=3",
            "w = f32[4] get-tuple-element(state), index=2",
            "w",
            "loop[0]:body/w",
        ),
    ],
    ids=["operands", "results", "element"],
)
def test_what_the_body_of_a_loop_hands_on_is_to_blame(right: str, wrong: str, blamed: str, path: str) -> None:
    found = _blamed(_LOOP, right, wrong, _STATE)
    assert (found.after.instruction, found.after.path, found.is_certain) == (blamed, path, True)


def test_the_element_that_a_result_takes_from_a_loop_is_where_it_begins() -> None:
    """Whatever it takes, only the result uses it: the tuple of results may be meant as well."""
    right = "last = f32[4] get-tuple-element(loop), index=2"
    found = _blamed(_LOOP, right, right.replace("index=2", "index=3"), _STATE)
    assert (found.after.instruction, found.is_certain) == ("last", False)
    assert found.reason == "the results are right if it is get-tuple-element(%loop), index=2"


_MINIMA = """HloModule m

body {
  state = (s32[], f32[6], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  now = f32[6] get-tuple-element(state), index=1
  least = f32[6] get-tuple-element(state), index=LEAST
  one = s32[] constant(1)
  j = s32[] add(i, one)
  next = f32[6] sine(now)
  shift = f32[] constant(0.3)
  shifts = f32[6] broadcast(shift), dimensions={}
  moved = f32[6] subtract(next, shifts)
  lower = f32[6] minimum(least, moved)
  ROOT t = (s32[], f32[6], f32[6]) tuple(j, HANDED)
}

condition {
  state = (s32[], f32[6], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(6)
  ROOT below = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[6] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[6], f32[6]) tuple(zero, x, x)
  loop = (s32[], f32[6], f32[6]) while(start), condition=condition, body=body
  last = f32[6] get-tuple-element(loop), index=1
  lowest = f32[6] get-tuple-element(loop), index=2
  ROOT r = (f32[6], f32[6]) tuple(last, lowest)
}
"""


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [({"LEAST": "1"}, "least"), ({"HANDED": "lower, moved"}, "t")],
    ids=["what it takes", "what it hands on"],
)
def test_of_two_values_that_a_loop_carries_the_one_that_is_taken_may_be_wrong(changes: dict, blamed: str) -> None:
    """Both start alike, and both are handed on: what hands them on is right where one of its users takes the other."""
    rightly = {"LEAST": "2", "HANDED": "moved, lower"}
    texts = [_MINIMA, _MINIMA]
    for side, words in enumerate((rightly, rightly | changes)):
        for old, new in words.items():
            texts[side] = texts[side].replace(old, new)
    x = np.linspace(-1.5, 2.5, 6, dtype=np.float32)
    found = hloexec.diff(*map(hloexec.parse, texts), [x]).findings[0]
    assert found.after.instruction == blamed


_HALO = """HloModule m, num_partitions=4

ENTRY main {
  x = f32[4,6] parameter(0)
  w = f32[6,6] parameter(1)
  top = f32[1,6] slice(x), slice={[0:1], [0:6]}
  bottom = f32[1,6] slice(x), slice={[3:4], [0:6]}
  above = f32[1,6] collective-permute(bottom), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}
  below = f32[1,6] collective-permute(top), channel_id=2, source_target_pairs={{1,0},{2,1},{3,2}}
  whole = f32[6,6] concatenate(above, x, below), dimensions={0}
  up = f32[4,6] slice(whole), slice={[0:4], [0:6]}
  down = f32[4,6] slice(whole), slice={[2:6], [0:6]}
  both = f32[4,6] add(up, down)
  y = f32[4,6] dot(both, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[4,6], f32[4,6]) tuple(y, both)
}
"""


_ASYNCHRONOUS = _HALO
for _name, _source in (("above", "bottom"), ("below", "top")):
    _ASYNCHRONOUS = _ASYNCHRONOUS.replace(
        f"{_name} = f32[1,6] collective-permute({_source})",
        f"{_name}_start = (f32[1,6], f32[1,6]) collective-permute-start({_source})",
    )
_ASYNCHRONOUS = _ASYNCHRONOUS.replace(
    "  whole =",
    "  above = f32[1,6] collective-permute-done(above_start)\n"
    "  below = f32[1,6] collective-permute-done(below_start)\n"
    "  whole =",
)


@pytest.mark.parametrize(
    ("right", "wrong", "blamed"),
    [
        ("{[3:4], [0:6]}", "{[2:3], [0:6]}", "bottom"),
        ("{[3:4], [0:6]}", "{[0:1], [0:6]}", "bottom"),
        ("top = f32[1,6] slice(x), slice={[0:1]", "top = f32[1,6] slice(x), slice={[3:4]", "top"),
    ],
)
def test_the_slice_that_devices_exchange_is_named(right: str, wrong: str, blamed: str) -> None:
    inputs = [[_RANDOM.normal(size=size).astype(np.float32) for size in ((4, 6), (6, 6))] for _ in range(4)]
    assert _ASYNCHRONOUS.count(right) == 1
    modules = hloexec.parse(_HALO), hloexec.parse(_ASYNCHRONOUS)
    assert hloexec.diff(*modules, inputs).verdict == "agree"
    found = hloexec.diff(modules[0], hloexec.parse(_ASYNCHRONOUS.replace(right, wrong)), inputs).findings[0]
    assert found.after.instruction == blamed
    remedy = f"slice(%x), slice={'{[3:4], [0:6]}' if blamed == 'bottom' else '{[0:1], [0:6]}'}"
    assert found.is_certain or remedy in found.reason
