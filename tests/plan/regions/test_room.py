"""Regions whose scratch is in the last rows of an output: the same bits, and no memory beside the output."""

from collections.abc import Iterator

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.engine.plan.regions import region
from tests.plan.ways import bits, regions_of, thread_count

_SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
"""
_BODIES = {
    "chain": """
  t = f32[300,256] tanh(x)
  n = f32[300,256] negate(x)
  e = f32[300,256] exponential(n)
  ROOT r = f32[300,256] multiply(t, e)""",
    "softmax": """
  zero = f32[] constant(0)
  e = f32[300,256] exponential(x)
  s = f32[300] reduce(e, zero), dimensions={1}, to_apply=sum
  b = f32[300,256] broadcast(s), dimensions={0}
  ROOT r = f32[300,256] divide(e, b)""",
    "two outputs, the second larger": """
  h = bf16[300,256] convert(x)
  t = bf16[300,256] tanh(h)
  v = f32[300,256] convert(t)
  c = f32[300,256] cosine(v)
  ROOT r = (bf16[300,256], f32[300,256]) tuple(t, c)""",
    "numbers of rows": """
  i = s32[300,256] iota(), iota_dimension=0
  f = f32[300,256] convert(i)
  t = f32[300,256] multiply(f, x)
  n = f32[300,256] negate(t)
  e = f32[300,256] exponential(n)
  ROOT r = f32[300,256] add(f, e)""",
    "a mask": """
  zero = f32[] constant(0)
  zeros = f32[300,256] broadcast(zero), dimensions={}
  p = pred[300,256] compare(x, zeros), direction=GT
  s = f32[300,256] sqrt(x)
  n = f32[300,256] exponential(x)
  ROOT r = f32[300,256] select(p, s, n)""",
    "an overwritten operand": """
  y = f32[300,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[300,256] tanh(y)
  n = f32[300,256] negate(y)
  e = f32[300,256] exponential(n)
  m = f32[300,256] maximum(t, e)
  ROOT r = f32[300,256] multiply(t, m)""",
}


@pytest.fixture(params=[1, 2, 3])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of so few rows that small outputs have room for scratch."""
    for name, value in (
        ("_VALUE_BYTES", 1 << 11), ("_ROOMY_VALUE_BYTES", 1 << 13), ("_SMALL_BLOCK_BYTES", 1 << 13),
        ("_LITTLE_WORK", 0), ("LEAST_BYTES", 1), ("_ROOM", 2),
    ):  # fmt: skip
        monkeypatch.setattr(region, name, value)
    monkeypatch.setattr(region, "LEAST_BYTES", 1)
    with thread_count(request.param):
        yield


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", _BODIES)
def test_results_are_the_same_bits(name: str) -> None:
    module = hloexec.parse(
        f"HloModule m\n{_SUM}\nENTRY e {{\n  x = f32[300,256] parameter(0)\n  w = f32[256,256] parameter(1)"
        f"{_BODIES[name]}\n}}"
    )
    assert any(each._room is not None for each in regions_of(module))
    generator = np.random.default_rng(1)
    inputs = [generator.standard_normal(sizes).astype(np.float32) for sizes in ((300, 256), (256, 256))]
    expected = bits(hloexec.run(module, *inputs, planner=False))
    found = [hloexec.run(module, *inputs) for _ in range(3)]
    assert all(bits(each) == expected for each in found)


@pytest.mark.slow
def test_an_output_with_room_for_scratch_is_all_that_a_run_takes() -> None:
    rows, columns = 13_000, 1024
    module = hloexec.parse(f"""HloModule m
ENTRY e {{
  x = f32[{rows},{columns}] parameter(0)
  n = f32[{rows},{columns}] negate(x)
  s = f32[{rows},{columns}] sqrt(x)
  a = f32[{rows},{columns}] abs(n)
  ROOT r = f32[{rows},{columns}] multiply(s, a)
}}""")
    with thread_count(2):
        plan = plan_of(module)
        x = np.linspace(0, 9, rows * columns, dtype=np.float32).reshape(rows, columns)
        found = hloexec.run(module, x)
    assert (found == np.sqrt(x) * x).all()
    most = 4 * rows * columns + (3 << 18)
    assert entry_peak_bytes(plan) < most
    assert plan.arenas is None or plan.arenas.kept_bytes < most
