"""Random numbers of a module belong to the run and its seed; runs that round at random side by side have the bits that each has alone."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.analysis.numerics.sampling.runs import at_random
from hloexec.core.tree import flat
from hloexec.core.values import arrays_of
from hloexec.engine.exec import run
from hloexec.engine.exec.running import run_seeds
from hloexec.engine.options import Options
from hloexec.errors import InputError
from tests.exec.programs import parsed

DRAWING = """HloModule drawing
body { s = (s32[], f32[3,64]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  rows = f32[3,64] get-tuple-element(s), index=1
  zero = f32[] constant(0)
  one = f32[] constant(1)
  row = f32[1,64] rng(zero, one), distribution=rng_normal
  start = s32[] constant(0)
  new = f32[3,64] dynamic-update-slice(rows, row, n, start)
  step = s32[] constant(1)
  m = s32[] add(n, step)
  ROOT r = (s32[], f32[3,64]) tuple(m, new) }
condition { s = (s32[], f32[3,64]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT lt = pred[] compare(n, three), direction=LT }
ENTRY e { n = s32[] constant(0)
  zero = f32[] constant(0)
  rows = f32[3,64] broadcast(zero), dimensions={}
  s = (s32[], f32[3,64]) tuple(n, rows)
  w = (s32[], f32[3,64]) while(s), condition=condition, body=body
  drawn = f32[3,64] get-tuple-element(w), index=1
  low = s32[] constant(-50)
  high = s32[] constant(50)
  whole = s32[64] rng(low, high), distribution=rng_uniform
  state = u64[2] rng-get-and-update-state(), delta=7
  next = u64[2] rng-get-and-update-state(), delta=7
  ROOT t = (f32[3,64], s32[64], u64[2], u64[2]) tuple(drawn, whole, state, next) }
"""


def drawn(**options):
    return flat(run(parsed(DRAWING), **options))


def test_two_runs_draw_the_same_numbers():
    module = parsed(DRAWING)
    first, second = flat(run(module)), flat(run(module))
    for ours, theirs in zip(first, second, strict=True):
        assert_array_equal(ours, theirs)
    for ours, theirs in zip(first, drawn(seed=0, check=True), strict=True):
        assert_array_equal(ours, theirs)


def test_another_seed_draws_other_numbers():
    rows, whole, _, _ = drawn(seed=1)
    others, other_whole, _, _ = drawn(seed=2)
    assert not (rows == others).any()
    assert (whole != other_whole).any()


def test_a_run_draws_new_numbers_each_time():
    rows, _, state, following = drawn()
    assert len({row.tobytes() for row in rows}) == 3
    assert abs(int(following[0]) - int(state[0])) == 7


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_seeds_have_64_bits(seed):
    assert drawn(seed=seed)[0].shape == (3, 64)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", None])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(InputError, match="seed must be an integer from 0 to 2"):
        drawn(seed=seed)


_SUM = "add { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT sum = T[] add(a, b) }\n"
_ODD = (
    "odd { a = T[] parameter(0)\n b = T[] parameter(1)\n c = T[] multiply(a, b)\n d = T[] sine(c)\n"
    " ROOT e = T[] add(d, b) }\n"
)
_LESS = "less { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT less = pred[] compare(a, b), direction=LT }\n"
_LOOP = """
going { s = (s32[], T[4,6]) parameter(0)
 n = s32[] get-tuple-element(s), index=0
 x = T[4,6] get-tuple-element(s), index=1
 zero = T[] constant(0)
 total = T[] reduce(x, zero), dimensions={0,1}, to_apply=add
 limit = T[] constant(1e3)
 small = pred[] compare(total, limit), direction=LT
 most = s32[] constant(20)
 few = pred[] compare(n, most), direction=LT
 ROOT both = pred[] and(small, few) }
body { s = (s32[], T[4,6]) parameter(0)
 n = s32[] get-tuple-element(s), index=0
 one = s32[] constant(1)
 m = s32[] add(n, one)
 x = T[4,6] get-tuple-element(s), index=1
 t = T[] constant(1.7)
 ts = T[4,6] broadcast(t), dimensions={}
 y = T[4,6] multiply(x, ts)
 ROOT r = (s32[], T[4,6]) tuple(m, y) }
"""
_STEPS = {
    "elementwise": "e = T[4,6] exponential(x)\n d = T[4,6] divide(e, x)\n ROOT r = T[4,6] multiply(d, d)",
    "product": "ROOT r = T[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "sum": "z = T[] constant(0)\n ROOT r = T[4] reduce(x, z), dimensions={1}, to_apply=add",
    "other reducer": "z = T[] constant(1)\n ROOT r = T[4] reduce(x, z), dimensions={1}, to_apply=odd",
    "constants": (
        "c = T[] constant(3.3)\n d = T[] sine(c)\n e = T[4,6] broadcast(d), dimensions={}\n ROOT r = T[4,6] add(x, e)"
    ),
    "order": "y = T[4,6] multiply(x, x)\n ROOT s = T[4,6] sort(y), dimensions={1}, to_apply=less",
    "loop": (
        "z = s32[] constant(0)\n y = T[4,6] multiply(x, x)\n i = (s32[], T[4,6]) tuple(z, y)\n"
        " ROOT w = (s32[], T[4,6]) while(i), condition=going, body=body"
    ),
}


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("kind", "f32 f64 bf16 f16".split())
def test_seeds_side_by_side(step: str, kind: str) -> None:
    text = f"HloModule m\n{_SUM}{_ODD}{_LESS}{_LOOP}ENTRY main {{ x = T[4,6] parameter(0)\n {_STEPS[step]} }}\n"
    module = hloexec.parse(text.replace("T[", f"{kind}["))
    inputs = [hloexec.random_inputs(module, 3)]
    seeds = range(1, 8)
    alone = [hloexec.run_devices(module, inputs, numerics=at_random("reference", seed))[0] for seed in seeds]
    together = run_seeds(module, inputs, seeds, Options(numerics=at_random("reference", 0)))
    assert len(together) == len(alone)
    for one, other in zip(alone, together, strict=True):
        for expected, found in zip(arrays_of(one), arrays_of(other), strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
    first = [np.asarray(arrays_of(each)[-1]).tobytes() for each in alone]
    assert len(set(first)) > 1


def test_seeds_of_what_has_random_numbers() -> None:
    text = (
        "HloModule m\nENTRY main { a = f32[] constant(0)\n b = f32[] constant(1)\n"
        " r = f32[8] rng(a, b), distribution=rng_uniform\n ROOT s = f32[8] multiply(r, r) }\n"
    )
    assert not run_seeds(hloexec.parse(text), [[]], range(3), Options(numerics=at_random("reference", 0)))
