"""Regions and the kernels beside them take no more memory than their values need at a time."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.engine.plan.regions.block_program import Operation, Places, Value
from tests.plan.ways import bits, regions_of, require_same_bits

_F32 = np.dtype(np.float32)


def _chain(rows: list[int], readers: dict[int, int]) -> tuple[Places, list[Operation], list[int]]:
    """Places for values of so many elements, each made of the one before, and some read again by a later one."""
    places = Places()
    operations: list[Operation] = []
    made: list[int] = []
    source = places.add(Value((1,), _F32))
    for number, size in enumerate(rows):
        operands = [made[-1] if made else source]
        operands += [made[early] for early, late in readers.items() if late == number]
        made.append(places.add_scratch(Value((size,), _F32)))
        operations.append(Operation(abs, tuple(operands), made[-1], has_out=True, step=None))  # type: ignore[arg-type]
    places.allocate(operations)
    return places, operations, made


@pytest.mark.parametrize("seed", range(20))
def test_scratch_that_is_in_use_at_once_does_not_overlap(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 30
    rows = [int(size) for size in random.integers(1, 40, count)]
    readers = {int(early): int(early + random.integers(1, 8)) for early in random.integers(0, count - 9, 6)}
    places, operations, made = _chain(rows, readers)
    starts, end = places.packed(places.buffers)
    where = {place: (starts[buffer], starts[buffer] + places.buffers[buffer]) for place, buffer, _ in places.in_buffers}
    last = {place: n for n, entry in enumerate(operations) for place in (*entry.operands, entry.target)}
    for number, place in enumerate(made):
        assert where[place][1] <= end
        for other in made[number + 1 : last[place] + 1]:
            assert where[place][1] <= where[other][0] or where[other][1] <= where[place][0]
    most = max(sum(4 * rows[m] for m in range(n + 1) if last[made[m]] >= n) for n in range(count))
    assert most <= end < sum(places.buffers)


def test_scratch_of_values_that_double_is_that_of_the_last_two() -> None:
    """As the levels of an associative scan do."""
    places, _, _ = _chain([1 << level for level in range(12)], {})
    assert places.packed(places.buffers)[1] == 4 * ((1 << 11) + (1 << 10))


@pytest.mark.slow_cases("f16")
@pytest.mark.parametrize("name", "s32 u64 s8 f32 f16 bf16 c64".split())
def test_an_iota_of_one_dimension_never_exists_as_a_whole(name: str) -> None:
    count = 600_000
    module = hloexec.parse(f"""HloModule m
ENTRY e {{
  numbers = {name}[{count}] iota(), iota_dimension=0
  ROOT sum = {name}[{count}] add(numbers, numbers)
}}""")
    plan = plan_of(module)
    assert [step.instruction.opcode for step in plan.steps] == ["fusion"]
    dtype = np.dtype({"s32": "i4", "u64": "u8", "s8": "i1", "f32": "f4", "f16": "f2", "c64": "c8"}.get(name, "f4"))
    numbers = np.arange(count, dtype=np.int64)
    if name == "bf16":
        expected = numbers.astype(np.float32).astype(ml_dtypes.bfloat16)
        expected = (expected.astype(np.float32) * 2).astype(ml_dtypes.bfloat16)
    else:
        with np.errstate(all="ignore"):
            expected = numbers.astype(dtype) + numbers.astype(dtype)
    found = hloexec.run(module)
    assert bits(found) == bits(expected)


def test_the_places_beside_an_argmin_are_not_copied() -> None:
    rows, columns = 4096, 64
    module = hloexec.parse(f"""HloModule m
least {{
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  less = pred[] compare(a, b), direction=LT
  is_nan = pred[] compare(a, a), direction=NE
  first = pred[] or(less, is_nan)
  value = f32[] select(first, a, b)
  same = pred[] compare(a, b), direction=EQ
  before = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, before)
  chosen = pred[] or(first, tie)
  place = s32[] select(chosen, i, j)
  ROOT both = (f32[], s32[]) tuple(value, place)
}}
ENTRY e {{
  x = f32[{rows},{columns}] parameter(0)
  t = f32[{rows},{columns}] tanh(x)
  row = s32[{columns}] iota(), iota_dimension=0
  places = s32[{rows},{columns}] broadcast(row), dimensions={{1}}
  most = f32[] constant(inf)
  none = s32[] constant(0)
  ROOT found = (f32[{rows}], s32[{rows}]) reduce(t, places, most, none), dimensions={{1}}, to_apply=least
}}""")
    x = np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32)
    value, place = hloexec.run(module, x)
    assert np.array_equal(place, np.argmin(x, axis=1))
    assert bits((value, place)) == bits(hloexec.run(module, x, planner=False))
    plan = plan_of(module)
    matrix = 4 * rows * columns
    assert entry_peak_bytes(plan) < 1.5 * matrix
    assert plan.arenas is None or plan.arenas.kept_bytes < 1.5 * matrix


def test_scratch_is_memory_of_the_run_that_other_arrays_take_again() -> None:
    rows, columns = 1024, 1024
    module = hloexec.parse(f"""HloModule m
