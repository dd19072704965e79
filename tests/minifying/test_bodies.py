"""`minify` by a command: what loops and conditionals call is left out like anything else, and stays a valid module."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.language.verifier import verify
from hloexec.tools.minifying import Minified

LOOP = """HloModule loops
body {
  state = (s32[], f32[3,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[3,4] get-tuple-element(state), index=1
  w = f32[4] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  s = f32[3,4] sine(x)
  v = f32[4] cosine(w)
  u = f32[4] negate(v)
  ROOT end = (s32[], f32[3,4], f32[4]) tuple(next, s, u)
}
condition {
  given = (s32[], f32[3,4], f32[4]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}
ENTRY main {
  a = f32[3,4] parameter(0)
  b = f32[4] parameter(1)
  zero = s32[] constant(0)
  c = f32[3,4] negate(a)
  start = (s32[], f32[3,4], f32[4]) tuple(zero, c, b)
  loop = (s32[], f32[3,4], f32[4]) while(start), condition=condition, body=body
  r = f32[3,4] get-tuple-element(loop), index=1
  ROOT t = f32[3,4] tanh(r)
}
"""
CONDITIONAL = """HloModule branches
first {
  x = f32[3,4] parameter(0)
  s = f32[3,4] sine(x)
  ROOT e = f32[3,4] exponential(s)
}
second {
  y = (f32[3,4], f32[3,4]) parameter(0)
  p = f32[3,4] get-tuple-element(y), index=0
  q = f32[3,4] get-tuple-element(y), index=1
  ROOT d = f32[3,4] divide(p, q)
}
third {
  z = f32[3,4] parameter(0)
  ROOT c = f32[3,4] cosine(z)
}
ENTRY main {
  a = f32[3,4] parameter(0)
  i = s32[] parameter(1)
  b = f32[3,4] negate(a)
  both = (f32[3,4], f32[3,4]) tuple(a, b)
  chosen = f32[3,4] conditional(i, b, both, a), branch_computations={first, second, third}
  ROOT t = f32[3,4] tanh(chosen)
}
"""
NESTED = """HloModule nested
plus {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  ROOT r = f32[4] add(p, q)
}
inner_body {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  both = f32[4] call(v, v), to_apply=plus
  ROOT end = (s32[], f32[4]) tuple(next, both)
}
inner_condition {
  given = (s32[], f32[4]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  two = s32[] constant(2)
  ROOT goes_on = pred[] compare(number, two), direction=LT
}
odd {
  w = f32[4] parameter(0)
  n = f32[4] negate(w)
  ROOT s = f32[4] sine(n)
}
even {
  w = f32[4] parameter(0)
  ROOT c = f32[4] cosine(w)
}
body {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, v)
  loop = (s32[], f32[4]) while(start), condition=inner_condition, body=inner_body
  last = f32[4] get-tuple-element(loop), index=1
  low = s32[] and(i, one)
  is_odd = pred[] compare(low, one), direction=EQ
  chosen = f32[4] conditional(is_odd, last, last), true_computation=odd, false_computation=even
  ROOT end = (s32[], f32[4]) tuple(next, chosen)
}
condition {
  given = (s32[], f32[4]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, x)
  loop = (s32[], f32[4]) while(start), condition=condition, body=body
  ROOT found = f32[4] get-tuple-element(loop), index=1
}
"""
_GLUE = {"parameter", "constant", "tuple", "get-tuple-element"}


def _minified(
    tmp_path: Path, text: str, condition: str, outcome: str = "pass", action: str = "sys.exit(0)"
) -> Minified:
    """Minified by a command that does something where a condition on the module's text holds."""
    script = tmp_path / "check.py"
    script.write_text(
        f"import os, re, sys, time\nt = open(sys.argv[1]).read()\nif {condition}:\n    {action}\n"
        f"sys.exit({int(outcome == 'pass')})\n"
    )
    command = shlex.join([sys.executable, "-I", "-S", str(script)])
    timeout = 3.0 if outcome == "hang" else 60.0
    module = hloexec.parse(text)
    found = hloexec.minify(module, command=command, outcome=outcome, command_timeout=timeout)
    verify(hloexec.parse(hloexec.format(found.module)))
    # It ends.
    hloexec.run(found.module, *(found.inputs or [[]])[0], max_iterations=100)
    return found


def _computing(found: Minified) -> list[str]:
    return sorted(each.opcode for computation in found.module for each in computation if each.opcode not in _GLUE)


_WHILE, _CONDITIONAL = r"re.search(r' while\(', t)", r"re.search(r' conditional\(', t)"


@pytest.mark.parametrize(
    ("text", "condition", "opcodes"),
    [
        (LOOP, _WHILE, "while"),
        (CONDITIONAL, _CONDITIONAL, "conditional"),
        (NESTED, _WHILE, "while"),
        (NESTED, _CONDITIONAL, "conditional"),
        (NESTED, f"{_WHILE} and {_CONDITIONAL}", "conditional while"),
        (NESTED, r"len(re.findall(r' while\(', t)) == 2", "while while"),
        (LOOP, f"{_WHILE} and ' cosine(' in t", "cosine while"),
        (LOOP, f"{_WHILE} and ' sine(' in t and ' compare(' in t", "compare sine while"),
        (CONDITIONAL, f"{_CONDITIONAL} and ' divide(' in t", "conditional divide"),
        (NESTED, f"{_CONDITIONAL} and ' while(' in t and ' sine(' in t", "conditional sine while"),
        (NESTED, r"re.search(r' while\(', t) and ' call(' in t", "call while"),
    ],
)
def test_nothing_is_left_but_what_the_command_looks_for(
    tmp_path: Path, text: str, condition: str, opcodes: str
) -> None:
    assert _computing(_minified(tmp_path, text, condition)) == opcodes.split()


def test_a_loop_that_is_looked_for_has_the_smallest_state_body_and_condition(tmp_path: Path) -> None:
    found = _minified(tmp_path, LOOP, _WHILE)
    loop = found.module.entry.root
    assert loop.opcode == "while" and str(loop.shape) == "s32[]"
    assert len(found.module.by_name[loop.attributes.body].instructions) == 1
    assert sum(len(computation.instructions) for computation in found.module) <= 5


def test_a_crash_by_what_is_in_a_body_keeps_it_there(tmp_path: Path) -> None:
    condition = r"re.search(r'body.*?\{[^}]* cosine\([^}]*\}', t)"
    found = _minified(tmp_path, LOOP, condition, outcome="crash", action="os.abort()")
    assert _computing(found) == ["cosine", "while"]
    (loop,) = (each for each in found.module.entry if each.opcode == "while")
    assert "cosine" in {each.opcode for each in found.module.by_name[loop.attributes.body]}


@pytest.mark.slow
def test_a_hang_at_a_loop_is_a_loop_that_ends_here(tmp_path: Path) -> None:
    found = _minified(tmp_path, LOOP, _WHILE, outcome="hang", action="time.sleep(30)")
    assert _computing(found) == ["while"]


def test_a_loop_that_would_not_end_is_not_tried(tmp_path: Path) -> None:
    # The condition must go on comparing the counter with three, so the counter must go on being counted.
    condition = r"' while(' in t and ' compare(' in t and '(%number, %three)' in t and 'constant(3)' in t"
    found = _minified(tmp_path, LOOP, condition)
    assert {"compare", "while"} <= set(_computing(found))


def test_a_nan_in_a_loop_that_stays_is_the_one_that_was_given() -> None:
    text = LOOP.replace("sine(x)", "sqrt(x)").replace("HloModule loops", "HloModule roots")
    inputs = [np.full((3, 4), 2, np.float32), np.ones(4, np.float32)]
    found = hloexec.minify(hloexec.parse(text), inputs, nan=True)
    assert _computing(found) == ["sqrt"]
