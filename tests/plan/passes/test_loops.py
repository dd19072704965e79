"""Loops that invite a pass to take them for something simpler: they have the bits of their plain evaluation."""

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.ir import ArrayShape
from tests.plan.loops import loop
from tests.plan.random_programs import RandomProgram
from tests.plan.ways import differences

M, V = "f32[256,192]", "f32[300]"
DOT = "dot(l, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SUMS = {"g": "f32[256,192]", "l": "f32[256,16]", "r": "f32[16,192]"}
PRODUCT = f"  p = f32[256,192] {DOT}\n  l2 = f32[256,16] sine(l)"
ONE = "  c1 = f32[] constant(1)\n  ones = f32[300] broadcast(c1), dimensions={}\n"

LOOPS = {
    # Sums of products
    "a sum that the condition reads": loop(
        SUMS,
        f"{PRODUCT}\n  h = f32[256,192] add(g, p)",
        "h, l2, r",
        condition="corner = f32[1,1] slice(g), slice={[0:1], [0:1]}\n  e = f32[] reshape(corner)\n"
        "  far = f32[] constant(8)\n  size = f32[] abs(e)\n  more = pred[] compare(size, far), direction=LT",
    ),
    "a product that is transposed there and back": loop(
        SUMS,
        f"{PRODUCT}\n  t = f32[192,256] transpose(p), dimensions={{1,0}}\n"
        "  u = f32[256,192] transpose(t), dimensions={1,0}\n  h = f32[256,192] add(g, u)",
        "h, l2, r",
    ),
    "a product that something else reads, too": loop(
        {**SUMS, "k": "f32[256,192]"},
        f"{PRODUCT}\n  h = f32[256,192] add(g, p)\n  q = f32[256,192] subtract(k, p)",
        "h, l2, r, q",
    ),
    "a product that is added to two sums": loop(
        {**SUMS, "k": "f32[256,192]"},
        f"{PRODUCT}\n  h = f32[256,192] add(g, p)\n  q = f32[256,192] add(p, k)",
        "h, l2, r, q",
    ),
    "a sum that changes places with another": loop(
        {**SUMS, "k": "f32[256,192]"}, f"{PRODUCT}\n  h = f32[256,192] add(g, p)", "k, l2, r, h"
    ),
    # Invariant values
    "an invariant value that a step could overwrite if it was made anew": loop(
        {"x": "f32[64,512]", "w": "f32[64,512]"},
        "  k = f32[64,512] reverse(w), dimensions={0}\n  a = f32[64,512] add(x, k)\n  b = f32[64,512] maximum(a, w)",
        "b, w",
    ),
    # Buffers
    "values that move from leaf to leaf": loop(
        {"a": V, "b": V, "c": V}, "  d = f32[300] sine(a)\n  e = f32[300] add(d, c)", "e, a, b"
    ),
    "values that change places": loop({"a": V, "b": V}, "  d = f32[300] sine(a)\n  e = f32[300] cosine(b)", "e, d"),
    "a value that several leaves take over": loop(
        {"a": V, "b": V, "c": V}, "  d = f32[300] add(a, b)\n  e = f32[300] tanh(d)", "e, e, d"
    ),
    "values that are read long after they were made": loop(
        {"a": V, "b": V},
        "  d = f32[300] sine(a)\n  e = f32[300] cosine(d)\n  f = f32[300] multiply(e, d)\n  g = f32[300] add(f, a)\n"
        "  h = f32[300] subtract(g, d)\n  k = f32[300] multiply(h, e)\n  m = f32[300] tanh(k)",
        "m, g",
    ),
    "values of one size and several shapes and types": loop(
        {"a": "f32[12,25]", "b": "s32[300]", "c": V, "d": "f32[25,12]"},
        "  e = f32[12,25] sine(a)\n  f = s32[300] add(b, b)\n  g = f32[300] cosine(c)\n  h = f32[25,12] tanh(d)\n"
        "  k = s32[300] subtract(f, b)\n  l = f32[300] add(g, c)\n  m = f32[12,25] add(e, a)\n"
        "  n = f32[25,12] multiply(h, d)",
        "m, f, l, n",
    ),
    "leaves of several shapes that are read after their next values are there": loop(
        {"a": V, "b": "f32[20,15]", "c": "f32[12,25]", "f": "f32[12,25]", "e": "f32[20,15]", "d": V},
        "  g = f32[300] sine(a)\n  h = f32[20,15] cosine(b)\n  k = f32[12,25] tanh(c)\n  l = f32[300] add(a, g)\n"
        "  m = f32[20,15] subtract(b, h)\n  n = f32[12,25] multiply(c, k)\n  o = f32[300] add(l, d)\n"
        "  p = f32[20,15] add(m, e)\n  q = f32[12,25] add(n, f)",
        "g, h, k, q, p, o",
    ),
    "views of what is written anew in each iteration": loop(
        {"a": V, "b": "f32[20,15]", "c": "f32[100]"},
        "  d = f32[300] sine(a)\n  v = f32[20,15] reshape(d)\n  s = f32[100] slice(d), slice={[100:200]}\n"
        "  e = f32[300] cosine(d)",
        "e, v, s",
    ),
    "views of what is carried": loop(
        {"a": V, "b": "f32[20,15]"},
        "  v = f32[20,15] reshape(a)\n  d = f32[300] sine(a)\n  e = f32[20,15] add(v, b)",
        "d, v",
    ),
    # Cycles
    "a loop that comes to rest but for what it computes with its counter": loop(
        {"a": V, "b": "s32[]"}, "  d = f32[300] tanh(a)\n  e = f32[300] sign(d)\n  j = s32[] multiply(i, i)", "e, j"
    ),
    "a loop that comes to rest and whose counter it carries on": loop(
        {"a": V, "b": "s32[]"}, "  e = f32[300] sign(a)", "e, i"
    ),
    "a loop that comes to rest and draws numbers": loop(
        {"a": V, "b": V},
        "  e = f32[300] sign(a)\n  low = f32[] constant(0)\n  high = f32[] constant(1)\n"
        "  w = f32[300] rng(low, high), distribution=rng_uniform",
        "e, w",
    ),
    "a loop that goes round in twos": loop({"a": V, "b": V}, "  d = f32[300] negate(a)", "d, a", trips=77),
    "a loop that goes round in threes": loop({"a": V, "b": V, "c": V}, "  d = f32[300] sign(a)", "b, c, d", trips=64),
    "a loop that goes round in fours": loop({"a": V, "b": V}, "  d = f32[300] negate(b)", "d, a", trips=71),
    "a loop that goes round in eights": loop(
        {"a": V, "b": V, "c": V, "d": V}, "  e = f32[300] negate(d)", "e, a, b, c", trips=94
    ),
    "a loop that goes round in twos and draws its end from that": loop(
        {"a": V}, "  d = f32[300] negate(a)", "d", trips=41
    ),
    # Invariants
    "an invariant of a value that only looks like one": loop(
        {"a": V, "b": V}, "  d = f32[300] sine(b)\n  e = f32[300] add(a, d)", "e, a"
    ),
    "draws on values that do not change": loop(
        {"a": V},
        "  low = f32[] constant(0)\n  high = f32[] constant(1)\n"
        "  w = f32[300] rng(low, high), distribution=rng_uniform\n  e = f32[300] add(a, w)",
        "e",
    ),
    "invariants of body and condition": loop(
        {"a": V, "b": V, "c": "f32[]"},
        "  d = f32[300] sine(b)\n  w = f32[300] broadcast(c), dimensions={}\n  x = f32[300] multiply(d, w)\n"
        "  e = f32[300] add(a, x)",
        "e, b, c",
        condition="low = f32[] cosine(c)\n  zero = f32[] constant(0)\n  top = f32[] reduce(b, zero), dimensions={0},"
        " to_apply=largest\n  far = f32[] add(low, top)\n  limit = f32[] constant(1000)\n"
        "  more = pred[] compare(far, limit), direction=LT",
    ),
    "a condition that changes its own copy of what is carried": loop(
        {"a": V, "b": V},
        "  d = f32[300] sine(a)\n  e = f32[300] add(d, b)",
        "e, b",
        condition="zero = f32[] constant(0)\n  u = f32[1] constant({5})\n"
        "  changed = f32[300] dynamic-update-slice(a, u, i)\n"
        "  top = f32[] reduce(changed, zero), dimensions={0}, to_apply=largest\n  far = f32[] constant(1000)\n"
        "  more = pred[] compare(top, far), direction=LT",
    ),
    # Counters
    "a counter whose old value another leaf takes over": loop(
        {"a": "s32[]", "b": V},
        "  f = f32[] convert(a)\n  w = f32[300] broadcast(f), dimensions={}\n  e = f32[300] add(b, w)",
        "i, e",
    ),
    "a counter whose next value another leaf takes over, too": loop(
        {"a": "s32[]", "b": V},
        "  f = f32[] convert(a)\n  w = f32[300] broadcast(f), dimensions={}\n  e = f32[300] add(b, w)",
        "next_i, e",
    ),
    "several counters in a loop whose end only its values tell": loop(
        {"a": "s32[]", "b": V, "c": "s8[]"},
        "  two = s32[] constant(2)\n  j = s32[] add(a, two)\n  five = s8[] constant(5)\n  k = s8[] subtract(c, five)\n"
        "  e = f32[300] cosine(b)",
        "j, e, k",
        direction="NE",
    ),
    "a counter that goes on in threes": loop({"a": V}, "  e = f32[300] cosine(a)", "e", pace=3, trips=61),
    "a counter that may reach its end": loop({"a": V}, "  e = f32[300] cosine(a)", "e", direction="LE", trips=23),
    "a counter that goes down": loop(
        {"a": V}, "  e = f32[300] cosine(a)", "e", first=30, pace=-1, trips=3, direction="GT"
    ),
    "a counter that wraps around before the end": loop(
        {"a": "f32[4]"}, "  e = f32[4] cosine(a)", "e", counter="s8", first=100, trips=120, pace=50
    ),
    "a loop that begins with what lies transposed in memory": loop(
        {"a": "f32[4,64,256]"},
        "  d = f32[4,64,256] multiply(a, a)\n  e = f32[4,64,256] tanh(d)\n  f = f32[4,64,256] add(e, a)",
        "f",
        entry="  c = f32[256,64,4] reshape(a)\n  s = f32[4,64,256] transpose(c), dimensions={2,1,0}\n"
        "  u = f32[4,64,256] add(s, s)",
        start="u",
        trips=10,
    ),
    "few iterations in twos": loop(
        {"a": "f32[200,200]"}, "  e = f32[200,200] sine(a)\n  d = f32[200,200] add(e, a)", "d", trips=7, pace=2
    ),
    "few iterations, from a number on": loop(
        {"a": "f32[200,200]", "b": "s32[]"},
        "  e = f32[200,200] sine(a)\n  d = f32[200,200] add(e, a)\n  c = s32[] add(b, i)",
        "d, c",
        first=-3,
        trips=2,
    ),
    "few iterations of a fusion": loop(
        {"a": "f32[200,200]"},
        "  f = f32[200,200] fusion(a), kind=kLoop, calls=fused",
        "f",
        trips=3,
        computations="fused {\n  x = f32[200,200] parameter(0)\n  y = f32[200,200] sine(x)\n"
        "  ROOT z = f32[200,200] add(x, y)\n}\n",
    ),
}


