"""Sums scaled by a factor that follows from a size: means, variances, norms, frequencies."""

from math import sqrt

import ml_dtypes
import numpy as np

from tests.shrinking.hand_made.making import ADD, module, number, text


def _scaled_sum(n: int, factor: str, operation: str = "multiply", kind: str = "f32") -> str:
    return text(
        f"""
  x = {kind}[8,{n}] parameter(0)
  zero = {kind}[] constant(0)
  s = {kind}[8] reduce(x, zero), dimensions={{1}}, to_apply=add
  c = {kind}[] constant({factor})
  cs = {kind}[8] broadcast(c), dimensions={{}}
  ROOT m = {kind}[8] {operation}(s, cs)""",
        ADD.replace("f32", kind),
    )


@module({"n": 96}, {"n": 12})
def a_mean_in_bf16(n: int) -> str:
    return _scaled_sum(n, number(1 / n, ml_dtypes.bfloat16), kind="bf16")


@module({"n": 96}, {"n": 12})
def a_mean_in_f64(n: int) -> str:
    return _scaled_sum(n, repr(1 / n), kind="f64")


@module({"n": 96}, {"n": 12})
def a_mean_divided(n: int) -> str:
    return _scaled_sum(n, str(n), "divide")


@module({"n": 96}, {"n": 12})
def a_mean_of_integers(n: int) -> str:
    return _scaled_sum(n, str(n), "divide", "s32")


@module({"n": 14}, {"n": 7})
def a_mean_of_few_integers(n: int) -> str:
    return _scaled_sum(n, str(n), "divide", "s32")


@module({"n": 96}, {"n": 12})
def an_unbiased_variance(n: int) -> str:
    return _scaled_sum(n, number(1 / (n - 1)))


@module({"n": 96}, {"n": 12})
def a_norm_by_the_root(n: int) -> str:
    return _scaled_sum(n, number(1 / sqrt(n)))


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_mean_over_two_dimensions(n: int, m: int) -> str:
    return text(
        f"""
  x = f32[{n},4,{m}] parameter(0)
  zero = f32[] constant(0)
  s = f32[4] reduce(x, zero), dimensions={{0,2}}, to_apply=add
  c = f32[] constant({number(1 / (n * m))})
  cs = f32[4] broadcast(c), dimensions={{}}
  ROOT r = f32[4] multiply(s, cs)""",
        ADD,
    )


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_mean_over_a_converted_count(n: int, m: int) -> str:
    return text(
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


@module({"n": 96}, {"n": 12})
def a_mean_over_a_converted_size(n: int) -> str:
    return text(
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


@module({"n": 24, "c": 64}, {"n": 6, "c": 8})
def a_mean_by_global_pooling(n: int, c: int) -> str:
    return text(
        f"""
  x = f32[2,{n},{n},{c}] parameter(0)
  zero = f32[] constant(0)
  s = f32[2,1,1,{c}] reduce-window(x, zero), window={{size=1x{n}x{n}x1}}, to_apply=add
  d = f32[] constant({n * n})
  ds = f32[2,1,1,{c}] broadcast(d), dimensions={{}}
  ROOT r = f32[2,1,1,{c}] divide(s, ds)""",
        ADD,
    )


@module({"n": 96}, {"n": 12})
def a_mean_of_running_sums(n: int) -> str:
    return text(
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


@module({"n": 16, "c": 96}, {"n": 8, "c": 12})
def a_convolution_scaled_by_its_features(n: int, c: int) -> str:
    return text(f"""
  x = f32[1,{n},{n},{c}] parameter(0)
  k = f32[3,3,{c},32] parameter(1)
  y = f32[1,{n - 2},{n - 2},32] convolution(x, k), window={{size=3x3}}, dim_labels=b01f_01io->b01f
  s = f32[] constant({number(1 / c)})
  ss = f32[1,{n - 2},{n - 2},32] broadcast(s), dimensions={{}}
  ROOT r = f32[1,{n - 2},{n - 2},32] multiply(y, ss)""")


@module({"n": 96}, {"n": 12})
def evenly_spaced_numbers(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n}] iota(), iota_dimension=0
  c = f32[] constant({number(1 / (n - 1))})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  t = f32[{n}] multiply(i, cs)
  ROOT r = f32[{n}] multiply(x, t)""")


@module({"n": 96}, {"n": 12})
def angles_of_a_circle(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  i = s32[{n}] iota(), iota_dimension=0
  f = f32[{n}] convert(i)
  c = f32[] constant({number(2 * np.pi / n)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  t = f32[{n}] multiply(f, cs)
  cos = f32[{n}] cosine(t)
  ROOT r = f32[{n}] multiply(x, cos)""")


@module({"n": 96}, {"n": 12})
def frequencies_of_positions(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  i = s32[{n // 2}] iota(), iota_dimension=0
  f = f32[{n // 2}] convert(i)
  c = f32[] constant({number(-np.log(10000) * 2 / n)})
  cs = f32[{n // 2}] broadcast(c), dimensions={{}}
  t = f32[{n // 2}] multiply(f, cs)
  e = f32[{n // 2}] exponential(t)
  both = f32[{n}] concatenate(e, e), dimensions={{0}}
  ROOT r = f32[{n}] multiply(x, both)""")


@module({"n": 96}, {"n": 12})
def frequencies_by_power(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n // 2}] iota(), iota_dimension=0
  c = f32[] constant({number(2 / n)})
  cs = f32[{n // 2}] broadcast(c), dimensions={{}}
  t = f32[{n // 2}] multiply(i, cs)
  base = f32[] constant(10000)
  bases = f32[{n // 2}] broadcast(base), dimensions={{}}
  e = f32[{n // 2}] power(bases, t)
  both = f32[{n}] concatenate(e, e), dimensions={{0}}
  ROOT r = f32[{n}] multiply(x, both)""")
