"""Modules whose texts differ in one place: what is to blame follows from that, whatever the values are."""

import re
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.findings import Finding, InstructionRun
from hloexec.tools.diffing.texts import notes_on_texts, text_changes
from tests.diffing.texts import diff_texts

SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n"
NORM = f"""HloModule norm

{SUM}
ENTRY main {{
  x = f32[4,8] parameter(0)
  y = f32[4,8] parameter(1)
  zero = f32[] constant(0)
  squares = f32[4,8] multiply(x, x)
  total = f32[4] reduce(squares, zero), dimensions={{1}}, to_apply=sum
  small = f32[] constant(1e-05)
  smalls = f32[4] broadcast(small), dimensions={{}}
  shifted = f32[4] add(total, smalls)
  root = f32[4] rsqrt(shifted)
  roots = f32[4,8] broadcast(root), dimensions={{0}}
  scaled = f32[4,8] multiply(x, roots)
  ROOT out = f32[4,8] add(scaled, y)
}}
"""
LOOP = """HloModule steps

body {
  state = (s32[], f32[5], f32[5], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[5] get-tuple-element(state), index=1
  k2 = f32[5] get-tuple-element(state), index=2
  k3 = f32[5] get-tuple-element(state), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  wave = f32[5] sine(x)
  part = f32[5] multiply(wave, k3)
  moved = f32[5] add(x, part)
  ROOT end = (s32[], f32[5], f32[5], f32[5]) tuple(next, moved, k2, k3)
}

condition {
  state = (s32[], f32[5], f32[5], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  most = s32[] constant(3)
  ROOT more = pred[] compare(i, most), direction=LT
}

ENTRY main {
  x = f32[5] parameter(0)
  k2 = f32[5] parameter(1)
  k3 = f32[5] parameter(2)
  zero = s32[] constant(0)
  start = (s32[], f32[5], f32[5], f32[5]) tuple(zero, x, k2, k3)
  loop = (s32[], f32[5], f32[5], f32[5]) while(start), condition=condition, body=body
  ROOT out = f32[5] get-tuple-element(loop), index=1
}
"""


def _tiny(*shape: int) -> np.ndarray:
    """Numbers whose squares are about as large as 1e-5."""
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32) / 1000


def _found(text: str, old: str, new: str, inputs: Any = None) -> hloexec.Diff:
    changed = text.replace(old, new)
    assert changed != text
    return diff_texts(text, changed, inputs)


@pytest.mark.parametrize(
    ("text", "old", "new", "blamed", "reason"),
    [
        (NORM, "1e-05", "1e-06", "shifted", "it uses 1e-06, where the module before uses 1e-05"),
        (NORM, "rsqrt(shifted)", "rsqrt(total)", "root", "it uses %total, where the module before uses %shifted"),
        (NORM, "add(scaled, y)", "subtract(scaled, y)", "out", ""),
        (NORM, "multiply(x, roots)", "multiply(y, roots)", "scaled", "it uses %y, where the module before uses %x"),
        (NORM, "ROOT s = f32[] add", "ROOT s = f32[] maximum", None, ""),
        (LOOP, "multiply(wave, k3)", "multiply(wave, k2)", "part", "it uses %k2, where the module before uses %k3"),
        (LOOP, "constant(3)", "constant(2)", None, ""),
    ],
    ids=["constant", "left out", "opcode", "operand", "reducer", "in a loop", "trip count"],
)
def test_the_only_place_in_which_the_texts_differ_is_to_blame(
    text: str, old: str, new: str, blamed: str | None, reason: str
) -> None:
    inputs = [*_tiny(2, 4, 8)] if text is NORM else None
    found = _found(text, old, new, inputs)
    (finding,) = found.findings
    assert found.verdict == "differ"
    if blamed is not None:
        assert (finding.after.instruction, finding.is_certain) == (blamed, True)
        assert finding.reason == reason