ENTRY e {{
  x = f32[{rows},{columns}] parameter(0)
  t = f32[{rows},{columns}] tanh(x)
  c = f32[{rows},{columns}] cosine(x)
  d = f32[{rows},{columns}] divide(t, c)
  s = f32[{rows},{columns}] sine(d)
  ROOT p = f32[{rows},{columns}] dot(s, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}""")
    x = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    found = hloexec.run(module, x)
    assert bits(found) == bits(hloexec.run(module, x, planner=False))
    plan = plan_of(module)
    region = regions_of(module)[0]
    assert region.scratch_bytes > 0
    # The product lies where the scratch was.
    assert plan.arenas is None or plan.arenas.kept_bytes <= 2.1 * 4 * rows * columns


def test_a_region_takes_the_buffer_of_an_operand_that_dies() -> None:
    """A loop over 4 MB needs no more than the state and one copy of the argument."""
    text = """HloModule m
body { s = (s32[], f32[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[1024,1024] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  t = f32[1024,1024] tanh(x)
  y = f32[1024,1024] multiply(t, t)
  ROOT r = (s32[], f32[1024,1024]) tuple(n, y) }
condition { s = (s32[], f32[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  limit = s32[] constant(4)
  ROOT p = pred[] compare(i, limit), direction=LT }
ENTRY e { x = f32[1024,1024] parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[1024,1024]) tuple(z, x)
  ROOT w = (s32[], f32[1024,1024]) while(s), condition=condition, body=body }
"""
    module = hloexec.parse(text)
    x = np.random.default_rng(5).normal(size=(1024, 1024)).astype(np.float32)
    require_same_bits(module, x)
    statistics = Statistics()
    before = x.copy()
    hloexec.run(module, x, statistics=statistics)
    assert_array_equal(x, before)
    # The caller's array is not overwritten; what the first iteration makes of it is, by all others.
    assert statistics.peak_bytes < 1.1 * x.nbytes


@pytest.mark.parametrize(
    ("chosen", "buffers"),
    [
        ("p, zeros", 1),
        ("zeros, p", 2),  # The mask chooses by the bits in which both differ, and keeps the second one for that.
        ("p, p", 2),
        ("p, x", 1),
    ],
)
def test_a_select_takes_the_buffer_of_what_it_chooses_from(chosen: str, buffers: int) -> None:
    """The gradient of relu behind a product, for one. What comes from outside is left alone."""
    text = f"""HloModule m
ENTRY e {{ x = f32[1024,1024] parameter(0)
  y = f32[1024,16] parameter(1)
  p = f32[1024,1024] dot(y, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  zero = f32[] constant(0)
  zeros = f32[1024,1024] broadcast(zero), dimensions={{}}
  mask = pred[1024,1024] compare(x, zeros), direction=GT
  ROOT r = f32[1024,1024] select(mask, {chosen}) }}
"""
    module = hloexec.parse(text)
    generator = np.random.default_rng(8)
    x, y = (generator.integers(-9, 9, sizes).astype(np.float32) for sizes in ((1024, 1024), (1024, 16)))
    before = x.copy()
    require_same_bits(module, x, y)
    statistics = Statistics()
    result = hloexec.run(module, x, y, statistics=statistics)
    assert_array_equal(x, before)
    # A product of integers is exact.
    values = {"p": y @ y.T, "x": x, "zeros": np.zeros_like(x)}
    assert_array_equal(result, np.where(x > 0, *(values[name] for name in chosen.split(", "))))
    assert statistics.peak_bytes < (buffers + 0.5) * x.nbytes


def _polynomial(degree: int) -> str:
    """As XLA writes erf-inv: all coefficients are chosen before the first is used."""
    lines = [
        "HloModule m\nENTRY e { x = f32[64,4096] parameter(0)",
        "  zero = f32[] constant(0)\n  zeros = f32[64,4096] broadcast(zero), dimensions={}",
        "  p = pred[64,4096] compare(x, zeros), direction=LT",
    ]
    for number in range(degree + 1):
        for place in (0, 1):
            lines.append(f"  c{place}_{number} = f32[] constant({number * 0.25 - place})")
            lines.append(f"  b{place}_{number} = f32[64,4096] broadcast(c{place}_{number}), dimensions={{}}")
        lines.append(f"  chosen{number} = f32[64,4096] select(p, b0_{number}, b1_{number})")
    last = "chosen0"
    for number in range(1, degree + 1):
        lines.append(f"  m{number} = f32[64,4096] multiply({last}, x)")
        lines.append(f"  a{number} = f32[64,4096] add(m{number}, chosen{number})")
        last = f"a{number}"
    return "\n".join(lines) + f"\n  ROOT r = f32[64,4096] negate({last}) }}\n"


def test_what_is_chosen_early_and_used_late_does_not_lie_in_the_cache_until_then() -> None:
    few, many = (hloexec.parse(_polynomial(degree)) for degree in (3, 12))
    x = np.random.default_rng(5).normal(size=(64, 4096)).astype(np.float32)
    require_same_bits(many, x)
    (short,), (long,) = regions_of(few), regions_of(many)
    assert len(long.parts) == len(short.parts) + 3 * 9
    assert long.scratch_bytes == short.scratch_bytes
