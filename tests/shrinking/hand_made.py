"""Small modules written for sizes by name: each is the same program at any sizes, so that shrinking the large one has to
give the small one, instruction by instruction and constant by constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import attrs
import ml_dtypes
import numpy as np

__all__ = ["MODULES", "HandMade"]

ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] add(x, y) }\n"
MAX = "max { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] maximum(x, y) }\n"


@attrs.frozen
class HandMade:
    """A module for sizes by name, with a large and a small set of them."""

    make: Callable[..., str]
    large: Mapping[str, int]
    small: Mapping[str, int]

    def at(self, sizes: Mapping[str, int]) -> str:
        return self.make(**sizes)


MODULES: dict[str, HandMade] = {}


def _module(large: dict[str, int], small: dict[str, int]) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def add(make: Callable[..., str]) -> Callable[..., str]:
        MODULES[make.__name__] = HandMade(make, large, small)
        return make

    return add


def _text(entry: str, computations: str = "") -> str:
    return f"HloModule m\n\n{computations}\nENTRY main {{\n{entry}\n}}\n"


def _number(value: float, kind: Any = np.float32) -> str:
    return repr(float(kind(value)))


# Loops.


@_module({"n": 96, "m": 64}, {"n": 6, "m": 8})
def nested_loops(n: int, m: int) -> str:
    return _text(
        f"""
  x = f32[{n},{m}] parameter(0)
  i = s32[] constant(0)
  zero = f32[] constant(0)
  t = (s32[], f32[{n},{m}], f32[]) tuple(i, x, zero)
  w = (s32[], f32[{n},{m}], f32[]) while(t), condition=outer_condition, body=outer_body, backend_config={{"known_trip_count":{{"n":"{n}"}}}}
  ROOT r = f32[] get-tuple-element(w), index=2""",
        f"""
