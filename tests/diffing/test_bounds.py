"""Bounds of one instruction from its operands, against exact arithmetic."""

import re
from fractions import Fraction
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.options import Options
from hloexec.tools.diffing.bounds import NO_CHAIN, Bounds, InstructionChains, PathBounds
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.replaying.origins import _arranged, _Error
from hloexec.tools.diffing.running import GraphRecorder
from tests.drawing import normal

ADD = "add { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b) }\n"
LARGER = "max { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b) }\n"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
UNIT = 2.0**-24


def path_bound(body, *inputs):
    """The bound of the result, from the inputs on, and the result."""
    module = hloexec.parse(f"HloModule m\n{ADD}{LARGER}ENTRY e {{\n{body} }}\n")
    recorder = GraphRecorder(module)
    outputs = hloexec.run_devices(module, [list(inputs)], observers=[recorder])
    graph = recorder.finish(outputs)
    evaluator = Evaluator(module, topology_of(module, None, None), Options(verify=False))
    bounds = PathBounds(graph, Bounds(graph, evaluator, InstructionChains(module, "reference")))
    (root,) = graph.outputs[0]
    ends = {node.number for node in graph.nodes if node.instance.opcode == "parameter"}
    return bounds.of(root, ends), np.asarray(outputs[0])


def exact_product(lhs, rhs):
    left, right = (np.vectorize(Fraction, otypes=[object])(side.astype(np.float64)) for side in (lhs, rhs))
    return left @ right


def test_a_product_lies_within_its_bound_and_the_bound_is_its_own_rows():
    lhs, rhs = normal(8, 200), normal(200, 6)
    lhs[3] *= np.float32(1e20)
    lhs[5, 7] = 1e12
    body = f"  x = f32[8,200] parameter(0)\n  y = f32[200,6] parameter(1)\n  ROOT r = f32[8,6] dot(x, y), {DOT}"
    bound, result = path_bound(body, lhs, rhs)
    errors = np.abs(np.vectorize(Fraction, otypes=[object])(result.astype(np.float64)) - exact_product(lhs, rhs))
    assert (errors.astype(np.float64) <= bound).all()
    sizes = np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64))
    # λ √(n/3) u Σ|t| and u |r|, and no more than twice the worst that any order of adding can do.
    assert (bound <= 1.01 * UNIT * (np.abs(result) + 5 * np.sqrt(200 / 3) * sizes)).all()
    lhs[3] /= np.float32(1e20)
    other, _ = path_bound(body, lhs, rhs)
    assert_array_equal(np.delete(other, 3, 0), np.delete(bound, 3, 0))


def test_few_terms_are_held_to_the_bound_that_no_order_exceeds():
    lhs, rhs = normal(8, 3), normal(3, 6)
    body = f"  x = f32[8,3] parameter(0)\n  y = f32[3,6] parameter(1)\n  ROOT r = f32[8,6] dot(x, y), {DOT}"
    bound, result = path_bound(body, lhs, rhs)
    sizes = np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64))
    assert_allclose(bound, UNIT * (3 * sizes + np.abs(result)), rtol=1e-5)


def test_sums_cancel_within_their_own_terms():
    values = np.concatenate([normal(5, 400), -normal(5, 400)[:, ::-1]], axis=1)
    values[2] *= np.float32(1e15)
    body = (
        "  x = f32[5,800] parameter(0)\n  z = f32[] constant(0)\n"
        "  ROOT r = f32[5] reduce(x, z), dimensions={1}, to_apply=add"
    )
    bound, result = path_bound(body, values)
    exact = values.astype(np.float64).sum(axis=1)
    assert (np.abs(result - exact) <= bound).all()
    assert (bound > 1e-6 * np.abs(values.astype(np.float64)).sum(axis=1) * 0.1).all()
    assert (np.delete(bound, 2) < 1e-2).all()


def test_what_rounds_nothing_has_no_bound():
    body = (
        "  x = f32[5,8] parameter(0)\n  m = f32[] constant(-inf)\n  t = f32[8,5] transpose(x), dimensions={1,0}\n"
        "  n = f32[8,5] negate(t)\n  ROOT r = f32[8] reduce(n, m), dimensions={1}, to_apply=max"
    )
    assert not path_bound(body, normal(5, 8))[0].any()