def test_names_order_and_what_nothing_uses_say_nothing() -> None:
    before = hloexec.parse(NORM)
    renamed = re.sub(r"\b(squares|total|root|scaled)\b", r"other_\1", NORM).replace(
        "reduce(other_squares", "reduce(other_squares"
    )
    unused = renamed.replace("  root", "  unused = f32[4,8] negate(y)\n  root")
    assert text_changes(before, hloexec.parse(unused)) == []
    assert text_changes(before, before) == []


def test_a_constant_that_differs_is_a_note_where_rounding_explains_the_results() -> None:
    found = _found(NORM, "1e-05", "1.0000001e-05")
    assert found.verdict != "differ" and not found.findings
    (note,) = [note for note in found.notes if "constant" in note]
    assert note.startswith("the texts differ in a constant: %shifted: it uses 1.0000001e-05, where")


def test_what_differs_in_many_places_or_in_its_parameters_is_left_to_the_values() -> None:
    before = hloexec.parse(NORM)
    for old, new in (("f32[4,8]", "f32[6,8]"), ("parameter(1)", "parameter(1), sharding={replicated}")):
        changed = hloexec.parse(
            NORM.replace(old, new).replace("f32[4]", "f32[6]") if "6" in new else NORM.replace(old, new)
        )
        assert text_changes(before, changed) == []
    other_opcode = NORM.replace("multiply(x, x)", "power(x, two)").replace(
        "  squares", "  two = f32[4,8] negate(x)\n  squares"
    )
    assert text_changes(before, hloexec.parse(other_opcode)) == []
    both = NORM.replace("add(total", "subtract(total").replace("rsqrt", "sqrt")
    assert text_changes(before, hloexec.parse(both)) == []


def test_a_change_that_does_not_run_is_not_to_blame() -> None:
    text = """HloModule m
left {
  a = f32[2] parameter(0)
  ROOT l = f32[2] negate(a)
}
right {
  a = f32[2] parameter(0)
  ROOT r = f32[2] sine(a)
}
ENTRY main {
  i = s32[] constant(0)
  x = f32[2] parameter(0)
  ROOT c = f32[2] conditional(i, x, x), branch_computations={left, right}
}
"""
    assert _found(text, "sine(a)", "cosine(a)").verdict == "agree"


def test_constants_that_only_one_module_has_are_notes_where_nothing_is_certain() -> None:
    before, after = hloexec.parse(NORM), hloexec.parse(NORM.replace("1e-05", "1e-06"))
    finding = Finding(InstructionRun("main", "out", "out"), None, None, is_certain=False)
    assert notes_on_texts([], [finding], (after, before)) == [
        "a constant that only the module after has: 1e-06",
        "a constant that only the module before has: 1e-05",
    ]
    assert notes_on_texts([], [attrs.evolve(finding, is_certain=True)], (after, before)) == []
    assert notes_on_texts([], [finding], (before, before)) == []


def test_a_constant_in_the_place_of_another_is_a_note_where_nothing_is_found() -> None:
    before, after = hloexec.parse(NORM), hloexec.parse(NORM.replace("1e-05", "1e-06"))
    assert notes_on_texts([], [], (after, before)) == [
        "the module after has the constant 1e-06, where the module before has 1e-05"
    ]
    assert notes_on_texts([], [], (before, before)) == []
    divided = hloexec.parse(NORM.replace("1e-05", "0.3"))
    for inverse in ("3.3333333", "3.328125"):
        multiplied = hloexec.parse(NORM.replace("1e-05", inverse))
        assert notes_on_texts([], [], (multiplied, divided)) == []


def test_a_module_that_shares_computations_with_the_other_is_another_text() -> None:
    """Computations say what they call by its name: one that both modules have may call different ones."""
    before = hloexec.parse(
        """HloModule shared
halved { a = f32[2] parameter(0)
  h = f32[] constant(0.5)
  hs = f32[2] broadcast(h), dimensions={}
  ROOT p = f32[2] multiply(a, hs) }
caller { b = f32[2] parameter(0)
  ROOT c = f32[2] call(b), to_apply=halved }
ENTRY main { x = f32[2] parameter(0)
  ROOT r = f32[2] call(x), to_apply=caller }
"""
    )
    changed = hloexec.parse(hloexec.format(before).replace("0.5", "0.25")).by_name["halved"]
    computations = tuple(changed if each.name == "halved" else each for each in before)
    (change,) = text_changes(before, attrs.evolve(before, computations=computations))
    assert (change.after, change.is_of_constant) == (("halved", "p"), True)


