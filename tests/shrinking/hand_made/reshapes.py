"""Dimensions that are split, merged and moved."""

from __future__ import annotations

from tests.shrinking.hand_made.making import module, text


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