BODIES = {
    "a softmax": """  x = f32[6,40] parameter(0)
  i = f32[] constant(-inf)
  m = f32[6] reduce(x, i), dimensions={1}, to_apply=max
  b = f32[6,40] broadcast(m), dimensions={0}
  d = f32[6,40] subtract(x, b)
  e = f32[6,40] exponential(d)
  z = f32[] constant(0)
  s = f32[6] reduce(e, z), dimensions={1}, to_apply=add
  t = f32[6,40] broadcast(s), dimensions={0}
  ROOT r = f32[6,40] divide(e, t)""",
    "a difference of squares": """  x = f32[6,40] parameter(0)
  y = f32[6,40] reverse(x), dimensions={1}
  p = f32[6,40] multiply(x, x)
  q = f32[6,40] multiply(y, y)
  ROOT r = f32[6,40] subtract(p, q)""",
    "a steep function": """  x = f32[6,40] parameter(0)
  k = f32[] constant(25)
  c = f32[6,40] broadcast(k), dimensions={}
  a = f32[6,40] multiply(x, c)
  ROOT r = f32[6,40] exponential(a)""",
    "a product of products": """  x = f32[6,40] parameter(0)
  t = f32[40,6] transpose(x), dimensions={1,0}
  g = f32[6,6] dot(x, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[6,40] dot(g, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
}


@pytest.mark.parametrize("name", BODIES)
def test_errors_pass_through_what_follows(name):
    """Against the same module in f64, of f32 inputs; the bound is met, and not a thousand times too wide on the whole."""
    values = normal(6, 40)
    values[4] *= np.float32(1e4 if "steep" not in name else 1)
    bound, result = path_bound(BODIES[name], values)
    module = hloexec.parse(f"HloModule m\n{ADD}{LARGER}ENTRY e {{\n{BODIES[name]} }}\n".replace("f32", "f64"))
    exact = hloexec.run(module, values.astype(np.float64))
    errors = np.abs(result.astype(np.float64) - exact)
    assert (errors <= bound + 2.0**-149).all()
    is_off = errors > 0
    assert np.median(bound[is_off] / errors[is_off]) < 1000


def test_the_bound_of_an_equal_value_is_brought_to_the_dimensions_in_which_it_is_taken() -> None:
    """The first value with some numbers, of which the bound is known, may have other dimensions than the others."""
    value = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    error = _Error(np.arange(12.0).reshape(3, 1, 4), NO_CHAIN)
    node = SimpleNamespace(shape=value.shape, value=value)
    assert_array_equal(_arranged(error, cast(Node, node), value), np.arange(12.0).reshape(3, 4))


LARGEST = "max { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b) }\n"


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
        [normal(16, 16), MASK, normal(16, 8)],
    ),
    "an outlier row before a dot": (
        """x = f32[16,32] parameter(0)
  y = f32[16,32] parameter(1)
  w = f32[32,8] parameter(2)
  h = f32[16,32] add(x, y)
  ROOT o = f32[16,8] dot(h, w), DOT""",
        ("add(x, y)", "subtract(x, y)"),
        [changed(normal(16, 32), 3, 1e12), normal(16, 32, seed=1), normal(32, 8)],
    ),
    "an outlier row before a reduce": (
        """x = f32[16,32] parameter(0)
  q = f32[16,32] multiply(x, x)
  z = f32[] constant(0)
  r = f32[16] reduce(q, z), dimensions={1}, to_apply=add
  ROOT o = f32[16] sqrt(r)""",
        ("multiply(x, x)", "abs(x)"),
        [changed(normal(16, 32), 5, 1e14)],
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
        [normal(16, 16), MASK],
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
        [changed(normal(64), 7, 1e30), 1 + np.abs(normal(64, seed=2))],
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
        [changed(normal(16, 16), (2, 3), 1e18), changed(np.ones((16, 16), bool), (2, 3), False), normal(16, 8)],
    ),
    "an offset column before a slice": (
        """x = f32[16,16] parameter(0)
  y = f32[16,16] parameter(1)
  e = f32[16,16] maximum(x, y)
  n = f32[16,16] negate(e)
  ROOT o = f32[16,15] slice(n), slice={[0:16], [1:16]}""",
        ("maximum(x, y)", "add(x, y)"),
        [changed(normal(16, 16), (slice(None), 0), 1e15), normal(16, 16, seed=3)],
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
        [changed(normal(16, 17), (slice(None), 0), 1e20), normal(16, 17, seed=4), normal(16, 8)],
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
