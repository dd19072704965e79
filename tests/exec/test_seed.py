"""The random numbers that a module draws itself: they belong to the run and its seed."""

from __future__ import annotations

import numpy as np
import pytest

from hloexec.core.values import flat
from hloexec.engine.exec import run
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
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(first, drawn(seed=0, check=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


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
