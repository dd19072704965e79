"""The work of a program, beside what is counted by hand."""

from pathlib import Path

import pytest

import hloexec
from benchmarks.work import Work, last_cache_bytes, work_of

_PRODUCT = """HloModule m

ENTRY e {
  a = f32[8,16] parameter(0)
  b = f32[16,4] parameter(1)
  product = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,4] tanh(product)
}
"""

_LOOP = """HloModule m

body {
  state = (s32[], f32[32]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[32] get-tuple-element(state), index=1
  y = f32[32] cosine(x)
  ROOT after = (s32[], f32[32]) tuple(next, y)
}

condition {
  state = (s32[], f32[32]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  end = s32[] constant(20)
  ROOT go = pred[] compare(i, end), direction=LT
}

ENTRY e {
  x = f32[32] parameter(0)
  zero = s32[] constant(0)
  state = (s32[], f32[32]) tuple(zero, x)
  end = (s32[], f32[32]) while(state), condition=condition, body=body
  ROOT r = f32[32] get-tuple-element(end), index=1
}
"""

_UPDATES = """HloModule m

ENTRY e {
  x = f32[1000] parameter(0)
  at = s32[] parameter(1)
  part = f32[10] dynamic-slice(x, at), dynamic_slice_sizes={10}
  twice = f32[10] add(part, part)
  ROOT r = f32[1000] dynamic-update-slice(x, twice, at)
}
"""


def _work(text: str, cache_bytes: int = 1 << 30) -> Work:
    module = hloexec.parse(text)
    return work_of(module, hloexec.random_inputs(module), cache_bytes=cache_bytes)


def test_a_product_takes_two_operations_per_pair_and_a_function_one_per_element() -> None:
    moved = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert _work(_PRODUCT) == Work(bytes=moved, plan_bytes=moved, flops=2 * 8 * 16 * 4 + 8 * 4)


def test_a_value_between_two_steps_is_moved_by_the_plan_where_it_does_not_fit_into_the_cache() -> None:
    least = _work(_PRODUCT, cache_bytes=127)
    # The product's 128 bytes are written and read.
    assert least.plan_bytes == least.bytes + 2 * 4 * 8 * 4
    assert _work(_PRODUCT, cache_bytes=128).plan_bytes == least.bytes


def test_a_loop_counts_as_often_as_it_goes_round() -> None:
    # The cosine and the counter, and the condition once more often.
    assert _work(_LOOP).flops == 20 * (32 + 1) + 21
    assert _work(_LOOP).bytes == 2 * 4 * 32


def test_what_moves_elements_takes_no_operations_and_touches_no_more_than_it_moves() -> None:
    found = _work(_UPDATES)
    assert found.flops == 10
    assert found.bytes == 4 * (1000 + 1 + 1000)
    everything = _work(_UPDATES, cache_bytes=0)
    # The slice reads 10 elements of x and makes 10, the sum reads and makes 10, the update reads 10 and writes them, and
    # what says where is read twice and written once.
    assert everything.plan_bytes == max(found.bytes, 4 * (10 + 10 + 10 + 10 + 10 + 10 + 2))


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/cpu0/cache").is_dir(), reason="Linux tells of the caches there")
def test_the_last_cache_is_larger_than_the_first() -> None:
    assert last_cache_bytes() >= 1 << 18
