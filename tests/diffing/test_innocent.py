"""Instructions that look as if they were to blame and are not, and answers that must leave a choice."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.localization.blaming import Blame, Blamed
from tests.diffing.texts import diff_texts

_AGES = np.arange(12, dtype=np.int32).reshape(3, 4) % 5
_ALIVE = (np.arange(12).reshape(3, 4) % 3 > 0).astype(np.int32)


def _first(before: str, after: str, *inputs: Any) -> hloexec.Finding:
    found = diff_texts(before, after, list(inputs))
    assert found.verdict == "differ"
    return found.findings[0]


_PRODUCT = """HloModule m
ENTRY main {
  alive = s32[3,4] parameter(0)
  ages = s32[3,4] parameter(1)
  once = s32[3,4] multiply(alive, ages)
  again = s32[3,4] multiply(once, ages)
  one = s32[] constant(1)
  ones = s32[3,4] broadcast(one), dimensions={}
  ROOT r = s32[3,4] add(RESULT, ones)
}
"""


def test_of_a_factor_that_is_multiplied_by_twice_the_second_product_is_to_blame() -> None:
    before, after = (_PRODUCT.replace("RESULT", name) for name in ("once", "again"))
    found = _first(before, after, _ALIVE, _AGES)
    assert (found.after.instruction, found.is_certain) == ("again", True)


_AGEING = """HloModule m
ENTRY main {
  alive = s32[3,4] parameter(0)
  ages = s32[3,4] parameter(1)
  zero = s32[] constant(0)
  zeros = s32[3,4] broadcast(zero), dimensions={}
  one = s32[] constant(1)
  ones = s32[3,4] broadcast(one), dimensions={}
  is_alive = pred[3,4] compare(alive, zeros), direction=GT
  older = s32[3,4] add(ages, ones)
  kept = STEP
  ROOT r = s32[3,4] subtract(kept, ones)
}
"""


def test_what_a_left_out_select_would_have_chosen_is_right() -> None:
    before = _AGEING.replace("STEP", "s32[3,4] select(is_alive, older, zeros)")
    after = _AGEING.replace("STEP", "s32[3,4] copy(older)")
    assert _first(before, after, _ALIVE, _AGES).after.instruction == "kept"


_SWITCH = """HloModule m
sine { x = f32[6] parameter(0)
  ROOT s = f32[6] sine(x) }
cosine { y = f32[6] parameter(0)
  ROOT c = f32[6] cosine(y) }
tanh { z = f32[6] parameter(0)
  ROOT t = f32[6] tanh(z) }
body {
  state = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[6] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  three = s32[] constant(3)
  place = s32[] remainder(INDEX, three)
  w = f32[6] conditional(place, v, v, v), branch_computations={sine, cosine, tanh}
  ROOT t = (s32[], f32[6]) tuple(next, w)
}
condition {
  state = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(4)
  ROOT go = pred[] compare(i, most), direction=LT
}
ENTRY main {
  x = f32[6] parameter(0)
  zero = s32[] constant(0)
  state = (s32[], f32[6]) tuple(zero, x)
  end = (s32[], f32[6]) while(state), condition=condition, body=body
  ROOT v = f32[6] get-tuple-element(end), index=1
}
"""


def test_a_conditional_is_not_to_blame_where_its_index_is_another_one() -> None:
    before, after = (_SWITCH.replace("INDEX", name) for name in ("i", "next"))
    found = _first(before, after, np.linspace(0.1, 2, 6, dtype=np.float32))
    assert found.after.instruction == "place"


_STEPS = """HloModule m
ENTRY main {
  v = f32[4,6] parameter(0)
  n = f32[4,6] parameter(1)
  d = f32[4,6] parameter(2)
  r = f32[4,6] parameter(3)
  once = f32[4,6] multiply(v, n)
  STEPS
  other = f32[4,6] divide(n, r)
  seen = f32[4,6] sine(other)
  shown = f32[4,6] tanh(last)
  ROOT all = (f32[4,6], f32[4,6]) tuple(shown, seen)
}
"""


def test_among_steps_without_counterparts_what_before_computes_as_well_is_not_to_blame() -> None:
    """v·n·1/d·v for v·n/d/r is right with n/r for v·n, but v·n is what it should be."""
    before = _STEPS.replace("STEPS", "part = f32[4,6] divide(once, d)\n  last = f32[4,6] divide(part, r)")
    after = _STEPS.replace(
        "STEPS",
        "one = f32[] constant(1)\n  ones = f32[4,6] broadcast(one), dimensions={}\n  inverse = f32[4,6] divide(ones, d)\n"
        "  part = f32[4,6] multiply(once, inverse)\n  last = f32[4,6] multiply(part, v)",
    )
    random = np.random.default_rng(0)
    inputs = [random.uniform(0.5, 2, (4, 6)).astype(np.float32) for _ in range(4)]
    found = _first(before, after, *inputs)
    assert "last" in {found.after.instruction, *(run.instruction for run in found.region)}


_SCALED = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  total = f32[] parameter(1)
  root = f32[] sqrt(total)
  roots = f32[4] broadcast(root), dimensions={}
  ROOT r = f32[4] STEP(x, roots)
}
"""


