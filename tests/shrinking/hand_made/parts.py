"""Slices and concatenations whose bounds follow from sizes."""

from __future__ import annotations

from tests.shrinking.hand_made.making import module, text


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
