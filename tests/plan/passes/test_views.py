"""Slices and reshapes of one another as one view, against NumPy and against each taken alone."""

from typing import Any

import numpy as np

import hloexec
from hloexec.engine.plan.passes.views import _one_after_the_other


def _random_index(rng: np.random.Generator, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Slices, elements of dimensions, and new dimensions."""
    index: list[Any] = []
    for size in sizes:
        if not rng.integers(5):
            index.append(None)
        kind = rng.integers(4)
        start, step = int(rng.integers(size)), int(rng.integers(1, 3))
        part = slice(start, int(rng.integers(start + 1, size + 1)), step)
        index.append(start if kind == 0 else slice(None) if kind == 1 else part)
    return (*index, ...)


def test_one_index_gives_what_several_give_one_after_the_other() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        array = np.arange(4 * 5 * 6).reshape(4, 5, 6)
        index: tuple[Any, ...] = (slice(None),) * 3
        shown = array
        for _ in range(3):
            following = _random_index(rng, shown.shape)
            together = _one_after_the_other(index, following)
            assert together is not None, seed
            index, shown = together, shown[following]
            np.testing.assert_array_equal(array[index], shown, err_msg=f"seed {seed}")


def test_elements_of_a_row_that_a_called_computation_takes_in_a_loop_are_its_own() -> None:
    module = hloexec.parse("""HloModule m

filter {
  row = f32[5] parameter(0)
  x = f32[] parameter(1)
  first = f32[1] slice(row), slice={[1:2]}
  a = f32[] reshape(first)
  second = f32[1] slice(row), slice={[3:4]}
  b = f32[] reshape(second)
  scaled = f32[] multiply(a, x)
  ROOT y = f32[] add(scaled, b)
}

body {
  state = (s32[], f32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[] get-tuple-element(state), index=1
  row = f32[5] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[] call(row, x), to_apply=filter
  ROOT handed = (s32[], f32[], f32[5]) tuple(next, y, row)
}

condition {
  state = (s32[], f32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(3)
  ROOT goes_on = pred[] compare(i, limit), direction=LT
}

ENTRY main {
  table = f32[2,5] parameter(0)
  x = f32[] parameter(1)
  part = f32[1,5] slice(table), slice={[1:2], [0:5]}
  row = f32[5] reshape(part)
  zero = s32[] constant(0)
  init = (s32[], f32[], f32[5]) tuple(zero, x, row)
  loop = (s32[], f32[], f32[5]) while(init), condition=condition, body=body
  ROOT r = f32[] get-tuple-element(loop), index=1
}
""")
    table = np.array([[9, 9, 9, 9, 9], [7, 2, 7, 3, 7]], np.float32)
    # ((1 · 2 + 3) · 2 + 3) · 2 + 3
    assert hloexec.run(module, table, np.float32(1)) == 29