def _inputs(text: str) -> list[np.ndarray]:
    random = np.random.default_rng(11)
    values = []
    for parameter in hloexec.parse(text).entry.parameters:
        assert isinstance(parameter.shape, ArrayShape)
        sizes = parameter.shape.dimensions
        if parameter.shape.element_type.is_integral:
            values.append(random.integers(-9, 10, sizes).astype(parameter.shape.element_type.storage))
        else:
            values.append(random.standard_normal(sizes).astype(parameter.shape.element_type.storage))
    return values


@pytest.mark.slow_cases("a sum that the condition reads", "a loop that comes to rest and draws numbers")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", LOOPS)
def test_the_bits_are_those_of_the_plain_evaluation(name: str) -> None:
    text = LOOPS[name]
    assert differences(RandomProgram(text, [_inputs(text)]), runs=18) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("order", ["g, p", "p, g"])
@pytest.mark.parametrize("policy", ["reference", "xla-cpu", "ftz"])
def test_which_of_two_nans_comes_out(order: str, policy: str) -> None:
    """Both the sum and the products are NaN, with other bits."""
    text = loop(SUMS, f"{PRODUCT}\n  h = f32[256,192] add({order})", "h, l2, r")
    inputs = _inputs(text)
    inputs[0].view(np.uint32)[::3] = 0x7FC00123
    inputs[1][::2], inputs[2][:, ::2] = np.inf, 0
    assert differences(RandomProgram(text, [inputs]), runs=2, numerics=policy) == []


