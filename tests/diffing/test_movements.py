"""What moves elements is to blame for certain only if nothing else around it could make up for their order."""

import re
from collections.abc import Mapping

import pytest

import hloexec
from hloexec.engine.inputs import random_inputs

_GIVEN = """
  x = T[R,C]{1,0} parameter(0)
  v = T[R,C]{1,0} parameter(1)
"""
_CHAIN = """
  a = T[R,C] tanh(x)
  c = T[R,C] sine(a)
  ROOT r = T[R,C] multiply(c, v)"""
_LOOP = """body {
  c = (s32[], T[R,C], T[R,C]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  h = T[R,C] get-tuple-element(c), index=1
  w = T[R,C] get-tuple-element(c), index=2
STEPS
  n = T[R,C] add(u, w)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], T[R,C], T[R,C]) tuple(j, n, w)
}
cond {
  c = (s32[], T[R,C], T[R,C]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT
}
"""
_RUNS_LOOP = """
  zero = s32[] constant(0)
  t = (s32[], T[R,C], T[R,C]) tuple(zero, x, v)
  l = (s32[], T[R,C], T[R,C]) while(t), condition=cond, body=body
  ROOT y = T[R,C] get-tuple-element(l), index=1"""
_LOOP_BEFORE = "  a = T[R,C] tanh(h)\n  u = T[R,C] sine(a)"
_LOOP_AFTER = """  b = T[C,R]{@b} bitcast(h)
  a = T[C,R] tanh(b)
  e = T[C,R] sine(a)
  u = T[R,C]{@u} bitcast(e)"""
_FUSED = """fc {
  p = T[R,C]{1,0} parameter(0)
  b = T[C,R]{@b} bitcast(p)
  a = T[C,R] tanh(b)
  c = T[C,R] sine(a)
  ROOT u = T[R,C]{@u} bitcast(c)
}
"""
_ADDS = "add {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  ROOT s = f32[] add(p, q)\n}\n"
_SUM = """
  zero = f32[] constant(0)
  l = f32[R] reduce(a, zero), dimensions={AXIS}, to_apply=add
  ROOT r = f32[R] sine(l)"""
_DOT = """
  d = T[R,R] dot(a, v), lhs_contracting_dims={AXIS}, rhs_contracting_dims={1}
  ROOT r = T[R,R] sine(d)"""
_TURNED = "\n  b = T[C,R]{@b} bitcast(x)\n  a = T[C,R] tanh(b)"

_MODULES: Mapping[str, tuple[str, str]] = {
    "a quotient by one number": (
        "ENTRY e {" + _GIVEN + "  k = T[] parameter(2)\n  kb = T[R,C] broadcast(k), dimensions={}\n"
        "  d = T[R,C] divide(x, kb)\n  ROOT r = T[R,C] multiply(d, v)\n}",
        "ENTRY e {" + _GIVEN + "  k = T[] parameter(2)\n  b = T[C,R]{@b} bitcast(x)\n"
        "  kb = T[C,R] broadcast(k), dimensions={}\n  d = T[C,R] divide(b, kb)\n  u = T[R,C]{@u} bitcast(d)\n"
        "  ROOT r = T[R,C] multiply(u, v)\n}",
    ),
    "a fusion": (
        "ENTRY e {" + _GIVEN + _CHAIN + "\n}",
        _FUSED + "ENTRY e {" + _GIVEN + "  f = T[R,C] fusion(x), kind=kLoop, calls=fc\n"
        "  ROOT r = T[R,C] multiply(f, v)\n}",
    ),
    "a loop": (
        _LOOP.replace("STEPS", _LOOP_BEFORE) + "ENTRY e {" + _GIVEN + _RUNS_LOOP + "\n}",
        _LOOP.replace("STEPS", _LOOP_AFTER) + "ENTRY e {" + _GIVEN + _RUNS_LOOP + "\n}",
    ),
    "two uses": (
        "ENTRY e {" + _GIVEN + "  a = T[R,C] tanh(x)\n  c = T[R,C] sine(a)\n  d = T[R,C] exponential(a)\n"
        "  m = T[R,C] multiply(c, v)\n  ROOT r = T[R,C] add(m, d)\n}",
        "ENTRY e {" + _GIVEN + _TURNED + "\n  c = T[C,R] sine(a)\n  d = T[C,R] exponential(a)\n"
        "  u = T[R,C]{@u} bitcast(c)\n  w = T[R,C] transpose(d), dimensions={1,0}\n  m = T[R,C] multiply(u, v)\n"
        "  ROOT r = T[R,C] add(m, w)\n}",
    ),
    "a sum of rows": (
        _ADDS + "ENTRY e {" + _GIVEN + "  a = T[R,C] tanh(x)" + _SUM.replace("AXIS", "1") + "\n}",
        _ADDS + "ENTRY e {" + _GIVEN + _TURNED + _SUM.replace("AXIS", "0") + "\n}",
    ),
    "a product": (
        "ENTRY e {" + _GIVEN + "  a = T[R,C] tanh(x)" + _DOT.replace("AXIS", "1") + "\n}",
        "ENTRY e {" + _GIVEN + _TURNED + _DOT.replace("AXIS", "0") + "\n}",
    ),
}


def _module(text: str, size: int, kind: str, wrong: str) -> hloexec.Module:
    for slot in "bu":
        text = text.replace(f"@{slot}", "1,0" if slot == wrong else "0,1")
    for name, value in (("T", kind), ("R", str(size)), ("C", "4")):
        text = re.sub(rf"\b{name}\b", value, text)
    return hloexec.parse(f"HloModule m\n{text}\n")


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("name", _MODULES)
def test_the_movement_that_is_wrong_is_among_those_that_may_be_meant(name: str, size: int, kind: str) -> None:
    before, after = _MODULES[name]
    if "f32" in before:
        kind = "f32"
    reference = _module(before, size, kind, "")
    inputs = random_inputs(reference, 3)
    assert hloexec.diff(reference, _module(after, size, kind, ""), inputs).verdict == "agree"
    for slot in [each for each in "bu" if f"@{each}" in after]:
        first = hloexec.diff(reference, _module(after, size, kind, slot), inputs).findings[0]
        assert slot in {first.after.instruction, *(run.instruction for run in first.region)}