def test_where_another_opcode_of_either_of_two_steps_is_right_both_are_named() -> None:
    """x · √t for x / √t is x · 1/√t just as well."""
    before, after = (_SCALED.replace("STEP", opcode) for opcode in ("divide", "multiply"))
    found = _first(before, after, np.array([1.5, 2.5, -3.25, 7], np.float32), np.float32(3))
    assert [run.instruction for run in found.region] == ["root", "r"]
    assert not found.is_certain


_FILTER = """HloModule m
body {
  state = (s32[], f32[4], f32[4], f32[6,4], f32[6,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  near = f32[4] get-tuple-element(state), index=1
  far = f32[4] get-tuple-element(state), index=2
  signal = f32[6,4] get-tuple-element(state), index=3
  out = f32[6,4] get-tuple-element(state), index=4
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  row = f32[1,4] dynamic-slice(signal, i, zero), dynamic_slice_sizes={1,4}
  x = f32[4] reshape(row)
  half = f32[] constant(0.5)
  halves = f32[4] broadcast(half), dimensions={}
  scaled = f32[4] multiply(x, halves)
  y = f32[4] add(scaled, near)
  back = f32[4] multiply(y, halves)
  less = f32[4] subtract(x, back)
  nearer = f32[4] add(less, far)
  fifth = f32[] constant(0.2)
  fifths = f32[4] broadcast(fifth), dimensions={}
  bent = f32[4] multiply(y, fifths)
  more = f32[4] multiply(x, fifths)
  farther = f32[4] subtract(more, bent)
  shown = f32[1,4] reshape(y)
  written = f32[6,4] dynamic-update-slice(out, shown, i, zero)
  ROOT t = (s32[], f32[4], f32[4], f32[6,4], f32[6,4]) tuple(next, HANDED, signal, written)
}
condition {
  state = (s32[], f32[4], f32[4], f32[6,4], f32[6,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(6)
  ROOT go = pred[] compare(i, most), direction=LT
}
ENTRY main {
  signal = f32[6,4] parameter(0)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  start = f32[4] broadcast(nothing), dimensions={}
  out = f32[6,4] broadcast(nothing), dimensions={}
  state = (s32[], f32[4], f32[4], f32[6,4], f32[6,4]) tuple(zero, start, start, signal, out)
  end = (s32[], f32[4], f32[4], f32[6,4], f32[6,4]) while(state), condition=condition, body=body
  ROOT r = f32[6,4] get-tuple-element(end), index=4
}
"""