inner_body {{
  p = (s32[], s32[], f32[{n},{m}], f32[]) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  i = s32[] get-tuple-element(p), index=1
  x = f32[{n},{m}] get-tuple-element(p), index=2
  s = f32[] get-tuple-element(p), index=3
  e = f32[1,1] dynamic-slice(x, i, j), dynamic_slice_sizes={{1,1}}
  f = f32[] reshape(e)
  half = f32[] constant(0.5)
  hs = f32[] multiply(s, half)
  sum2 = f32[] add(hs, f)
  one = s32[] constant(1)
  j2 = s32[] add(j, one)
  ROOT t = (s32[], s32[], f32[{n},{m}], f32[]) tuple(j2, i, x, sum2)
}}
inner_condition {{
  p = (s32[], s32[], f32[{n},{m}], f32[]) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  n = s32[] constant({m})
  ROOT r = pred[] compare(j, n), direction=LT
}}
outer_body {{
  p = (s32[], f32[{n},{m}], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[{n},{m}] get-tuple-element(p), index=1
  s = f32[] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  t = (s32[], s32[], f32[{n},{m}], f32[]) tuple(zero, i, x, s)
  w = (s32[], s32[], f32[{n},{m}], f32[]) while(t), condition=inner_condition, body=inner_body, backend_config={{"known_trip_count":{{"n":"{m}"}}}}
  sum2 = f32[] get-tuple-element(w), index=3
  one = s32[] constant(1)
  i2 = s32[] add(i, one)
  ROOT u = (s32[], f32[{n},{m}], f32[]) tuple(i2, x, sum2)
}}
outer_condition {{
  p = (s32[], f32[{n},{m}], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({n})
  ROOT r = pred[] compare(i, n), direction=LT
}}
""",
    )


def _loop(n: int, first: int, last: int, direction: str, step: str, at: str = "i", end: str = "") -> str:
    """A loop that adds rows of an array; `at` is the row."""
    return _text(
        f"""
  x = f32[{n},8] parameter(0)
  y = f32[1,8] parameter(1)
  i = s32[] constant({first})
  t = (s32[], f32[{n},8], f32[1,8]) tuple(i, x, y)
  w = (s32[], f32[{n},8], f32[1,8]) while(t), condition=condition, body=body
  s = f32[1,8] get-tuple-element(w), index=2
{end or "  ROOT r = f32[1,8] negate(s)"}""",
        f"""
body {{
  p = (s32[], f32[{n},8], f32[1,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[{n},8] get-tuple-element(p), index=1
  s = f32[1,8] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  less = s32[] subtract(i, one)
  e = f32[1,8] dynamic-slice(x, {at}, zero), dynamic_slice_sizes={{1,8}}
  sum2 = f32[1,8] add(s, e)
  step = s32[] constant({step})
  j = s32[] add(i, step)
  ROOT t = (s32[], f32[{n},8], f32[1,8]) tuple(j, x, sum2)
}}
condition {{
  p = (s32[], f32[{n},8], f32[1,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({last})
  ROOT r = pred[] compare(i, n), direction={direction}
}}
""",
    )


@_module({"n": 96}, {"n": 12})
def a_counter_steps_by_two(n: int) -> str:
    return _loop(n, 0, n, "LT", "2")


@_module({"n": 96}, {"n": 12})
def a_counter_counts_down_to_zero(n: int) -> str:
    return _loop(n, n - 1, 0, "GE", "-1")


@_module({"n": 96}, {"n": 12})
def a_counter_counts_down_from_the_size(n: int) -> str:
    return _loop(n, n, 0, "GT", "-1", at="less")


@_module({"n": 96}, {"n": 12})
def a_counter_leaves_out_the_last(n: int) -> str:
    return _loop(n, 0, n - 1, "LT", "1")


@_module({"n": 97}, {"n": 13})
def a_counter_of_a_prime(n: int) -> str:
    return _loop(n, 0, n, "NE", "1")


@_module({"n": 96}, {"n": 12})
def a_mean_by_a_loop(n: int) -> str:
    end = f"""  c = f32[] constant({_number(1 / n)})
  cs = f32[1,8] broadcast(c), dimensions={{}}
  ROOT r = f32[1,8] multiply(s, cs)"""
    return _loop(n, 0, n, "LT", "1", end=end)


@_module({"n": 96}, {"n": 12})
def a_mean_by_a_loop_divided(n: int) -> str:
    end = f"""  c = f32[] constant({n})
  cs = f32[1,8] broadcast(c), dimensions={{}}
  ROOT r = f32[1,8] divide(s, cs)"""
    return _loop(n, 0, n, "LT", "1", end=end)


# Factors.


def _scaled_sum(n: int, factor: str, operation: str = "multiply", kind: str = "f32") -> str:
    return _text(
        f"""
  x = {kind}[8,{n}] parameter(0)
  zero = {kind}[] constant(0)
  s = {kind}[8] reduce(x, zero), dimensions={{1}}, to_apply=add
  c = {kind}[] constant({factor})
  cs = {kind}[8] broadcast(c), dimensions={{}}
  ROOT m = {kind}[8] {operation}(s, cs)""",
        ADD.replace("f32", kind),
    )


@_module({"n": 96}, {"n": 12})
def a_mean_in_bf16(n: int) -> str:
    return _scaled_sum(n, _number(1 / n, ml_dtypes.bfloat16), kind="bf16")


@_module({"n": 96}, {"n": 12})
def a_mean_in_f64(n: int) -> str:
    return _scaled_sum(n, repr(1 / n), kind="f64")


@_module({"n": 96}, {"n": 12})
def a_mean_divided(n: int) -> str:
    return _scaled_sum(n, str(n), "divide")


@_module({"n": 96}, {"n": 12})
def a_mean_of_integers(n: int) -> str:
    return _scaled_sum(n, str(n), "divide", "s32")


@_module({"n": 14}, {"n": 7})
def a_mean_of_few_integers(n: int) -> str:
    return _scaled_sum(n, str(n), "divide", "s32")


@_module({"n": 96}, {"n": 12})
def an_unbiased_variance(n: int) -> str:
    return _scaled_sum(n, _number(1 / (n - 1)))


@_module({"n": 96}, {"n": 12})
def a_norm_by_the_root(n: int) -> str:
    return _scaled_sum(n, _number(1 / sqrt(n)))


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_mean_over_two_dimensions(n: int, m: int) -> str:
    return _text(
        f"""
  x = f32[{n},4,{m}] parameter(0)
  zero = f32[] constant(0)
  s = f32[4] reduce(x, zero), dimensions={{0,2}}, to_apply=add
  c = f32[] constant({_number(1 / (n * m))})
  cs = f32[4] broadcast(c), dimensions={{}}
  ROOT r = f32[4] multiply(s, cs)""",
        ADD,
    )


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_mean_over_a_converted_count(n: int, m: int) -> str:
    return _text(
        f"""
  x = f32[{n},4,{m}] parameter(0)
  zero = f32[] constant(0)
  s = f32[4] reduce(x, zero), dimensions={{0,2}}, to_apply=add
  c = s32[] constant({n * m})
  f = f32[] convert(c)
  cs = f32[4] broadcast(f), dimensions={{}}
  ROOT r = f32[4] divide(s, cs)""",
        ADD,
    )


@_module({"n": 96}, {"n": 12})
def a_mean_over_a_converted_size(n: int) -> str:
    return _text(
        f"""
  x = f32[4,{n}] parameter(0)
  zero = f32[] constant(0)
  s = f32[4] reduce(x, zero), dimensions={{1}}, to_apply=add
  c = s64[] constant({n})
  f = f32[] convert(c)
  one = f32[] constant(1)
  inverse = f32[] divide(one, f)
  cs = f32[4] broadcast(inverse), dimensions={{}}
  ROOT r = f32[4] multiply(s, cs)""",
        ADD,
    )


@_module({"n": 24, "c": 64}, {"n": 6, "c": 8})
def a_mean_by_global_pooling(n: int, c: int) -> str:
    return _text(
        f"""
  x = f32[2,{n},{n},{c}] parameter(0)
  zero = f32[] constant(0)
  s = f32[2,1,1,{c}] reduce-window(x, zero), window={{size=1x{n}x{n}x1}}, to_apply=add
  d = f32[] constant({n * n})
  ds = f32[2,1,1,{c}] broadcast(d), dimensions={{}}
  ROOT r = f32[2,1,1,{c}] divide(s, ds)""",
        ADD,
    )


@_module({"n": 96}, {"n": 12})
def a_mean_of_running_sums(n: int) -> str:
    return _text(
        f"""
  x = f32[{n}] parameter(0)
  zero = f32[] constant(0)
  s = f32[{n}] reduce-window(x, zero), window={{size={n} pad={n - 1}_0}}, to_apply=add
  last = f32[1] slice(s), slice={{[{n - 1}:{n}]}}
  d = f32[] constant({n})
  ds = f32[1] broadcast(d), dimensions={{}}
  ROOT r = f32[1] divide(last, ds)""",
        ADD,
    )


@_module({"n": 16, "c": 96}, {"n": 8, "c": 12})
def a_convolution_scaled_by_its_features(n: int, c: int) -> str:
    return _text(f"""
  x = f32[1,{n},{n},{c}] parameter(0)
  k = f32[3,3,{c},32] parameter(1)
  y = f32[1,{n - 2},{n - 2},32] convolution(x, k), window={{size=3x3}}, dim_labels=b01f_01io->b01f
  s = f32[] constant({_number(1 / c)})
  ss = f32[1,{n - 2},{n - 2},32] broadcast(s), dimensions={{}}
  ROOT r = f32[1,{n - 2},{n - 2},32] multiply(y, ss)""")


@_module({"n": 96}, {"n": 12})
def evenly_spaced_numbers(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n}] iota(), iota_dimension=0
  c = f32[] constant({_number(1 / (n - 1))})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  t = f32[{n}] multiply(i, cs)
  ROOT r = f32[{n}] multiply(x, t)""")


@_module({"n": 96}, {"n": 12})
def angles_of_a_circle(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  i = s32[{n}] iota(), iota_dimension=0
  f = f32[{n}] convert(i)
  c = f32[] constant({_number(2 * np.pi / n)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  t = f32[{n}] multiply(f, cs)
  cos = f32[{n}] cosine(t)
  ROOT r = f32[{n}] multiply(x, cos)""")


@_module({"n": 96}, {"n": 12})
def frequencies_of_positions(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  i = s32[{n // 2}] iota(), iota_dimension=0
  f = f32[{n // 2}] convert(i)
  c = f32[] constant({_number(-np.log(10000) * 2 / n)})
  cs = f32[{n // 2}] broadcast(c), dimensions={{}}
  t = f32[{n // 2}] multiply(f, cs)
  e = f32[{n // 2}] exponential(t)
  both = f32[{n}] concatenate(e, e), dimensions={{0}}
  ROOT r = f32[{n}] multiply(x, both)""")


@_module({"n": 96}, {"n": 12})
def frequencies_by_power(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n // 2}] iota(), iota_dimension=0
  c = f32[] constant({_number(2 / n)})
  cs = f32[{n // 2}] broadcast(c), dimensions={{}}
  t = f32[{n // 2}] multiply(i, cs)
  base = f32[] constant(10000)
  bases = f32[{n // 2}] broadcast(base), dimensions={{}}
  e = f32[{n // 2}] power(bases, t)
  both = f32[{n}] concatenate(e, e), dimensions={{0}}
  ROOT r = f32[{n}] multiply(x, both)""")


# Positions.


@_module({"n": 96}, {"n": 12})
def a_mask_of_one_half(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  i = s32[4,{n}] iota(), iota_dimension=1
  h = s32[] constant({n // 2})
  hs = s32[4,{n}] broadcast(h), dimensions={{}}
  p = pred[4,{n}] compare(i, hs), direction=LT
  y = f32[4,{n}] negate(x)
  ROOT r = f32[4,{n}] select(p, x, y)""")


@_module({"n": 96}, {"n": 12})
def a_mask_in_f32(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  i = f32[4,{n}] iota(), iota_dimension=1
  h = f32[] constant({n // 2})
  hs = f32[4,{n}] broadcast(h), dimensions={{}}
  p = pred[4,{n}] compare(i, hs), direction=LT
  y = f32[4,{n}] negate(x)
  ROOT r = f32[4,{n}] select(p, x, y)""")


@_module({"n": 96}, {"n": 12})
def reversed_positions(n: int) -> str:
    return _text(f"""
  x = f32[{n},4] parameter(0)
  i = s32[{n}] iota(), iota_dimension=0
  last = s32[] constant({n - 1})
  lasts = s32[{n}] broadcast(last), dimensions={{}}
  j = s32[{n}] subtract(lasts, i)
  c = s32[{n},1] reshape(j)
  ROOT r = f32[{n},4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@_module({"n": 64}, {"n": 16})
def a_power_of_two_as_a_mask(n: int) -> str:
    return _text(f"""
  x = f32[{n},4] parameter(0)
  k = s32[8] parameter(1)
  m = s32[] constant({n - 1})
  ms = s32[8] broadcast(m), dimensions={{}}
  j = s32[8] and(k, ms)
  c = s32[8,1] reshape(j)
  ROOT r = f32[8,4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@_module({"n": 16}, {"n": 8})
def a_small_power_of_two_as_a_mask(n: int) -> str:
    return a_power_of_two_as_a_mask(n)


@_module({"n": 96}, {"n": 12})
def positions_modulo_the_size(n: int) -> str:
    return _text(f"""
  x = f32[{n},4] parameter(0)
  k = s32[8] parameter(1)
  m = s32[] constant({n})
  ms = s32[8] broadcast(m), dimensions={{}}
  j = s32[8] remainder(k, ms)
  c = s32[8,1] reshape(j)
  ROOT r = f32[8,4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def rows_and_columns_of_flat_positions(n: int, m: int) -> str:
    return _text(f"""
  x = f32[{n},{m}] parameter(0)
  flat = f32[{n * m}] reshape(x)
  i = s32[{n * m}] iota(), iota_dimension=0
  m = s32[] constant({m})
  ms = s32[{n * m}] broadcast(m), dimensions={{}}
  row = s32[{n * m}] divide(i, ms)
  column = s32[{n * m}] remainder(i, ms)
  p = pred[{n * m}] compare(row, column), direction=GE
  y = f32[{n * m}] negate(flat)
  ROOT r = f32[{n * m}] select(p, flat, y)""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def flat_positions_of_rows_and_columns(n: int, m: int) -> str:
    return _text(f"""
  x = f32[{n},{m}] parameter(0)
  rows = s32[8] parameter(1)
  columns = s32[8] parameter(2)
  flat = f32[{n * m}] reshape(x)
  m = s32[] constant({m})
  ms = s32[8] broadcast(m), dimensions={{}}
  start = s32[8] multiply(rows, ms)
  at = s32[8] add(start, columns)
  c = s32[8,1] reshape(at)
  ROOT r = f32[8] gather(flat, c), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def keys_that_order_rows_and_columns(n: int, m: int) -> str:
    return _text(
        f"""
  x = f32[{n},{m}] parameter(0)
  i = s32[{n},{m}] iota(), iota_dimension=0
  j = s32[{n},{m}] iota(), iota_dimension=1
  m = s32[] constant({m})
  ms = s32[{n},{m}] broadcast(m), dimensions={{}}
  k = s32[{n},{m}] multiply(i, ms)
  key = s32[{n},{m}] add(k, j)
  f = f32[{n},{m}] convert(key)
  ROOT y = f32[{n},{m}] multiply(x, f)"""
    )


@_module({"n": 96}, {"n": 12})
def negative_indices_wrap(n: int) -> str:
    return _text(f"""
  x = f32[{n},4] parameter(0)
  k = s32[8] parameter(1)
  zero = s32[] constant(0)
  zeros = s32[8] broadcast(zero), dimensions={{}}
  p = pred[8] compare(k, zeros), direction=LT
  m = s32[] constant({n})
  ms = s32[8] broadcast(m), dimensions={{}}
  w = s32[8] add(k, ms)
  j = s32[8] select(p, w, k)
  c = s32[8,1] reshape(j)
  ROOT r = f32[8,4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@_module({"n": 96}, {"n": 12})
def the_last_four_by_dynamic_slice(n: int) -> str:
    return _text(f"""
  x = f32[{n},8] parameter(0)
  start = s32[] constant({n - 4})
  zero = s32[] constant(0)
  ROOT r = f32[4,8] dynamic-slice(x, start, zero), dynamic_slice_sizes={{4,8}}""")


@_module({"n": 96}, {"n": 12})
def a_clamped_start(n: int) -> str:
    return _text(f"""
  x = f32[{n},8] parameter(0)
  start = s32[] parameter(1)
  zero = s32[] constant(0)
  last = s32[] constant({n - 4})
  s = s32[] clamp(zero, start, last)
  ROOT r = f32[4,8] dynamic-slice(x, s, zero), dynamic_slice_sizes={{4,8}}""")


@_module({"n": 96}, {"n": 12})
def an_update_at_the_end(n: int) -> str:
    return _text(f"""
  x = f32[{n},8] parameter(0)
  u = f32[1,8] parameter(1)
  start = s32[] constant({n - 1})
  zero = s32[] constant(0)
  ROOT r = f32[{n},8] dynamic-update-slice(x, u, start, zero)""")


@_module({"n": 96, "m": 40}, {"n": 12, "m": 8})
def windows_of_a_gather(n: int, m: int) -> str:
    return _text(f"""
  x = f32[{n},{m}] parameter(0)
  k = s32[5,2] parameter(1)
  ROOT r = f32[5,2,{m}] gather(x, k), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{2,{m}}}""")


@_module({"n": 96, "m": 40}, {"n": 12, "m": 8})
def windows_of_a_scatter(n: int, m: int) -> str:
    return _text(
        f"""
  x = f32[{n},{m}] parameter(0)
  k = s32[5,1] parameter(1)
  u = f32[5,2,{m}] parameter(2)
  ROOT r = f32[{n},{m}] scatter(x, k, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add""",
        ADD,
    )


# Parts.


@_module({"n": 96}, {"n": 12})
def halves_change_places(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  a = f32[4,{n // 2}] slice(x), slice={{[0:4],[0:{n // 2}]}}
  b = f32[4,{n // 2}] slice(x), slice={{[0:4],[{n // 2}:{n}]}}
  c = f32[4,{n // 2}] negate(b)
  ROOT r = f32[4,{n}] concatenate(c, a), dimensions={{1}}""")


@_module({"n": 96}, {"n": 12})
def every_second_element(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  a = f32[4,{n // 2}] slice(x), slice={{[0:4],[0:{n}:2]}}
  b = f32[4,{n // 2}] slice(x), slice={{[0:4],[1:{n}:2]}}
  z = f32[] constant(0)
  pa = f32[4,{n}] pad(a, z), padding=0_0x0_1_1
  pb = f32[4,{n}] pad(b, z), padding=0_0x1_0_1
  ROOT r = f32[4,{n}] add(pa, pb)""")


@_module({"n": 96}, {"n": 12})
def differences_of_neighbours(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  a = f32[{n - 1}] slice(x), slice={{[1:{n}]}}
  b = f32[{n - 1}] slice(x), slice={{[0:{n - 1}]}}
  d = f32[{n - 1}] subtract(a, b)
  z = f32[] constant(0)
  ROOT r = f32[{n}] pad(d, z), padding=0_1""")


@_module({"n": 12}, {"n": 6})
def differences_of_few_neighbours(n: int) -> str:
    return differences_of_neighbours(n)


@_module({"n": 96}, {"n": 16})
def the_last_three_are_left_out(n: int) -> str:
    return _text(f"""
  x = f32[{n}] parameter(0)
  y = f32[{n - 5}] slice(x), slice={{[2:{n - 3}]}}
  z = f32[] constant(0)
  ROOT r = f32[{n}] pad(y, z), padding=2_3""")


@_module({"n": 96}, {"n": 12})
def a_cache_that_moves_on(n: int) -> str:
    return _text(f"""
  x = f32[{n},8] parameter(0)
  u = f32[1,8] parameter(1)
  old = f32[{n - 1},8] slice(x), slice={{[1:{n}],[0:8]}}
  ROOT r = f32[{n},8] concatenate(old, u), dimensions={{0}}""")


@_module({"n": 96}, {"n": 12})
def the_last_one_but_one(n: int) -> str:
    return _text(f"""
  x = f32[{n},8] parameter(0)
  a = f32[1,8] slice(x), slice={{[{n - 2}:{n - 1}],[0:8]}}
  b = f32[1,8] slice(x), slice={{[{n - 1}:{n}],[0:8]}}
  ROOT r = f32[1,8] add(a, b)""")


# Reshapes.


@_module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def three_dimensions_become_one(a: int, b: int, c: int) -> str:
    return _text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  flat = f32[{a * b * c}] reshape(x)
  n = f32[{a * b * c}] negate(flat)
  ROOT r = f32[{a},{b},{c}] reshape(n)""")


@_module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def the_middle_joins_either_side(a: int, b: int, c: int) -> str:
    return _text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  y = f32[{a * b},{c}] reshape(x)
  n = f32[{a * b},{c}] negate(y)
  ROOT r = f32[{a},{b * c}] reshape(n)""")


@_module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def a_flat_array_is_split_in_two_ways(a: int, b: int, c: int) -> str:
    return _text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  flat = f32[{a * b * c}] reshape(x)
  n = f32[{a * b * c}] negate(flat)
  y = f32[{a * b},{c}] reshape(n)
  z = f32[{a},{b * c}] reshape(n)
  ROOT r = (f32[{a * b},{c}], f32[{a},{b * c}]) tuple(y, z)""")


@_module({"n": 96, "h": 8}, {"n": 24, "h": 8})
def heads_are_split_and_merged(n: int, h: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  s = f32[4,{h},{n // h}] reshape(x)
  t = f32[{h},4,{n // h}] transpose(s), dimensions={{1,0,2}}
  u = f32[4,{h},{n // h}] transpose(t), dimensions={{1,0,2}}
  ROOT r = f32[4,{n}] reshape(u)""")


@_module({"n": 96}, {"n": 12})
def a_dimension_of_one_and_of_none(n: int) -> str:
    return _text(f"""
  x = f32[1,{n},0] parameter(0)
  y = f32[{n},1] parameter(1)
  z = f32[] constant(0)
  p = f32[1,{n},1] pad(x, z), padding=0_0x0_0x0_1
  q = f32[{n},1] reshape(p)
  ROOT r = f32[{n},1] add(q, y)""")


# Windows.


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_dilated_convolution_in_groups(n: int, c: int) -> str:
    return _text(f"""
  x = f32[2,{n},{c}] parameter(0)
  k = f32[3,{c // 4},{2 * c}] parameter(1)
  ROOT y = f32[2,{n},{2 * c}] convolution(x, k), window={{size=3 pad=2_2 rhs_dilate=2}}, dim_labels=b0f_0io->b0f, feature_group_count=4""")


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_transposed_convolution(n: int, c: int) -> str:
    return _text(f"""
  x = f32[2,{n},{c}] parameter(0)
  k = f32[4,{c},16] parameter(1)
  ROOT y = f32[2,{2 * n},16] convolution(x, k), window={{size=4 pad=2_2 lhs_dilate=2}}, dim_labels=b0f_0io->b0f""")


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def same_padding_with_a_stride(n: int, c: int) -> str:
    return _text(
        f"""
  x = f32[2,{n},{c}] parameter(0)
  z = f32[] constant(-inf)
  ROOT y = f32[2,{n // 2},{c}] reduce-window(x, z), window={{size=1x3x1 stride=1x2x1 pad=0_0x0_1x0_0}}, to_apply=max""",
        MAX,
    )


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def patches_as_a_strided_convolution(n: int, c: int) -> str:
    return _text(f"""
  x = f32[2,{n},{n},3] parameter(0)
  k = f32[4,4,3,{c}] parameter(1)
  y = f32[2,{n // 4},{n // 4},{c}] convolution(x, k), window={{size=4x4 stride=4x4}}, dim_labels=b01f_01io->b01f
  ROOT t = f32[2,{n // 4 * (n // 4)},{c}] reshape(y)""")


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_gradient_of_pooling(n: int, c: int) -> str:
    return _text(
        f"""
  x = f32[2,{n},{c}] parameter(0)
  g = f32[2,{n // 2},{c}] parameter(1)
  z = f32[] constant(0)
  ROOT y = f32[2,{n},{c}] select-and-scatter(x, g, z), window={{size=1x2x1 stride=1x2x1}}, select=ge, scatter=add""",
        ADD + "ge { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = pred[] compare(x, y), direction=GE }\n",
    )


@_module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_gradient_in_batch_groups(n: int, c: int) -> str:
    return _text(f"""
  x = f32[{c},{n},2] parameter(0)
  g = f32[2,{n},{c}] parameter(1)
  ROOT y = f32[1,3,{c}] convolution(x, g), window={{size={n} pad=1_1}}, dim_labels=b0f_i0o->b0f, batch_group_count={c}""")


# Others.


@_module({"n": 96}, {"n": 12})
def a_transform_of_reals_and_back(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  f = c64[4,{n // 2 + 1}] fft(x), fft_type=RFFT, fft_length={{{n}}}
  ROOT y = f32[4,{n}] fft(f), fft_type=IRFFT, fft_length={{{n}}}""")


@_module({"n": 96, "m": 64}, {"n": 12, "m": 16})
def a_transform_of_a_plane_scaled(n: int, m: int) -> str:
    return _text(f"""
  x = c64[{n},{m}] parameter(0)
  f = c64[{n},{m}] fft(x), fft_type=FFT, fft_length={{{n},{m}}}
  s = f32[] constant({_number(1 / (n * m))})
  c = c64[] convert(s)
  cs = c64[{n},{m}] broadcast(c), dimensions={{}}
  ROOT y = c64[{n},{m}] multiply(f, cs)""")


@_module({"n": 96}, {"n": 12})
def sorted_positions(n: int) -> str:
    return _text(
        f"""
  x = f32[{n}] parameter(0)
  w = f32[{n},4] parameter(1)
  i = s32[{n}] iota(), iota_dimension=0
  s = (f32[{n}], s32[{n}]) sort(x, i), dimensions={{0}}, to_apply=lt
  o = s32[{n}] get-tuple-element(s), index=1
  last = s32[] constant({n - 1})
  lasts = s32[{n}] broadcast(last), dimensions={{}}
  b = s32[{n}] subtract(lasts, o)
  c = s32[{n},1] reshape(b)
  ROOT r = f32[{n},4] gather(w, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""",
        """lt {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT z = pred[] compare(x, y), direction=LT
}
""",
    )


@_module({"n": 96}, {"n": 12})
def the_best_three(n: int) -> str:
    return _text(f"""
  x = f32[4,{n}] parameter(0)
  t = (f32[4,3], s32[4,3]) topk(x), k=3
  k = s32[4,3] get-tuple-element(t), index=1
  last = s32[] constant({n - 1})
  lasts = s32[4,3] broadcast(last), dimensions={{}}
  ROOT r = s32[4,3] subtract(lasts, k)""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def random_bits_in_halves(n: int, m: int) -> str:
    return _text(f"""
  state = u64[2] parameter(0)
  x = u32[{n},{m}] parameter(1)
  b = (u64[2], u32[{n},{m}]) rng-bit-generator(state), algorithm=rng_three_fry
  g = u32[{n},{m}] get-tuple-element(b), index=1
  u = u32[{n},{m}] add(g, x)
  ROOT h = u32[{n // 2},{m}] slice(u), slice={{[0:{n // 2}],[0:{m}]}}""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def branches_with_operands_of_their_own(n: int, m: int) -> str:
    return _text(
        f"""
  p = pred[] parameter(0)
  x = f32[{n}] parameter(1)
  y = f32[{m},{n}] parameter(2)
  ROOT r = f32[{n}] conditional(p, x, y), true_computation=first, false_computation=second""",
        ADD
        + f"""first {{
  x = f32[{n}] parameter(0)
  ROOT r = f32[{n}] negate(x)
}}
second {{
  y = f32[{m},{n}] parameter(0)
  z = f32[] constant(0)
  s = f32[{n}] reduce(y, z), dimensions={{0}}, to_apply=add
  c = f32[] constant({_number(1 / m)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  ROOT r = f32[{n}] multiply(s, cs)
}}
""",
    )


@_module({"n": 96}, {"n": 12})
def a_call_that_runs_beside(n: int) -> str:
    return _text(
        f"""
  x = f32[8,{n}] parameter(0)
  s = ((f32[8,{n}]), f32[8], u32[]) async-start(x), calls=summed
  y = f32[8] async-done(s)
  c = f32[] constant({_number(1 / n)})
  cs = f32[8] broadcast(c), dimensions={{}}
  ROOT r = f32[8] multiply(y, cs)""",
        ADD
        + f"""summed {{
  x = f32[8,{n}] parameter(0)
  z = f32[] constant(0)
  ROOT s = f32[8] reduce(x, z), dimensions={{1}}, to_apply=add
}}
""",
    )


@_module({"n": 96, "m": 64}, {"n": 12, "m": 8})
def nested_state(n: int, m: int) -> str:
    state = f"((s32[], f32[{n},{m}]), (f32[{m}], f32[]))"
    return _text(
        f"""
  x = f32[{n},{m}] parameter(0)
  y = f32[{m}] parameter(1)
  i = s32[] constant(0)
  c = f32[] constant({_number(1 / n)})
  a = (s32[], f32[{n},{m}]) tuple(i, x)
  b = (f32[{m}], f32[]) tuple(y, c)
  t = {state} tuple(a, b)
  w = {state} while(t), condition=condition, body=body
  q = (f32[{m}], f32[]) get-tuple-element(w), index=1
  s = f32[{m}] get-tuple-element(q), index=0
  d = f32[] get-tuple-element(q), index=1
  ds = f32[{m}] broadcast(d), dimensions={{}}
  ROOT r = f32[{m}] multiply(s, ds)""",
        f"""
body {{
  p = {state} parameter(0)
  a = (s32[], f32[{n},{m}]) get-tuple-element(p), index=0
  b = (f32[{m}], f32[]) get-tuple-element(p), index=1
  i = s32[] get-tuple-element(a), index=0
  x = f32[{n},{m}] get-tuple-element(a), index=1
  s = f32[{m}] get-tuple-element(b), index=0
  c = f32[] get-tuple-element(b), index=1
  zero = s32[] constant(0)
  e = f32[1,{m}] dynamic-slice(x, i, zero), dynamic_slice_sizes={{1,{m}}}
  f = f32[{m}] reshape(e)
  sum2 = f32[{m}] add(s, f)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  a2 = (s32[], f32[{n},{m}]) tuple(j, x)
  b2 = (f32[{m}], f32[]) tuple(sum2, c)
  ROOT t = {state} tuple(a2, b2)
}}
condition {{
  p = {state} parameter(0)
  a = (s32[], f32[{n},{m}]) get-tuple-element(p), index=0
  i = s32[] get-tuple-element(a), index=0
  n = s32[] constant({n})
  ROOT r = pred[] compare(i, n), direction=LT
}}
""",
    )


@_module({"n": 96}, {"n": 12})
def an_integer_sum_over_positions(n: int) -> str:
    """Gauss's sum is n (n - 1) / 2, and the middle (n - 1) / 2."""
    return _text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n}] iota(), iota_dimension=0
  c = f32[] constant({_number((n - 1) / 2)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  d = f32[{n}] subtract(i, cs)
  ROOT r = f32[{n}] multiply(x, d)""")


@_module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_sum_that_a_dot_makes(n: int, m: int) -> str:
    return _text(f"""
  x = f32[{m},{n}] parameter(0)
  one = f32[] constant(1)
  ones = f32[{n}] broadcast(one), dimensions={{}}
  s = f32[{m}] dot(x, ones), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  c = f32[] constant({n})
  cs = f32[{m}] broadcast(c), dimensions={{}}
  ROOT r = f32[{m}] divide(s, cs)""")


@_module({"n": 96}, {"n": 12})
def a_shift_by_one_half(n: int) -> str:
    return _text(f"""
  x = f32[{n},4] parameter(0)
  i = s32[{n}] iota(), iota_dimension=0
  h = s32[] constant({n // 2})
  hs = s32[{n}] broadcast(h), dimensions={{}}
  a = s32[{n}] add(i, hs)
  m = s32[] constant({n})
  ms = s32[{n}] broadcast(m), dimensions={{}}
  j = s32[{n}] remainder(a, ms)
  c = s32[{n},1] reshape(j)
  ROOT r = f32[{n},4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")