def test_narrow_types_are_rounded_in_every_iteration() -> None:
    text = loop(
        {"a": "bf16[300]", "b": "bf16[300]"},
        "  d = bf16[300] multiply(a, b)\n  e = bf16[300] add(d, a)\n  f = bf16[300] sine(e)",
        "f, b",
    )
    values = [np.linspace(-2, 2, 300).astype(ml_dtypes.bfloat16), np.linspace(3, 1, 300).astype(ml_dtypes.bfloat16)]
    assert differences(RandomProgram(text, [values])) == []


def test_a_counter_that_steps_one_beyond_the_largest_number_wraps_around() -> None:
    """From 125 to 128, which is -128: less than the end, so that the loop goes on from there to 127."""
    text = loop({"a": "f32[4]"}, "  e = f32[4] sine(a)", "e", counter="s8", first=2, pace=3, trips=126)
    assert differences(RandomProgram(text, [_inputs(text)]), runs=2) == []


def test_a_loop_that_comes_to_rest_and_draws_numbers_in_a_branch_goes_on() -> None:
    """What it draws leaves no trace in what it carries, but in the numbers that are drawn after it."""
    text = """HloModule m
drawn { a = f32[] parameter(0)
  low = f32[] constant(0)
  high = f32[] constant(1)
  ROOT w = f32[] rng(low, high), distribution=rng_uniform }
kept { a = f32[] parameter(0)
  ROOT w = f32[] negate(a) }
body { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  yes = pred[] constant(true)
  w = f32[] conditional(yes, a, a), true_computation=drawn, false_computation=kept
  zero = f32[] constant(0)
  nothing = f32[] multiply(w, zero)
  e = f32[] sign(a)
  f = f32[] add(e, nothing)
  ROOT t = (s32[], f32[]) tuple(n, f) }
condition { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(50)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { a = f32[] parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[]) tuple(z, a)
  l = (s32[], f32[]) while(s), condition=condition, body=body
  b = f32[] get-tuple-element(l), index=1
  low = f32[] constant(0)
  high = f32[] constant(1)
  after = f32[] rng(low, high), distribution=rng_uniform
  ROOT r = (f32[], f32[]) tuple(b, after) }
"""
    assert differences(RandomProgram(text, [[np.array(3, np.float32)]]), runs=2) == []
