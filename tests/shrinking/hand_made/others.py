"""Transforms, sorts, random bits, branches, calls and nested state."""

from tests.shrinking.hand_made.making import ADD, module, number, text


@module({"n": 96}, {"n": 12})
def a_transform_of_reals_and_back(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  f = c64[4,{n // 2 + 1}] fft(x), fft_type=RFFT, fft_length={{{n}}}
  ROOT y = f32[4,{n}] fft(f), fft_type=IRFFT, fft_length={{{n}}}""")


@module({"n": 96, "m": 64}, {"n": 12, "m": 16})
def a_transform_of_a_plane_scaled(n: int, m: int) -> str:
    return text(f"""
  x = c64[{n},{m}] parameter(0)
  f = c64[{n},{m}] fft(x), fft_type=FFT, fft_length={{{n},{m}}}
  s = f32[] constant({number(1 / (n * m))})
  c = c64[] convert(s)
  cs = c64[{n},{m}] broadcast(c), dimensions={{}}
  ROOT y = c64[{n},{m}] multiply(f, cs)""")


@module({"n": 96}, {"n": 12})
def sorted_positions(n: int) -> str:
    return text(
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


@module({"n": 96}, {"n": 12})
def the_best_three(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  t = (f32[4,3], s32[4,3]) topk(x), k=3
  k = s32[4,3] get-tuple-element(t), index=1
  last = s32[] constant({n - 1})
  lasts = s32[4,3] broadcast(last), dimensions={{}}
  ROOT r = s32[4,3] subtract(lasts, k)""")


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def random_bits_in_halves(n: int, m: int) -> str:
    return text(f"""
  state = u64[2] parameter(0)
  x = u32[{n},{m}] parameter(1)
  b = (u64[2], u32[{n},{m}]) rng-bit-generator(state), algorithm=rng_three_fry
  g = u32[{n},{m}] get-tuple-element(b), index=1
  u = u32[{n},{m}] add(g, x)
  ROOT h = u32[{n // 2},{m}] slice(u), slice={{[0:{n // 2}],[0:{m}]}}""")


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def branches_with_operands_of_their_own(n: int, m: int) -> str:
    return text(
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
  c = f32[] constant({number(1 / m)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  ROOT r = f32[{n}] multiply(s, cs)
}}
""",
    )


@module({"n": 96}, {"n": 12})
def a_call_that_runs_beside(n: int) -> str:
    return text(
        f"""
  x = f32[8,{n}] parameter(0)
  s = ((f32[8,{n}]), f32[8], u32[]) async-start(x), calls=summed
  y = f32[8] async-done(s)
  c = f32[] constant({number(1 / n)})
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


@module({"n": 96, "m": 64}, {"n": 12, "m": 8})
def nested_state(n: int, m: int) -> str:
    state = f"((s32[], f32[{n},{m}]), (f32[{m}], f32[]))"
    return text(
        f"""
  x = f32[{n},{m}] parameter(0)
  y = f32[{m}] parameter(1)
  i = s32[] constant(0)
  c = f32[] constant({number(1 / n)})
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


@module({"n": 96}, {"n": 12})
def an_integer_sum_over_positions(n: int) -> str:
    """Gauss's sum is n (n - 1) / 2, and the middle (n - 1) / 2."""
    return text(f"""
  x = f32[{n}] parameter(0)
  i = f32[{n}] iota(), iota_dimension=0
  c = f32[] constant({number((n - 1) / 2)})
  cs = f32[{n}] broadcast(c), dimensions={{}}
  d = f32[{n}] subtract(i, cs)
  ROOT r = f32[{n}] multiply(x, d)""")


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def a_sum_that_a_dot_makes(n: int, m: int) -> str:
    return text(f"""
  x = f32[{m},{n}] parameter(0)
  one = f32[] constant(1)
  ones = f32[{n}] broadcast(one), dimensions={{}}
  s = f32[{m}] dot(x, ones), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  c = f32[] constant({n})
  cs = f32[{m}] broadcast(c), dimensions={{}}
  ROOT r = f32[{m}] divide(s, cs)""")


@module({"n": 96}, {"n": 12})
def a_shift_by_one_half(n: int) -> str:
    return text(f"""
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
