"""Constants and computations that have positions in them: masks, reversals, flat indices, starts of slices."""

from tests.shrinking.hand_made.making import ADD, module, text


@module({"n": 96}, {"n": 12})
def a_mask_of_one_half(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  i = s32[4,{n}] iota(), iota_dimension=1
  h = s32[] constant({n // 2})
  hs = s32[4,{n}] broadcast(h), dimensions={{}}
  p = pred[4,{n}] compare(i, hs), direction=LT
  y = f32[4,{n}] negate(x)
  ROOT r = f32[4,{n}] select(p, x, y)""")


@module({"n": 96}, {"n": 12})
def a_mask_in_f32(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  i = f32[4,{n}] iota(), iota_dimension=1
  h = f32[] constant({n // 2})
  hs = f32[4,{n}] broadcast(h), dimensions={{}}
  p = pred[4,{n}] compare(i, hs), direction=LT
  y = f32[4,{n}] negate(x)
  ROOT r = f32[4,{n}] select(p, x, y)""")


@module({"n": 96}, {"n": 12})
def reversed_positions(n: int) -> str:
    return text(f"""
  x = f32[{n},4] parameter(0)
  i = s32[{n}] iota(), iota_dimension=0
  last = s32[] constant({n - 1})
  lasts = s32[{n}] broadcast(last), dimensions={{}}
  j = s32[{n}] subtract(lasts, i)
  c = s32[{n},1] reshape(j)
  ROOT r = f32[{n},4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@module({"n": 64}, {"n": 16})
def a_power_of_two_as_a_mask(n: int) -> str:
    return text(f"""
  x = f32[{n},4] parameter(0)
  k = s32[8] parameter(1)
  m = s32[] constant({n - 1})
  ms = s32[8] broadcast(m), dimensions={{}}
  j = s32[8] and(k, ms)
  c = s32[8,1] reshape(j)
  ROOT r = f32[8,4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@module({"n": 16}, {"n": 8})
def a_small_power_of_two_as_a_mask(n: int) -> str:
    return a_power_of_two_as_a_mask(n)


@module({"n": 96}, {"n": 12})
def positions_modulo_the_size(n: int) -> str:
    return text(f"""
  x = f32[{n},4] parameter(0)
  k = s32[8] parameter(1)
  m = s32[] constant({n})
  ms = s32[8] broadcast(m), dimensions={{}}
  j = s32[8] remainder(k, ms)
  c = s32[8,1] reshape(j)
  ROOT r = f32[8,4] gather(x, c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}""")


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def rows_and_columns_of_flat_positions(n: int, m: int) -> str:
    return text(f"""
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


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def flat_positions_of_rows_and_columns(n: int, m: int) -> str:
    return text(f"""
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


@module({"n": 96, "m": 32}, {"n": 12, "m": 8})
def keys_that_order_rows_and_columns(n: int, m: int) -> str:
    return text(
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


@module({"n": 96}, {"n": 12})
def negative_indices_wrap(n: int) -> str:
    return text(f"""
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


@module({"n": 96}, {"n": 12})
def the_last_four_by_dynamic_slice(n: int) -> str:
    return text(f"""
  x = f32[{n},8] parameter(0)
  start = s32[] constant({n - 4})
  zero = s32[] constant(0)
  ROOT r = f32[4,8] dynamic-slice(x, start, zero), dynamic_slice_sizes={{4,8}}""")


@module({"n": 96}, {"n": 12})
def a_clamped_start(n: int) -> str:
    return text(f"""
  x = f32[{n},8] parameter(0)
  start = s32[] parameter(1)
  zero = s32[] constant(0)
  last = s32[] constant({n - 4})
  s = s32[] clamp(zero, start, last)
  ROOT r = f32[4,8] dynamic-slice(x, s, zero), dynamic_slice_sizes={{4,8}}""")


@module({"n": 96}, {"n": 12})
def an_update_at_the_end(n: int) -> str:
    return text(f"""
  x = f32[{n},8] parameter(0)
  u = f32[1,8] parameter(1)
  start = s32[] constant({n - 1})
  zero = s32[] constant(0)
  ROOT r = f32[{n},8] dynamic-update-slice(x, u, start, zero)""")


@module({"n": 96, "m": 40}, {"n": 12, "m": 8})
def windows_of_a_gather(n: int, m: int) -> str:
    return text(f"""
  x = f32[{n},{m}] parameter(0)
  k = s32[5,2] parameter(1)
  ROOT r = f32[5,2,{m}] gather(x, k), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{2,{m}}}""")


@module({"n": 96, "m": 40}, {"n": 12, "m": 8})
def windows_of_a_scatter(n: int, m: int) -> str:
    return text(
        f"""
  x = f32[{n},{m}] parameter(0)
  k = s32[5,1] parameter(1)
  u = f32[5,2,{m}] parameter(2)
  ROOT r = f32[{n},{m}] scatter(x, k, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add""",
        ADD,
    )


@module({"n": 24, "c": 40}, {"n": 8, "c": 10})
def the_last_of_as_many_as_are_kept_counted_in_f32(n: int, c: int) -> str:
    """Of n labels, a mask keeps some; what n + 1 states hold is taken at their number."""
    return text(
        f"""
  starts = s32[{c}] parameter(0)
  states = f32[{c},{n + 1}] parameter(1)
  places = s32[{c},{n}] iota(), iota_dimension=1
  begin = s32[{c},{n}] broadcast(starts), dimensions={{0}}
  padding = pred[{c},{n}] compare(places, begin), direction=GE
  ones = f32[{c},{n}] convert(padding)
  zero = f32[] constant(0)
  count = f32[{c}] reduce(ones, zero), dimensions={{1}}, to_apply=add
  padded = s32[{c}] convert(count)
  all = s32[] constant({n})
  whole = s32[{c}] broadcast(all), dimensions={{}}
  lengths = s32[{c}] subtract(whole, padded)
  ends = s32[{c},{n + 1}] broadcast(lengths), dimensions={{0}}
  numbers = s32[{c},{n + 1}] iota(), iota_dimension=1
  is_end = pred[{c},{n + 1}] compare(ends, numbers), direction=EQ
  zeros = f32[{c},{n + 1}] broadcast(zero), dimensions={{}}
  ROOT last = f32[{c},{n + 1}] select(is_end, states, zeros)""",
        ADD,
    )
