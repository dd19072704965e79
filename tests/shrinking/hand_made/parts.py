"""Slices and concatenations whose bounds follow from sizes; dimensions that are split and moved; windows that keep theirs."""

from tests.shrinking.hand_made.making import ADD, MAX, module, text


@module({"n": 96}, {"n": 12})
def halves_change_places(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  a = f32[4,{n // 2}] slice(x), slice={{[0:4],[0:{n // 2}]}}
  b = f32[4,{n // 2}] slice(x), slice={{[0:4],[{n // 2}:{n}]}}
  c = f32[4,{n // 2}] negate(b)
  ROOT r = f32[4,{n}] concatenate(c, a), dimensions={{1}}""")


@module({"n": 96}, {"n": 12})
def every_second_element(n: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  a = f32[4,{n // 2}] slice(x), slice={{[0:4],[0:{n}:2]}}
  b = f32[4,{n // 2}] slice(x), slice={{[0:4],[1:{n}:2]}}
  z = f32[] constant(0)
  pa = f32[4,{n}] pad(a, z), padding=0_0x0_1_1
  pb = f32[4,{n}] pad(b, z), padding=0_0x1_0_1
  ROOT r = f32[4,{n}] add(pa, pb)""")


@module({"n": 96}, {"n": 12})
def differences_of_neighbours(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  a = f32[{n - 1}] slice(x), slice={{[1:{n}]}}
  b = f32[{n - 1}] slice(x), slice={{[0:{n - 1}]}}
  d = f32[{n - 1}] subtract(a, b)
  z = f32[] constant(0)
  ROOT r = f32[{n}] pad(d, z), padding=0_1""")


@module({"n": 12}, {"n": 6})
def differences_of_few_neighbours(n: int) -> str:
    return differences_of_neighbours(n)


@module({"n": 96}, {"n": 16})
def the_last_three_are_left_out(n: int) -> str:
    return text(f"""
  x = f32[{n}] parameter(0)
  y = f32[{n - 5}] slice(x), slice={{[2:{n - 3}]}}
  z = f32[] constant(0)
  ROOT r = f32[{n}] pad(y, z), padding=2_3""")


@module({"n": 96}, {"n": 12})
def a_cache_that_moves_on(n: int) -> str:
    return text(f"""
  x = f32[{n},8] parameter(0)
  u = f32[1,8] parameter(1)
  old = f32[{n - 1},8] slice(x), slice={{[1:{n}],[0:8]}}
  ROOT r = f32[{n},8] concatenate(old, u), dimensions={{0}}""")


@module({"n": 96}, {"n": 12})
def the_last_one_but_one(n: int) -> str:
    return text(f"""
  x = f32[{n},8] parameter(0)
  a = f32[1,8] slice(x), slice={{[{n - 2}:{n - 1}],[0:8]}}
  b = f32[1,8] slice(x), slice={{[{n - 1}:{n}],[0:8]}}
  ROOT r = f32[1,8] add(a, b)""")


@module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def three_dimensions_become_one(a: int, b: int, c: int) -> str:
    return text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  flat = f32[{a * b * c}] reshape(x)
  n = f32[{a * b * c}] negate(flat)
  ROOT r = f32[{a},{b},{c}] reshape(n)""")


@module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def the_middle_joins_either_side(a: int, b: int, c: int) -> str:
    return text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  y = f32[{a * b},{c}] reshape(x)
  n = f32[{a * b},{c}] negate(y)
  ROOT r = f32[{a},{b * c}] reshape(n)""")


@module({"a": 24, "b": 20, "c": 28}, {"a": 6, "b": 4, "c": 14})
def a_flat_array_is_split_in_two_ways(a: int, b: int, c: int) -> str:
    return text(f"""
  x = f32[{a},{b},{c}] parameter(0)
  flat = f32[{a * b * c}] reshape(x)
  n = f32[{a * b * c}] negate(flat)
  y = f32[{a * b},{c}] reshape(n)
  z = f32[{a},{b * c}] reshape(n)
  ROOT r = (f32[{a * b},{c}], f32[{a},{b * c}]) tuple(y, z)""")


@module({"n": 96, "h": 8}, {"n": 24, "h": 8})
def heads_are_split_and_merged(n: int, h: int) -> str:
    return text(f"""
  x = f32[4,{n}] parameter(0)
  s = f32[4,{h},{n // h}] reshape(x)
  t = f32[{h},4,{n // h}] transpose(s), dimensions={{1,0,2}}
  u = f32[4,{h},{n // h}] transpose(t), dimensions={{1,0,2}}
  ROOT r = f32[4,{n}] reshape(u)""")


@module({"n": 96}, {"n": 12})
def a_dimension_of_one_and_of_none(n: int) -> str:
    return text(f"""
  x = f32[1,{n},0] parameter(0)
  y = f32[{n},1] parameter(1)
  z = f32[] constant(0)
  p = f32[1,{n},1] pad(x, z), padding=0_0x0_0x0_1
  q = f32[{n},1] reshape(p)
  ROOT r = f32[{n},1] add(q, y)""")


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_dilated_convolution_in_groups(n: int, c: int) -> str:
    return text(f"""
  x = f32[2,{n},{c}] parameter(0)
  k = f32[3,{c // 4},{2 * c}] parameter(1)
  ROOT y = f32[2,{n},{2 * c}] convolution(x, k), window={{size=3 pad=2_2 rhs_dilate=2}}, dim_labels=b0f_0io->b0f, feature_group_count=4""")


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_transposed_convolution(n: int, c: int) -> str:
    return text(f"""
  x = f32[2,{n},{c}] parameter(0)
  k = f32[4,{c},16] parameter(1)
  ROOT y = f32[2,{2 * n},16] convolution(x, k), window={{size=4 pad=2_2 lhs_dilate=2}}, dim_labels=b0f_0io->b0f""")


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def same_padding_with_a_stride(n: int, c: int) -> str:
    return text(
        f"""
  x = f32[2,{n},{c}] parameter(0)
  z = f32[] constant(-inf)
  ROOT y = f32[2,{n // 2},{c}] reduce-window(x, z), window={{size=1x3x1 stride=1x2x1 pad=0_0x0_1x0_0}}, to_apply=max""",
        MAX,
    )


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def patches_as_a_strided_convolution(n: int, c: int) -> str:
    return text(f"""
  x = f32[2,{n},{n},3] parameter(0)
  k = f32[4,4,3,{c}] parameter(1)
  y = f32[2,{n // 4},{n // 4},{c}] convolution(x, k), window={{size=4x4 stride=4x4}}, dim_labels=b01f_01io->b01f
  ROOT t = f32[2,{n // 4 * (n // 4)},{c}] reshape(y)""")


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_gradient_of_pooling(n: int, c: int) -> str:
    return text(
        f"""
  x = f32[2,{n},{c}] parameter(0)
  g = f32[2,{n // 2},{c}] parameter(1)
  z = f32[] constant(0)
  ROOT y = f32[2,{n},{c}] select-and-scatter(x, g, z), window={{size=1x2x1 stride=1x2x1}}, select=ge, scatter=add""",
        ADD + "ge { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = pred[] compare(x, y), direction=GE }\n",
    )


@module({"n": 64, "c": 32}, {"n": 16, "c": 8})
def a_gradient_in_batch_groups(n: int, c: int) -> str:
    return text(f"""
  x = f32[{c},{n},2] parameter(0)
  g = f32[2,{n},{c}] parameter(1)
  ROOT y = f32[1,3,{c}] convolution(x, g), window={{size={n} pad=1_1}}, dim_labels=b0f_i0o->b0f, batch_group_count={c}""")
