"""Convolutions and pooling, whose windows keep their sizes."""

from __future__ import annotations

from tests.shrinking.hand_made.making import ADD, MAX, module, text


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
