"""Faults beside numbers so large that, compared with the size of a whole array, nothing would be wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hloexec

ADD = "add { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b) }\n"
LARGEST = "max { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b) }\n"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def random(*dimensions, seed=0):
    return np.random.default_rng([seed, *dimensions]).standard_normal(dimensions).astype(np.float32)


def changed(array, places, value):
    array = array.copy()
    array[places] = value
    return array


MASK = np.where(np.arange(16) < 12, 0, -1e9).astype(np.float32)

PAIRS = {
    "an additive mask before a softmax and a dot": (
        """x = f32[16,16] parameter(0)
  m = f32[16] parameter(1)
  v = f32[16,8] parameter(2)
  b = f32[16,16] broadcast(m), dimensions={1}
  k = f32[] constant(0.25)
  kk = f32[16,16] broadcast(k), dimensions={}
  s = f32[16,16] multiply(x, kk)
  l = f32[16,16] add(s, b)
  i = f32[] constant(-inf)
  t = f32[16] reduce(l, i), dimensions={1}, to_apply=max
  tt = f32[16,16] broadcast(t), dimensions={0}
  d = f32[16,16] subtract(l, tt)
  e = f32[16,16] exponential(d)
  z = f32[] constant(0)
  n = f32[16] reduce(e, z), dimensions={1}, to_apply=add
  nn = f32[16,16] broadcast(n), dimensions={0}
  p = f32[16,16] divide(e, nn)
  ROOT o = f32[16,8] dot(p, v), DOT""",
        ("l = f32[16,16] add(s, b)", "l = f32[16,16] add(x, b)"),
        [random(16, 16), MASK, random(16, 8)],
    ),
    "an outlier row before a dot": (
        """x = f32[16,32] parameter(0)
  y = f32[16,32] parameter(1)
  w = f32[32,8] parameter(2)
  h = f32[16,32] add(x, y)
  ROOT o = f32[16,8] dot(h, w), DOT""",
        ("add(x, y)", "subtract(x, y)"),
        [changed(random(16, 32), 3, 1e12), random(16, 32, seed=1), random(32, 8)],
    ),
    "an outlier row before a reduce": (
        """x = f32[16,32] parameter(0)
  q = f32[16,32] multiply(x, x)
  z = f32[] constant(0)
  r = f32[16] reduce(q, z), dimensions={1}, to_apply=add
  ROOT o = f32[16] sqrt(r)""",
        ("multiply(x, x)", "abs(x)"),
        [changed(random(16, 32), 5, 1e14)],
    ),
    "an additive mask before a reduce": (
        """x = f32[16,16] parameter(0)
  m = f32[16] parameter(1)
  b = f32[16,16] broadcast(m), dimensions={0}
  s = f32[16,16] sine(x)
  l = f32[16,16] add(s, b)
  z = f32[] constant(0)
  ROOT o = f32[16] reduce(l, z), dimensions={1}, to_apply=add""",
        ("sine(x)", "tanh(x)"),
        [random(16, 16), MASK],
    ),
    "an unselected lane before a select": (
        """x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  c = f32[] constant(1e6)
  cc = f32[64] broadcast(c), dimensions={}
  p = pred[64] compare(x, cc), direction=LT
  e = f32[64] multiply(x, y)
  ROOT o = f32[64] select(p, e, y)""",
        ("multiply(x, y)", "divide(x, y)"),
        [changed(random(64), 7, 1e30), 1 + np.abs(random(64, seed=2))],
    ),
    "an unselected lane before a dot": (
        """x = f32[16,16] parameter(0)
  p = pred[16,16] parameter(1)
  w = f32[16,8] parameter(2)
  z = f32[] constant(0)
  zz = f32[16,16] broadcast(z), dimensions={}
  e = f32[16,16] add(x, x)
  s = f32[16,16] select(p, e, zz)
  ROOT o = f32[16,8] dot(s, w), DOT""",
        ("e = f32[16,16] add(x, x)", "e = f32[16,16] multiply(x, x)"),
        [changed(random(16, 16), (2, 3), 1e18), changed(np.ones((16, 16), bool), (2, 3), False), random(16, 8)],
    ),
    "an offset column before a slice": (
        """x = f32[16,16] parameter(0)
  y = f32[16,16] parameter(1)
  e = f32[16,16] maximum(x, y)
  n = f32[16,16] negate(e)
  ROOT o = f32[16,15] slice(n), slice={[0:16], [1:16]}""",
        ("maximum(x, y)", "add(x, y)"),
        [changed(random(16, 16), (slice(None), 0), 1e15), random(16, 16, seed=3)],
    ),
    "an offset column before a slice and a dot": (
        """x = f32[16,17] parameter(0)
  y = f32[16,17] parameter(1)
  w = f32[16,8] parameter(2)
  e = f32[16,17] multiply(x, y)
  f = f32[16,17] add(e, x)
  s = f32[16,16] slice(f), slice={[0:16], [1:17]}
  ROOT o = f32[16,8] dot(s, w), DOT""",
        ("add(e, x)", "subtract(e, x)"),
        [changed(random(16, 17), (slice(None), 0), 1e20), random(16, 17, seed=4), random(16, 8)],
    ),
}


def module(body):
    return hloexec.parse(f"HloModule m\n{ADD}{LARGEST}ENTRY e {{ {body.replace('DOT', DOT)} }}\n")


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_beside_a_huge_number_is_found(name):
    body, fault, inputs = PAIRS[name]
    assert body.count(fault[0]) == 1
    found = hloexec.diff(module(body), module(body.replace(*fault)), inputs)
    assert found.verdict == "differ"
    assert found.outputs.verdict is hloexec.Verdict.DIFFERENT
    wanted = (
        fault[1].split(" = ")[0]
        if " = " in fault[1]
        else next(line.split(" = ")[0].split()[-1] for line in body.splitlines() if fault[0] in line)
    )
    assert found.findings[0].after.instruction == wanted


def reordered(body):
    """The same module, with products and sums that add up their terms backwards."""
    types = dict(re.findall(r"(\w+) = (f32\[[\d,]*\])", body))

    def turned(match):
        name, opcode, lhs, rhs, rest = match.groups()
        names = [(lhs, 1), (rhs, 0)] if opcode == "dot" else [(lhs, 1)]
        lines = [f"  {arg}_r = {types[arg]} reverse({arg}), dimensions={{{axis}}}\n" for arg, axis in names]
        arguments = f"{lhs}_r, {rhs}_r" if opcode == "dot" else f"{lhs}_r, {rhs}"
        return f"{''.join(lines)}  {name} {opcode}({arguments}){rest}"

    return re.sub(r"  ((?:ROOT )?\w+ = \S+) (dot|reduce)\((\w+), (\w+)\)(.*)", turned, body)


@pytest.mark.parametrize("name", PAIRS)
def test_sums_in_another_order_are_rounding_beside_a_huge_number_too(name):
    body, _, inputs = PAIRS[name]
    found = hloexec.diff(module(body), module(reordered(body)), inputs)
    assert found.verdict == "rounding only" or ("dot" not in body and found.verdict == "agree")
    assert found.findings == ()
