"""The same module on the same inputs gives the same bits, however, wherever and however often it runs."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from tests.drawing import examples
from tests.plan.random_programs import RandomProgram, random_program
from tests.plan.ways import bits, differences

POLICIES = "reference xla-cpu ftz tf32 bf16 exact excess".split()


@pytest.mark.slow_cases("0", "40", "60", "80")
@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(120))
def test_random_programs_have_the_same_bits_in_every_way(seed: int) -> None:
    assert differences(random_program(seed), numerics=POLICIES[seed % len(POLICIES)]) == []


def _normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


_SUM = "sum {{ a = {0}[] parameter(0)\n  b = {0}[] parameter(1)\n  ROOT s = {0}[] add(a, b) }}\n"


def _loop(state: str, body: str, following: str, condition: str, start: str, results: str) -> str:
    """A module whose entry runs one loop; leaf 0 counts, and the texts of the parts see the state as `s`."""
    return f"""HloModule m
{_SUM.format("f32")}
body {{ s = ({state}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
{body}
  ROOT t = ({state}) tuple(n, {following}) }}
condition {{ s = ({state}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
{condition}
  ROOT less = pred[] compare(i, end), direction=LT }}
ENTRY e {{
{start}
  w = ({state}) while(s), condition=condition, body=body
{results} }}
"""


ADDED_DOT = _loop(
    "s32[], s32[], f32[256,256], f32[256,4], f32[4,256]",
    "  bound = s32[] get-tuple-element(s), index=1\n"
    "  sum = f32[256,256] get-tuple-element(s), index=2\n"
    "  l = f32[256,4] get-tuple-element(s), index=3\n"
    "  r = f32[4,256] get-tuple-element(s), index=4\n"
    "  p = f32[256,256] dot(l, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  next = f32[256,256] add(sum, p)\n"
    "  l2 = f32[256,4] sine(l)",
    "bound, next, l2, r",
    "  end = s32[] get-tuple-element(s), index=1",
    "  b = s32[] parameter(0)\n  x = f32[256,256] parameter(1)\n  l = f32[256,4] parameter(2)\n"
    "  r = f32[4,256] parameter(3)\n  z = s32[] constant(0)\n"
    "  s = (s32[], s32[], f32[256,256], f32[256,4], f32[4,256]) tuple(z, b, x, l, r)",
    "  ROOT y = f32[256,256] get-tuple-element(w), index=2",
)

TRANSPOSED_SUM = _loop(
    "s32[], f32[100,100]",
    "  x = f32[100,100] get-tuple-element(s), index=1\n"
    "  xt = f32[100,100] transpose(x), dimensions={1,0}\n"
    "  y = f32[100,100] sine(xt)\n  q = f32[100,100] multiply(y, xt)\n  zero = f32[] constant(0)\n"
    "  total = f32[100] reduce(q, zero), dimensions={0}, to_apply=sum\n"
    "  wide = f32[100,100] broadcast(total), dimensions={1}\n  next = f32[100,100] add(q, wide)",
    "next",
    "  end = s32[] constant(10)",
    "  x = f32[100,100] parameter(0)\n  z = s32[] constant(0)\n  s = (s32[], f32[100,100]) tuple(z, x)",
    "  ROOT y = f32[100,100] get-tuple-element(w), index=1",
)

TOKEN_LOOP = _loop(
    "s32[], f32[8], token[]",
    "  x = f32[8] get-tuple-element(s), index=1\n  y = f32[8] cosine(x)\n"
    "  old = token[] get-tuple-element(s), index=2\n  new = token[] after-all(old)",
    "y, new",
    "  end = s32[] constant(42)",
    "  x = f32[8] parameter(0)\n  z = s32[] constant(0)\n  k = token[] after-all()\n"
    "  s = (s32[], f32[8], token[]) tuple(z, x, k)",
    "  ROOT y = f32[8] get-tuple-element(w), index=1",
)

BROADCAST_SCALAR = _loop(
    "s32[], s32[]",
    "  two = s32[] constant(2)\n  y = s32[] broadcast(two), dimensions={}",
    "y",
    "  end = s32[] constant(20)",
    "  x = s32[] parameter(0)\n  z = s32[] constant(0)\n  s = (s32[], s32[]) tuple(z, x)",
    "  ROOT y = s32[] get-tuple-element(w), index=1",
)

GUARDED_DIVISION = """HloModule m
ENTRY e { x = c64[60000] parameter(0)
  zero = c64[] constant((0, 0))
  zeros = c64[60000] broadcast(zero), dimensions={}
  one = c64[] constant((1, 0))
  ones = c64[60000] broadcast(one), dimensions={}
  is_zero = pred[60000] compare(x, zeros), direction=EQ
  safe = c64[60000] select(is_zero, ones, x)
  ROOT y = c64[60000] divide(ones, safe) }
"""


def _with_nan() -> np.ndarray:
    values = _normal(60000, dtype=np.complex64)
    values[123], values[77] = np.nan, 0
    return values


FOUND = {
    "a product added to a carried matrix, as often as an input says": (
        ADDED_DOT,
        [np.array(9, np.int32), _normal(256, 256), _normal(256, 4), _normal(4, 256)],
    ),
    "a sum over the transpose of a carried matrix": (TRANSPOSED_SUM, [_normal(100, 100)]),
    "a carried token in a loop whose values come to rest": (TOKEN_LOOP, [_normal(8)]),
    "a scalar that a loop broadcasts to a scalar": (BROADCAST_SCALAR, [np.array(1, np.int32)]),
    "a complex quotient with a NaN, by blocks": (GUARDED_DIVISION, [_with_nan()]),
}


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_once_gave_other_bits_or_failed(name: str) -> None:
    text, inputs = FOUND[name]
    assert differences(RandomProgram(text, [inputs])) == []


def test_draws_from_a_dirichlet_distribution_run_as_planned() -> None:
    jax = pytest.importorskip("jax")
    count = examples(10_000)

    def draw(key, concentration):
        return jax.random.dirichlet(key, concentration, (count,))

    inputs = (jax.random.PRNGKey(0), np.array([0.5, 1, 2], np.float32))
    text = jax.jit(draw).lower(*inputs).compiler_ir(dialect="hlo").as_hlo_text()
    module, values = hloexec.parse(text), [np.asarray(value) for value in inputs]
    expected = bits(hloexec.run(module, *values, planner=False))
    assert bits(hloexec.run(module, *values)) == expected


def test_a_run_that_does_not_verify_leaves_the_check_to_the_next() -> None:
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n  ROOT y = f32[5] add(x, x) }\n"
    module = hloexec.parse(text)
    with pytest.raises(hloexec.HloError):
        hloexec.run(module, np.ones(4, np.float32), verify=False, check=True)
    with pytest.raises(hloexec.VerificationError):
        hloexec.run(module, np.ones(4, np.float32))


def test_a_module_that_does_not_verify_is_refused_every_time() -> None:
    module = hloexec.parse("HloModule m\nENTRY e { x = f32[4] parameter(0)\n  ROOT y = f32[5] add(x, x) }\n")
    for _ in range(2):
        with pytest.raises(hloexec.VerificationError):
            hloexec.run(module, np.ones(4, np.float32))
