"""Loops whose bounds, steps and rows follow from sizes."""

from __future__ import annotations

from tests.shrinking.hand_made.making import module, number, text


@module({"n": 96, "m": 64}, {"n": 6, "m": 8})
def nested_loops(n: int, m: int) -> str:
    return text(
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
    return text(
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


@module({"n": 96}, {"n": 12})
def a_counter_steps_by_two(n: int) -> str:
    return _loop(n, 0, n, "LT", "2")


@module({"n": 96}, {"n": 12})
def a_counter_counts_down_to_zero(n: int) -> str:
    return _loop(n, n - 1, 0, "GE", "-1")


@module({"n": 96}, {"n": 12})
def a_counter_counts_down_from_the_size(n: int) -> str:
    return _loop(n, n, 0, "GT", "-1", at="less")


@module({"n": 96}, {"n": 12})
def a_counter_leaves_out_the_last(n: int) -> str:
    return _loop(n, 0, n - 1, "LT", "1")


@module({"n": 97}, {"n": 13})
def a_counter_of_a_prime(n: int) -> str:
    return _loop(n, 0, n, "NE", "1")


@module({"n": 96}, {"n": 12})
def a_mean_by_a_loop(n: int) -> str:
    end = f"""  c = f32[] constant({number(1 / n)})
  cs = f32[1,8] broadcast(c), dimensions={{}}
  ROOT r = f32[1,8] multiply(s, cs)"""
    return _loop(n, 0, n, "LT", "1", end=end)


@module({"n": 96}, {"n": 12})
def a_mean_by_a_loop_divided(n: int) -> str:
    end = f"""  c = f32[] constant({n})
  cs = f32[1,8] broadcast(c), dimensions={{}}
  ROOT r = f32[1,8] divide(s, cs)"""
    return _loop(n, 0, n, "LT", "1", end=end)
