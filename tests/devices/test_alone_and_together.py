"""Devices that exchange nothing get what each would get alone, whatever the others hold."""

from typing import Any

import numpy as np
import pytest

import hloexec
from tests.plan.random_programs import random_program
from tests.plan.ways import bits

SEEDS = [seed for seed in range(3000, 3060) if "rng(" not in random_program(seed, devices=1).text]
"""A device's random numbers depend on how many there are."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_devices_get_what_they_get_alone(seed: int) -> None:
    program = random_program(seed, devices=1)
    (first,) = program.inputs
    second = [value.reshape(-1)[::-1].copy().reshape(value.shape) for value in first]
    rows = [first, second, first, [*second[:1], *first[1:]]]
    require_alike(program.text, "HloModule random", rows)


LARGE = """HloModule large
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[300,400] parameter(0)
  s = f32[300,400] sort(x), dimensions={1}, to_apply=less
  t = f32[300,400] sort(s), dimensions={0}, to_apply=less
  m = f32[300,300] dot(s, t), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  k = f32[300,300] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[] constant(0)
  c = f32[300,400] reduce-window(s, z), window={size=1x7 pad=0_0x3_3}, to_apply=add
  r = f32[300,400] reverse(c), dimensions={1}
  u = f32[2,400] slice(s), slice={[5:7], [0:400]}
  i = s32[] constant(3)
  d = f32[300,400] dynamic-update-slice(t, u, i, i)
  q = f32[300,400] sort(d), dimensions={1}, to_apply=less
  ROOT o = (f32[300,400], f32[300,400], f32[2,400], f32[300,300], f32[300,400]) tuple(r, q, u, k, t) }
"""


@pytest.mark.slow_cases("1", "2")
@pytest.mark.parametrize("seed", range(4))
def test_large_values_of_each_device_live_as_long_as_they_are_needed(seed: int) -> None:
    """Kernels that run once per device free a device's part of an operand that dies before they are done."""
    random = np.random.default_rng(seed)
    rows = [[random.standard_normal((300, 400)).astype(np.float32)] for _ in range(2 + seed % 3)]
    require_alike(LARGE, "HloModule large", rows)


def require_alike(text: str, header: str, rows: list[list[Any]]) -> None:
    together = hloexec.parse(text.replace(header, f"{header}, num_partitions={len(rows)}", 1))
    alone = hloexec.parse(text)
    with np.errstate(all="ignore"):
        expected = [bits(hloexec.run(alone, *row, planner=False)) for row in rows]
        for options in ({}, {}, {"planner": False}):
            found = hloexec.run_devices(together, rows, **options)
            assert [bits(result) for result in found] == expected
