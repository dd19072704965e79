"""The search back from results that differ: what it looks through, and where it stops."""

import itertools
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing import limits
from hloexec.tools.diffing.localization import trials
from tests.diffing.texts import diff_texts

_X = np.linspace(-1.5, 2.0, 24, dtype=np.float32).reshape(4, 6)

_SATURATED = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  low = f32[] constant(-1)
  high = f32[] constant(1)
  tops = f32[4,6] broadcast(high), dimensions={}
  kept = f32[4,6] clamp(low, x, high)
  s = f32[4,6] sine(kept)
  other = f32[4,6] multiply(tops, x)
  ROOT r = (f32[4,6], f32[4,6]) tuple(s, other)
}
"""

_SEARCH = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

or {
  a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT s = pred[] or(a, b)
}

body {
  state = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  v = f32[6] get-tuple-element(state), index=1
  half = f32[] constant(0.5)
  halves = f32[6] broadcast(half), dimensions={}
  w = f32[6] multiply(v, halves)
  ROOT t = (s32[], f32[6]) tuple(next, w)
}

condition {
  state = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(40)
  below = pred[] compare(i, most), direction=LT
  v = f32[6] get-tuple-element(state), index=1
  size = f32[6] abs(v)
  limit = f32[] constant(0.01)
  limits = f32[6] broadcast(limit), dimensions={}
  above = pred[6] compare(size, limits), direction=GT
  no = pred[] constant(false)
  any = pred[] reduce(above, no), dimensions={0}, to_apply=or
  ROOT go = pred[] and(below, any)
}

ENTRY main {
  x = f32[6] parameter(0)
  zero = s32[] constant(0)
  state = (s32[], f32[6]) tuple(zero, x)
  end = (s32[], f32[6]) while(state), condition=condition, body=body
  v = f32[6] get-tuple-element(end), index=1
  ROOT r = f32[6] cosine(v)
}
"""


def _named(before: str, right: str, wrong: str, *inputs: Any, **options: Any) -> hloexec.Diff:
    assert right in before
    return hloexec.diff(hloexec.parse(before), hloexec.parse(before.replace(right, wrong, 1)), inputs, **options)


def _first(found: hloexec.Diff) -> str:
    return found.findings[0].after.instruction


def test_a_value_that_equals_another_one_by_accident_does_not_stop_the_search() -> None:
    found = _named(_SATURATED, "kept = f32[4,6] clamp(low, x, high)", "kept = f32[4,6] maximum(tops, tops)", _X)
    assert _first(found) == "kept"


@pytest.mark.slow_cases(
    "ROOT go = pred[] and(below, any)-ROOT go = pred[] or(below, any)-go",
    "half = f32[] constant(0.5)-half = f32[] constant(0.9)-w",
)
@pytest.mark.parametrize(
    ("right", "wrong", "instruction"),
    [
        ("limit = f32[] constant(0.01)", "limit = f32[] constant(0.2)", "above"),
        ("no), dimensions={0}, to_apply=or", "no), dimensions={0}, to_apply=and", "any"),
        ("size = f32[6] abs(v)", "size = f32[6] negate(v)", "size"),
        ("ROOT go = pred[] and(below, any)", "ROOT go = pred[] or(below, any)", "go"),
        ("half = f32[] constant(0.5)", "half = f32[] constant(0.9)", "w"),
    ],
)
def test_what_a_loop_s_condition_is_made_of_is_searched(right: str, wrong: str, instruction: str) -> None:
    text = _SEARCH.replace(
        "add {",
        "and {\n  a = pred[] parameter(0)\n  b = pred[] parameter(1)\n  ROOT s = pred[] and(a, b)\n}\n\nadd {",
        1,
    )
    found = _named(text, right, wrong, np.linspace(0.3, 2, 6, dtype=np.float32))
    assert found.verdict == "differ"
    assert _first(found) == instruction


def test_constants_are_said() -> None:
    found = _named(_SEARCH, "constant(0.01)", "constant(0.2)", np.linspace(0.3, 2, 6, dtype=np.float32))
    assert "0.2" in found.findings[0].reason
    assert "0.01" in found.findings[0].reason


