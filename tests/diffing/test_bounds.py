"""Bounds of one instruction from its operands, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import hloexec
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.options import Options
from hloexec.tools.diffing.bounds import Bounds, PathBounds
from hloexec.tools.diffing.chains import NO_CHAIN, InstructionChains
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.recording.recorder import GraphRecorder
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.replaying.origins import _arranged, _Error

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


def random(*dimensions, seed=0):
    return np.random.default_rng([seed, *dimensions]).standard_normal(dimensions).astype(np.float32)


def exact_product(lhs, rhs):
    left, right = (np.vectorize(Fraction, otypes=[object])(side.astype(np.float64)) for side in (lhs, rhs))
    return left @ right


def test_a_product_lies_within_its_bound_and_the_bound_is_its_own_rows():
    lhs, rhs = random(8, 200), random(200, 6)
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
    np.testing.assert_array_equal(np.delete(other, 3, 0), np.delete(bound, 3, 0))


def test_few_terms_are_held_to_the_bound_that_no_order_exceeds():
    lhs, rhs = random(8, 3), random(3, 6)
    body = f"  x = f32[8,3] parameter(0)\n  y = f32[3,6] parameter(1)\n  ROOT r = f32[8,6] dot(x, y), {DOT}"
    bound, result = path_bound(body, lhs, rhs)
    sizes = np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64))
    np.testing.assert_allclose(bound, UNIT * (3 * sizes + np.abs(result)), rtol=1e-5)


def test_sums_cancel_within_their_own_terms():
    values = np.concatenate([random(5, 400), -random(5, 400)[:, ::-1]], axis=1)
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
    assert not path_bound(body, random(5, 8))[0].any()


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
    values = random(6, 40)
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
    np.testing.assert_array_equal(_arranged(error, cast(Node, node), value), np.arange(12.0).reshape(3, 4))