def test_exchanged_values_that_start_alike_are_blamed_on_no_step_with_certainty() -> None:
    before, after = (_FILTER.replace("HANDED", names) for names in ("nearer, farther", "farther, nearer"))
    found = _first(before, after, np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    assert found.after.instruction == "t" or not found.is_certain


_ESCAPE = """HloModule m
body {
  state = (s32[], f32[5], f32[5], f32[5], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[5] get-tuple-element(state), index=1
  y = f32[5] get-tuple-element(state), index=2
  real = f32[5] get-tuple-element(state), index=3
  imaginary = f32[5] get-tuple-element(state), index=4
  one = s32[] constant(1)
  next = s32[] add(i, one)
  xx = f32[5] multiply(x, x)
  yy = f32[5] multiply(y, y)
  xy = f32[5] multiply(x, y)
  less = f32[5] subtract(xx, yy)
  twice = f32[5] add(xy, xy)
  a = f32[5] add(less, real)
  b = f32[5] add(twice, imaginary)
  ROOT t = (s32[], f32[5], f32[5], f32[5], f32[5]) tuple(next, HANDED, real, imaginary)
}
condition {
  state = (s32[], f32[5], f32[5], f32[5], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(4)
  ROOT go = pred[] compare(i, most), direction=LT
}
ENTRY main {
  real = f32[5] parameter(0)
  imaginary = f32[5] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  start = f32[5] broadcast(nothing), dimensions={}
  state = (s32[], f32[5], f32[5], f32[5], f32[5]) tuple(zero, start, start, real, imaginary)
  end = (s32[], f32[5], f32[5], f32[5], f32[5]) while(state), condition=condition, body=body
  x = f32[5] get-tuple-element(end), index=1
  y = f32[5] get-tuple-element(end), index=2
  xx = f32[5] multiply(x, x)
  yy = f32[5] multiply(y, y)
  ROOT r = f32[5] add(xx, yy)
}
"""


def test_operands_in_the_other_order_may_be_values_that_a_loop_exchanges() -> None:
    """(y + ix) for (x + iy) in each step: no result tells whether the loop or the difference has them exchanged."""
    before, after = (_ESCAPE.replace("HANDED", names) for names in ("a, b", "b, a"))
    given = np.random.default_rng(1).uniform(-0.8, 0.5, (2, 5)).astype(np.float32)
    assert not _first(before, after, *given).is_certain


_SUM = """HloModule m
{reducer}
ENTRY main {{
  x = bf16[20,3] parameter(0)
  zero = {type}[] constant(0)
  {given}
  total = {type}[3] reduce(terms, zero), dimensions={{0}}, to_apply=sum
  ROOT r = bf16[3] {result}
}}
"""
_PLAIN = _SUM.format(
    reducer="sum { a = bf16[] parameter(0)\n b = bf16[] parameter(1)\n ROOT s = bf16[] add(a, b) }",
    type="bf16",
    given="terms = bf16[20,3] copy(x)",
    result="copy(total)",
)
_IN_STEPS = _SUM.format(
    reducer="""sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = f32[] add(a, b)
  n = bf16[] convert(s)
  ROOT w = f32[] convert(n) }""",
    type="f32",
    given="terms = f32[20,3] convert(x)",
    result="convert(total)",
)


def test_partial_sums_of_few_bits_may_lose_the_same_each_time() -> None:
    """Behind a large term, terms of less than half a unit are lost, all of them: XLA:CPU rounds each partial sum."""
    x = np.full((20, 3), 0.2)
    x[3] = 66.5
    x[:, 1] *= 0.5
    found = diff_texts(_PLAIN, _IN_STEPS, [x.astype(ml_dtypes.bfloat16)])
    assert found.verdict == "rounding only"


_SCANNER = """HloModule m
keep { p = (s32[], s32[12]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  o = s32[12] get-tuple-element(p), index=1
  seven = s32[] constant(7)
  more = s32[] add(n, seven)
  ROOT r = (s32[], s32[12]) tuple(more, o) }
write { p = (s32[], s32[12]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  o = s32[12] get-tuple-element(p), index=1
  one = s32[1] reshape(n)
  three = s32[] constant(3)
  place = s32[] remainder(n, three)
  w = s32[12] dynamic-update-slice(o, one, place)
  ROOT r = (s32[], s32[12]) tuple(n, w) }
body {
  state = (s32[], s32[], s32[12]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=1
  o = s32[12] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  two = s32[] constant(2)
  half = s32[] remainder(i, two)
  LIMIT
  is_odd = pred[] compare(half, limit), direction=GE
  given = (s32[], s32[12]) tuple(n, o)
  chosen = (s32[], s32[12]) conditional(is_odd, given, given), true_computation=write, false_computation=keep
  m = s32[] get-tuple-element(chosen), index=0
  w = s32[12] get-tuple-element(chosen), index=1
  ROOT t = (s32[], s32[], s32[12]) tuple(next, m, w)
}
condition {
  state = (s32[], s32[], s32[12]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(6)
  ROOT go = pred[] compare(i, most), direction=LT
}
ENTRY main {
  n = s32[] parameter(0)
  zero = s32[] constant(0)
  o = s32[12] broadcast(zero), dimensions={}
  state = (s32[], s32[], s32[12]) tuple(zero, n, o)
  ROOT end = (s32[], s32[], s32[12]) while(state), condition=condition, body=body
}
"""


def test_what_hands_on_a_value_is_right_where_a_conditional_gives_it() -> None:
    before, after = (_SCANNER.replace("LIMIT", f"limit = s32[] constant({number})") for number in (1, 2))
    found = _first(before, after, np.int32(5))
    assert found.after.instruction in ("limit", "is_odd")


_LOST = """HloModule m
ENTRY main {
  x = f32[6] parameter(0)
  y = f32[6] parameter(1)
  square = f32[6] multiply(x, x)
  zero = f32[] constant(0)
  zeros = f32[6] broadcast(zero), dimensions={}
  ROOT r = f32[6] subtract(y, TAKEN)
}
"""


def test_what_takes_a_constant_for_a_computed_value_may_be_right() -> None:
    """What should have been computed may have been lost before: in a loop that never went round, for example."""
    before, after = (_LOST.replace("TAKEN", name) for name in ("square", "zeros"))
    x, y = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    found = _first(before, after, x, y)
    assert (found.after.instruction, found.is_certain) == ("r", False)


_SUM = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY main {
  x = f32[4,300] parameter(0)
  zero = f32[] constant(0)
  half = f32[4,150] slice(x), slice={[0:4], [0:150]}
  other = f32[4,150] slice(x), slice={[0:4], [150:300]}
  RESULT
}
"""
_WHOLE = "ROOT r = f32[4] reduce(x, zero), dimensions={1}, to_apply=add"
_HALVES = """first = f32[4] reduce(half, zero), dimensions={1}, to_apply=add
  second = f32[4] reduce(other, zero), dimensions={1}, to_apply=add
  ROOT r = f32[4] add(first, second)"""


@pytest.mark.parametrize("is_certain", [True, False])
@pytest.mark.parametrize(("is_proven", "verdict"), [(True, "differ"), (False, "rounding only")])
def test_only_a_proof_outweighs_results_within_rounding(
    monkeypatch: pytest.MonkeyPatch, is_proven: bool, verdict: str, is_certain: bool
) -> None:
    def find(self: Any, state: Any, top: int) -> list[Blamed]:
        node = self._replay.graph.nodes[-1]
        raw = state.raw[node.number]
        return [Blamed(node, None, None, raw, None, frozenset(), is_certain=is_certain, is_proven=is_proven)]

    monkeypatch.setattr(Blame, "find", find)
    before, after = (hloexec.parse(_SUM.replace("RESULT", each)) for each in (_WHOLE, _HALVES))
    x = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    assert hloexec.diff(before, after, [x]).verdict == verdict


_PLACED = """HloModule m
ENTRY main {
  x = f32[5] parameter(0)
  y = f32[9] parameter(1)
  rates = f32[5] multiply(x, x)
  zero = f32[] constant(0)
  zeros = f32[9] broadcast(zero), dimensions={}
  one = s32[] constant(1)
  STEPS
  cut = f32[8] slice(placed), slice={[0:8]}
  part = f32[8] slice(y), slice={[0:8]}
  ROOT r = f32[8] add(cut, part)
}
"""


def test_what_moves_elements_that_lie_in_other_places_already_is_not_to_blame() -> None:
    """The slice is right on what it should be given; to blame is what computes where the elements begin."""
    before = _PLACED.replace("STEPS", "placed = f32[9] pad(rates, zero), padding=1_3")
    steps = """two = s32[] add(one, one)
  four = s32[] multiply(two, two)
  three = s32[] subtract(four, one)
  six = s32[] multiply(two, three)
  five = s32[] subtract(six, one)
  place = s32[] subtract(five, three)
  placed = f32[9] dynamic-update-slice(zeros, rates, place)"""
    random = np.random.default_rng(0)
    x, y = random.normal(size=5).astype(np.float32), random.normal(size=9).astype(np.float32)
    found = _first(before, _PLACED.replace("STEPS", steps), x, y)
    assert found.after.instruction != "cut"


_CHAOS = """HloModule m
go {
  p = (s32[], f32[8], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  rate = f32[] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  rates = f32[8] broadcast(rate), dimensions={}
  STEP
  ROOT r = (s32[], f32[8], f32[]) tuple(next, y, rate)
}
on {
  p = (s32[], f32[8], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(25)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  rate = f32[] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[8], f32[]) tuple(zero, x, rate)
  w = (s32[], f32[8], f32[]) while(t), condition=on, body=go
  y = f32[8] get-tuple-element(w), index=1
  END
}
"""


_PERMUTED = "channel_id=1, source_target_pairs={{0,1},{1,0}}"


@pytest.mark.parametrize(
    "whole, started, end",
    [
        ("copy(y)", "(f32[8], f32[8], u32[]) copy-start(y)", "copy-done(started)"),
        (
            f"collective-permute(y), {_PERMUTED}",
            f"(f32[8], f32[8]) collective-permute-start(y), {_PERMUTED}",
            "collective-permute-done(started)",
        ),
    ],
    ids=["copy", "collective"],
)
def test_what_only_hands_a_value_on_is_not_to_blame_for_roundings_behind_it(whole: str, started: str, end: str) -> None:
    """In a loop that amplifies them, and that computes rx(1 - x) in another order."""
    before = _CHAOS.replace("END", f"ROOT r = f32[8] {whole}").replace(
        "STEP",
        "square = f32[8] multiply(x, x)\n  rest = f32[8] subtract(x, square)\n  y = f32[8] multiply(rates, rest)",
    )
    after = _CHAOS.replace("END", f"started = {started}\n  ROOT r = f32[8] {end}").replace(
        "STEP",
        "first = f32[8] multiply(rates, x)\n  second = f32[8] multiply(first, x)\n  y = f32[8] subtract(first, second)",
    )
    inputs = [np.linspace(0.1, 0.8, 8, dtype=np.float32), np.float32(3.7)]
    given: Any = [inputs, [inputs[0] + np.float32(0.01), inputs[1]]] if "collective" in whole else inputs
    found = diff_texts(before, after, given)
    assert found.verdict == "rounding only"


_SORTED = """HloModule m
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[20,8] parameter(0)
  s = f32[20,8] sort(x), dimensions={1}, to_apply=less
  ROOT r = f32[20,8] reverse(TAKEN), dimensions={1}
}
"""


def test_an_input_is_not_to_blame_where_it_is_taken_for_what_only_reorders_it() -> None:
    before, after = (_SORTED.replace("TAKEN", name) for name in "sx")
    found = _first(before, after, np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
    assert found.after.instruction == "r"