def test_a_rounding_that_is_left_out_is_no_fault_where_results_do_not_show_it() -> None:
    before = """HloModule m

ENTRY main {
  x = f32[64] parameter(0)
  narrow = bf16[64] convert(x)
  wide = f32[64] convert(narrow)
  y = f32[64] multiply(wide, wide)
  ROOT r = bf16[64] convert(y)
}
"""
    after = before.replace("multiply(wide, wide)", "multiply(x, x)")
    x = np.linspace(0.1, 3, 64, dtype=np.float32)
    found = diff_texts(before, after, [x])
    assert (found.verdict, found.findings) == ("rounding only", ())
    assert any("rounds it to bf16, and after does not" in note for note in found.notes)


_NARROW = """HloModule m
ENTRY main {
  x = bf16[16,8] parameter(0)
  w = bf16[8,8] parameter(1)
  product = bf16[16,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT again = bf16[16,8] dot(product, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
_WIDE = """HloModule m
ENTRY main {
  x = bf16[16,8] parameter(0)
  w = bf16[8,8] parameter(1)
  wide_x = f32[16,8] convert(x)
  wide_w = f32[8,8] convert(w)
  product = f32[16,8] dot(wide_x, wide_w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  half = bf16[16,8] convert(product)
  whole = f32[16,8] convert(half)
  again = f32[16,8] dot(VALUE, wide_w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = bf16[16,8] convert(again)
}
"""


def test_a_value_that_is_used_before_it_is_rounded_is_named_where_results_do_not_show_it() -> None:
    random = np.random.default_rng(0)
    x, w = (random.normal(size=sizes).astype(ml_dtypes.bfloat16) for sizes in ((16, 8), (8, 8)))
    found = hloexec.diff(hloexec.parse(_NARROW), hloexec.parse(_WIDE.replace("VALUE", "product")), [x, w])
    assert found.verdict == "rounding only"
    assert found.notes == ("%product: before rounds it to bf16, and after does not; the results do not show it",)
    assert not hloexec.diff(hloexec.parse(_NARROW), hloexec.parse(_WIDE.replace("VALUE", "whole")), [x, w]).notes


def test_the_search_ends_with_its_budget_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 5.0)
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(clock))
    found = _named(_SATURATED, "sine(kept)", "cosine(kept)", _X, budget=1.0)
    assert found.verdict == "differ"
    assert found.notes == ("the search ended after 1 s, its budget; this is the best that it had found",)


def test_the_search_ends_after_so_much_work_and_says_so() -> None:
    found = _named(_SATURATED, "sine(kept)", "cosine(kept)", _X, runs=3)
    assert (found.verdict, [each.is_certain for each in found.findings]) == ("differ", [False])
    end = "the search ended after the work of 3 runs of an instruction; this is the best that it had found"
    assert end in found.notes


def test_no_clock_decides_about_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """But that of a budget that is given."""
    found = _named(_SATURATED, "sine(kept)", "cosine(kept)", _X)
    clock = itertools.count(0.0, 1000.0)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: next(clock))
    late = _named(_SATURATED, "sine(kept)", "cosine(kept)", _X)
    assert found.findings[0].is_certain
    assert (late.verdict, late.notes, late.picture) == (found.verdict, found.notes, found.picture)
    places = [[(each.after, each.is_certain, each.reason) for each in side.findings] for side in (found, late)]
    assert places[0] == places[1]


def test_what_was_not_replayed_is_no_evidence_against_results_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "HloModule m\nENTRY e {\n  x = f32[64] parameter(0)\n  y = f32[64] exponential(x)\n  ROOT r = f32[64] multiply(y, y)\n}\n"
    after = before.replace("y = f32[64] exponential(x)", "d = f32[64] add(x, x)").replace(
        "multiply(y, y)", "exponential(d)"
    )
    clock = itertools.count(0.0, 5.0)
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(clock))
    found = hloexec.diff(
        hloexec.parse(before), hloexec.parse(after), [np.linspace(0.1, 1, 64, dtype=np.float32)], budget=1
    )
    assert found.outputs.leaves[0].unequal
    assert (found.verdict, found.findings) == ("rounding only", ())
    assert "not every instruction was replayed" in found.notes[-1]


def test_ctrl_c_ends_the_search_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "patched", interrupted)
    found = _named(_SATURATED, "sine(kept)", "cosine(kept)", _X)
    assert found.verdict == "differ"
    assert found.notes == ("the search was interrupted; this is the best that it had found",)


@pytest.mark.parametrize("budget", [-1.0, "a minute", float("nan")])
def test_a_budget_is_a_number(budget: object) -> None:
    with pytest.raises(hloexec.InputError, match="budget"):
        _named(_SATURATED, "sine(kept)", "cosine(kept)", _X, budget=budget)


_CUMULATIVE = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,16] parameter(0)
  zero = f32[] constant(0)
  WAY
}
"""
_AT_ONCE = "ROOT r = f32[4,16] reduce-window(x, zero), window={size=1x16 pad=0_0x15_0}, to_apply=add"
_IN_BLOCKS = """blocks = f32[4,4,4] reshape(x)
  inner = f32[4,4,4] reduce-window(blocks, zero), window={size=1x1x4 pad=0_0x0_0x3_0}, to_apply=add
  last = f32[4,4,1] slice(inner), slice={[0:4], [0:4], [3:4]}
  ends = f32[4,4] reshape(last)
  outer = f32[4,5] reduce-window(ends, zero), window={size=1x4 pad=0_0x4_0}, to_apply=add
  starts = f32[4,4] slice(outer), slice={[0:4], [0:4]}
  all = f32[4,4,4] broadcast(starts), dimensions={0,1}
  sums = f32[4,4,4] add(inner, all)
  ROOT r = f32[4,16] reshape(sums)"""


@pytest.mark.slow_cases("add(inner, all)-subtract(inner, all)-sums-add(%inner, %all)")
@pytest.mark.parametrize(
    ("right", "wrong", "name", "remedy"),
    [
        ("[3:4]", "[2:3]", "last", "slice(%inner), slice={[0:4], [0:4], [3:4]}"),
        ("add(inner, all)", "subtract(inner, all)", "sums", "add(%inner, %all)"),
        ("[0:4], [0:4]}\n  all", "[0:4], [1:5]}\n  all", "starts", "slice={[0:4], [0:4]}"),
    ],
)
def test_a_step_without_counterpart_is_named_by_what_makes_the_value_right(
    right: str, wrong: str, name: str, remedy: str
) -> None:
    before = hloexec.parse(_CUMULATIVE.replace("WAY", _AT_ONCE))
    text = _CUMULATIVE.replace("WAY", _IN_BLOCKS)
    assert right in text
    inputs = [np.random.default_rng(0).random((4, 16), dtype=np.float32)]
    assert hloexec.diff(before, hloexec.parse(text), inputs).verdict != "differ"
    found = hloexec.diff(before, hloexec.parse(text.replace(right, wrong)), inputs)
    assert (found.findings[0].after.instruction, found.findings[0].is_certain) == (name, True)
    assert remedy in found.findings[0].reason


_LAYER = """HloModule m
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[4,6] parameter(0)
  w = f32[6,5] parameter(1)
  zero = f32[] constant(0)
"""
_BEFORE = (
    _LAYER
    + """  d = f32[4,5] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,5] tanh(d)
  s = f32[] reduce(t, zero), dimensions={0,1}, to_apply=sum
  g = f32[4,5] sine(t)
  ROOT r = (f32[], f32[4,5]) tuple(s, g)
}
"""
)
_AFTER = (
    _LAYER
    + """  d = f32[5,4] dot(w, x), lhs_contracting_dims={0}, rhs_contracting_dims={1}
  t.1 = f32[5,4] logistic(d), origin=ORIGIN
  u = f32[5,4] add(t.1, d)
  s = f32[] reduce(u, zero), dimensions={0,1}, to_apply=sum
  q = f32[5,4] cosine(u)
  g = f32[4,5] transpose(q), dimensions={1,0}
  ROOT r = (f32[], f32[4,5]) tuple(s, g)
}
"""
)


@pytest.mark.parametrize(
    ("origin", "before"),
    [('{{"t"}}', "t"), ('{{"t"},["call"]}', "t"), ('{({"t"}, {"d"})}', None), ('{{"absent"}}', None), ("{{}}", None)],
)
def test_where_values_show_no_counterpart_the_origin_does(origin: str, before: str | None) -> None:
    finding = hloexec.diff(hloexec.parse(_BEFORE), hloexec.parse(_AFTER.replace("ORIGIN", origin))).findings[0]
    assert finding.after.instruction == "t.1"
    assert (finding.before and finding.before.instruction) == before
    assert ("by its origin, it stands for %t of the module before" in finding.reason) == (before is not None)