def test_an_opcode_on_constants_alone_is_not_certain_to_be_wrong() -> None:
    """The value of 2 is 1 by many opcodes: log2, a division by itself. What is wrong is the number."""
    text = """HloModule numbers
filled { c = f32[] constant(1)
  ROOT f = f32[4,8] broadcast(c), dimensions={} }
ENTRY main {
  x = f32[4,8] parameter(0)
  y = f32[4,8] parameter(1)
  ones = f32[4,8] fusion(), kind=kLoop, calls=filled
  size = f32[4,8] abs(ones)
  turned = f32[4,8] negate(size)
  e = f32[4,8] exponential(x)
  s = f32[4,8] subtract(e, y)
  ROOT r = f32[4,8] multiply(turned, s)
}
"""
    plain = """HloModule numbers
ENTRY main {
  x = f32[4,8] parameter(0)
  y = f32[4,8] parameter(1)
  e = f32[4,8] exponential(x)
  s = f32[4,8] subtract(e, y)
  ROOT r = f32[4,8] negate(s)
}
"""
    found = hloexec.diff(hloexec.parse(plain), hloexec.parse(text.replace("constant(1)", "constant(2)")))
    assert found.verdict == "differ"
    first = found.findings[0]
    assert not (first.is_certain and first.after.instruction in ("size", "turned")), first


def test_another_sharding_is_another_text() -> None:
    """Boundaries of manual regions cut arrays as shardings say."""
    text = """HloModule cut
ENTRY main {
  x = f32[8] parameter(0)
  whole = f32[8] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
  ROOT part = f32[4] custom-call(whole), custom_call_target="SPMDFullToShardShape", sharding={manual}
}
"""
    before, after = hloexec.parse(text), hloexec.parse(text.replace("[2]<=[2]", "[2]1,0"))
    assert not text_changes(before, before)
    assert [change.after for change in text_changes(before, after)] == [("main", "whole")]


@pytest.mark.parametrize("is_bitcast", [False, True])
def test_what_reads_numbers_in_the_order_of_memory_is_to_blame_for_a_layout(is_bitcast: bool) -> None:
    """A copy that puts numbers into another order is left out: its operand holds the same numbers, the bitcast reads
    others."""
    copied = """  c = f32[1,3,5]{2,1,0} copy(t)
  b = f32[1,15]{1,0} bitcast(c)
"""
    text = f"""HloModule m
ENTRY main {{
  p = f32[5,1,3]{{2,1,0}} parameter(0)
  n = f32[5,1,3]{{2,1,0}} negate(p)
  t = f32[1,3,5]{{1,0,2}} transpose(n), dimensions={{1,2,0}}
{copied}  r = f32[1,15]{{0,1}} copy(b)
  ROOT e = f32[1,15]{{0,1}} exponential(r)
}}
"""
    after = text.replace(copied, "  b = f32[1,15]{1,0} bitcast(t)\n")
    if is_bitcast:
        after = after.replace("transpose(n), dimensions={1,2,0}", "bitcast(n)")
    found = diff_texts(text, after)
    finding = found.findings[0]
    assert (finding.after.instruction, finding.is_certain) == ("b", True)
    order = "its operand %t lies in another order in memory than %c of the module before"
    assert finding.reason == (order if is_bitcast else "it uses %t, where the module before uses %c")


def test_instructions_may_stand_before_their_operands() -> None:
    lines = ["  x = f32[4] parameter(0)", "  y = f32[4] sine(x)", "  ROOT r = f32[4] multiply(y, x)"]
    before, after = (
        hloexec.parse("HloModule m\nENTRY main {\n" + "\n".join(order) + "\n}\n") for order in (lines, lines[::-1])
    )
    assert hloexec.diff(before, after).verdict == "agree"
    assert not text_changes(before, after)
