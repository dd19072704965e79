"""Calls and fusions: the bits are those of the same instructions, written in place of the call."""

import re

import numpy as np
import pytest

import hloexec
from tests.plan.ways import bits

_SUM = "sum { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b) }\n"
_BEHIND = """  zero = f32[] constant(0)
  total = f32[400] reduce(made, zero), dimensions={1}, to_apply=sum
  product = f32[400,400] dot(made, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT both = (f32[400], f32[400,400]) tuple(total, product)
"""
BODIES = {
    "a transpose": ["t = f32[400,300] transpose(x), dimensions={1,0}"],
    "what is computed of a transpose": [
        "t = f32[400,300] transpose(x), dimensions={1,0}",
        "s = f32[400,300] sine(t)",
    ],
    "a transpose of a transpose of a sum": [
        "a = f32[300,400] add(x, x)",
        "b = f32[400,300] transpose(a), dimensions={1,0}",
        "c = f32[300,400] transpose(b), dimensions={1,0}",
        "d = f32[400,300] transpose(c), dimensions={1,0}",
    ],
    "a part of a transpose": [
        "p = f32[300,450] pad(x, y), padding=0_0x0_50",
        "t = f32[450,300] transpose(p), dimensions={1,0}",
        "s = f32[400,300] slice(t), slice={[25:425], [0:300]}",
    ],
}


@pytest.mark.parametrize("how", ["call(x, y), to_apply=inner", "fusion(x, y), kind=kLoop, calls=inner"])
@pytest.mark.parametrize("planner", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_a_call_gives_what_its_instructions_give_in_its_place(name: str, planner: bool, how: str) -> None:
    lines = BODIES[name]
    given = "  x = f32[300,400] parameter(0)\n  y = f32[] parameter(1)\n"
    body = "\n".join(f"  {line}" for line in lines[:-1])
    inner = f"inner {{\n{given}{body}\n  ROOT {lines[-1]} }}\n"
    called = f"HloModule m\n{_SUM}{inner}ENTRY e {{\n{given}  made = f32[400,300] {how}\n{_BEHIND}}}\n"
    made = re.sub(r"^\w+ =", "made =", lines[-1])
    direct = f"HloModule m\n{_SUM}ENTRY e {{\n{given}{body}\n  {made}\n{_BEHIND}}}\n"
    values = np.random.default_rng(3).standard_normal((300, 400), np.float32), np.float32(1)
    expected = bits(hloexec.run(hloexec.parse(direct), *values, planner=False))
    assert bits(hloexec.run(hloexec.parse(called), *values, planner=planner)) == expected
