"""Steps that are taken together by rows have the bits that they have one by one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.core.dtypes import element_type
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.regions import region
from hloexec.engine.plan.regions.region import Region
from hloexec.engine.plan.regions.rows import row_by_row
from tests.drawing import examples
from tests.plan.regions.programs import row_programs
from tests.plan.ways import regions_of, require_same_bits, small_regions


@pytest.fixture
def small() -> Iterator[None]:
    """Regions of small arrays, in many blocks."""
    with small_regions():
        yield


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(150), deadline=None)
@given(row_programs())
def test_random_programs_have_the_same_bits_by_rows(program: tuple[str, list[Any]]) -> None:
    text, inputs = program
    require_same_bits(hloexec.parse(text), *inputs)
    require_same_bits(hloexec.parse(text), *inputs, numerics="random-rounding:1")


_REDUCTION = """HloModule m
combine {{ a = {kind}[] parameter(0)
  b = {kind}[] parameter(1)
  ROOT r = {kind}[] {opcode}(a, b) }}
ENTRY e {{ x = {kind}[{sizes}] parameter(0)
  z = {kind}[] constant({init})
  y = {kind}[{sizes}] negate(x)
  ROOT r = {kind}[{kept}] reduce(y, z), dimensions={{{dimensions}}}, to_apply=combine }}
"""


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("block_bytes", [1, 20_000, 10**9])
@pytest.mark.parametrize("kind", "f32 bf16 f16 s32".split())
@pytest.mark.parametrize("opcode", ["add", "maximum"])
@pytest.mark.parametrize(
    ("sizes", "dimensions"),
    [
        ((37, 1000), (1,)),
        ((7, 300, 5), (1,)),
        ((7, 300, 5), (1, 2)),
        ((6, 5, 9, 130), (2, 3)),
        ((6, 5, 9, 130), (2,)),
        ((3, 1, 700), (2,)),
        ((40, 3, 1), (1, 2)),
        ((2, 90, 4, 4), (1, 3)),
    ],
)
def test_reductions_of_blocks_have_the_bits_of_whole_ones(
    kind: str,
    opcode: str,
    sizes: tuple[int, ...],
    dimensions: tuple[int, ...],
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(region, "_BLOCK_BYTES", block_bytes)
    kept = [size for place, size in enumerate(sizes) if place not in dimensions]
    text = _REDUCTION.format(
        kind=kind,
        opcode=opcode,
        init=0 if opcode == "add" else -100,
        sizes=",".join(map(str, sizes)),
        kept=",".join(map(str, kept)),
        dimensions=",".join(map(str, dimensions)),
    )
    numbers = np.random.default_rng(1).normal(size=sizes) * 50
    module = hloexec.parse(text)
    assert [len(region.parts) for region in regions_of(module)] == [2]
    require_same_bits(module, numbers.astype(element_type(kind).storage))


_SOFTMAX = """HloModule m
largest { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b) }
total { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
ENTRY e { x = f32[60,50,40] parameter(0)
  lowest = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[60,50] reduce(x, lowest), dimensions={2}, to_apply=largest
  mb = f32[60,50,40] broadcast(m), dimensions={0,1}
  d = f32[60,50,40] subtract(x, mb)
  p = f32[60,50,40] exponential(d)
  s = f32[60,50] reduce(p, zero), dimensions={2}, to_apply=total
  sb = f32[60,50,40] broadcast(s), dimensions={0,1}
  ROOT r = f32[60,50,40] divide(p, sb) }
"""


@pytest.mark.parametrize("numerics", ["reference", "random-rounding:0"])
def test_softmax_is_one_region(numerics: str) -> None:
    module = hloexec.parse(_SOFTMAX)
    x = np.random.default_rng(2).normal(size=(60, 50, 40)).astype(np.float32)
    (found,) = regions_of(module, numerics)
    assert len(found.parts) == 7
    assert len(plan_of(module, numerics=numerics).steps) == 1
    require_same_bits(module, x, numerics=numerics)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_arrays_in_another_order_in_memory_have_the_same_bits(order: tuple[int, ...]) -> None:
    """The region's input is a transposed view; sums must be grouped as they are one by one."""
    sizes = [60, 50, 40]
    given = tuple(sizes[order.index(place)] for place in range(3))
    places = ",".join(map(str, order))
    text = _SOFTMAX.replace(
        "x = f32[60,50,40] parameter(0)",
        f"g = f32[{','.join(map(str, given))}] parameter(0)\n  x = f32[60,50,40] transpose(g), dimensions={{{places}}}",
    )
    require_same_bits(hloexec.parse(text), np.random.default_rng(3).normal(size=given).astype(np.float32))


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)])
def test_regions_without_sums_take_arrays_in_any_order_by_rows(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...], kind: str
) -> None:
    sizes = [60, 50, 120]
    given = tuple(sizes[order.index(place)] for place in range(3))
    text = f"""HloModule m
ENTRY e {{ g = {kind}[{",".join(map(str, given))}] parameter(0)
  y = {kind}[60,50,120] parameter(1)
  x = {kind}[60,50,120] transpose(g), dimensions={{{",".join(map(str, order))}}}
  s = {kind}[60,50,120] add(x, y)
  t = {kind}[60,50,120] tanh(s)
  p = {kind}[60,50,120] multiply(t, x)
  ROOT r = {kind}[3000,120] reshape(p) }}
"""
    module = hloexec.parse(text)
    assert regions_of(module)
    generator = np.random.default_rng(5)
    x, y = (generator.normal(size=shape).astype(element_type(kind).storage) for shape in (given, sizes))
    require_same_bits(module, x, y)
    monkeypatch.setattr(Region, "one_by_one", None)
    hloexec.run(module, x, y)


def test_rows_of_an_array_with_gaps_are_gathered() -> None:
    """Neither a slice nor a broadcast of some leading dimensions can be seen as rows without copying blocks."""
    text = """HloModule m
ENTRY e { x = f32[30,40,50] parameter(0)
  b = f32[30] parameter(1)
  s = f32[30,33,50] slice(x), slice={[0:30],[3:36],[0:50]}
  w = f32[30,33,50] broadcast(b), dimensions={0}
  a = f32[30,33,50] add(s, w)
  t = f32[30,33,50] tanh(a)
  n = f32[990,50] reshape(t)
  ROOT r = f32[990,50] multiply(n, n) }
"""
    generator = np.random.default_rng(4)
    module = hloexec.parse(text)
    assert regions_of(module)
    x, b = generator.normal(size=(30, 40, 50)).astype(np.float32), generator.normal(size=30).astype(np.float32)
    require_same_bits(module, x, b)
    wide = np.tanh(x[:, 3:36].astype(np.float64) + b[:, None, None])
    # The sum is off by u, relative, and so is its tanh for that, as |x tanh' x| ≤ |tanh x|; 4 ULPs are 8 u at most; a
    # square doubles both and is rounded itself.
    assert_allclose(hloexec.run(module, x, b), wide.reshape(990, 50) ** 2, rtol=(2 * (1 + 8) + 1) * 2.0**-24)


def test_a_step_between_two_parts_of_a_region_keeps_its_place() -> None:
    """The product needs the first chain and the second chain needs the product: they cannot be one region."""
    text = """HloModule m
ENTRY e { x = f32[300,300] parameter(0)
  a = f32[300,300] tanh(x)
  b = f32[300,300] multiply(a, a)
  p = f32[300,300] dot(b, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[300,300] add(p, b)
  d = f32[300,300] exponential(c)
  ROOT r = f32[300,300] multiply(d, a) }
"""
    module = hloexec.parse(text)
    assert len(regions_of(module)) == 2
    require_same_bits(module, np.random.default_rng(6).normal(size=(300, 300)).astype(np.float32) / 20)


def test_an_error_within_a_region_names_its_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hloexec.parse(_SOFTMAX)
    (found,) = regions_of(module)

    def fails(*_: Any) -> None:
        raise MemoryError

    operation = next(entry for entry in found.operations if entry.step.instruction.name == "p")
    monkeypatch.setattr(operation, "function", fails)
    with pytest.raises(hloexec.ResourceError, match=r"%p in computation e.*MemoryError"):
        hloexec.run(module, np.zeros((60, 50, 40), np.float32))


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from hloexec.ops import resources

    module = hloexec.parse(_SOFTMAX)
    x = np.random.default_rng(7).normal(size=(60, 50, 40)).astype(np.float32)
    found = set()
    for count in (1, 2, 5):
        monkeypatch.setattr(resources, "core_count", lambda count=count: count)
        resources._pool.cache_clear()
        found.add(hloexec.run(module, x).tobytes())
        resources._pool().shutdown()
    resources._pool.cache_clear()
    assert len(found) == 1


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["residual_net", "flax_attention", "decoder_training"])
def test_training_steps_in_bf16_have_the_same_bits_by_rows(name: str) -> None:
    jax = pytest.importorskip("jax")
    from tests.models.programs import PROGRAMS

    function, arguments = PROGRAMS[name]()
    narrow = element_type("bf16").storage
    leaves, tree = jax.tree.flatten(arguments)
    leaves = [np.asarray(leaf) for leaf in leaves]
    leaves = [leaf.astype(narrow) if leaf.dtype == np.float32 else leaf for leaf in leaves]
    module = hloexec.from_jax(function, *jax.tree.unflatten(tree, leaves))
    assert sum(len(region.parts) for region in regions_of(module)) > 40
    require_same_bits(module, *leaves)


def test_outputs_that_other_parts_read_have_the_same_bits() -> None:
    module = hloexec.parse("""HloModule m
ENTRY e { x = f32[64,4096] parameter(0)
  y = f32[64,4096] parameter(1)
  half = bf16[64,4096] convert(x)
  wide = f32[64,4096] convert(half)
  a = f32[64,4096] add(wide, y)
  p = pred[64,4096] compare(a, y), direction=GT
  s = f32[64,4096] select(p, a, x)
  m = f32[64,4096] multiply(s, a)
  ROOT r = (f32[64,4096], pred[64,4096], bf16[64,4096], f32[64,4096], f32[64,4096]) tuple(m, p, half, a, s) }
""")
    generator = np.random.default_rng(6)
    x, y = (generator.normal(size=(64, 4096)).astype(np.float32) for _ in range(2))
    (found,) = regions_of(module)
    assert len(found.outputs) == 5
    require_same_bits(module, x, y)


def test_a_broadcast_that_rounds_its_operand_is_no_repetition_of_it() -> None:
    """1/3 is no bf16 number, and products with it are others than with the nearest one."""
    module = hloexec.parse("""HloModule m
ENTRY e { h = f32[] parameter(0)
  x = bf16[64,1024] parameter(1)
  w = bf16[64,1024] broadcast(h), dimensions={}
  p = bf16[64,1024] multiply(x, w)
  ROOT r = bf16[64,1024] subtract(p, x) }
""")
    assert regions_of(module)
    x = np.linspace(-300, 300, 1 << 16).astype(element_type("bf16").storage).reshape(64, 1024)
    require_same_bits(module, np.array(1 / 3, np.float32), x)


def test_a_conversion_to_the_same_type_is_not_lost_when_scratch_is_used_again() -> None:
    module = hloexec.parse("""HloModule m
ENTRY e { x = f32[64,1024] parameter(0)
  t = f32[64,1024] tanh(x)
  c = f32[64,1024] convert(t)
  u = f32[64,1024] sine(x)
  w = f32[64,1024] cosine(u)
  ROOT r = f32[64,1024] divide(c, w) }
""")
    assert regions_of(module)
    require_same_bits(module, np.random.default_rng(3).standard_normal((64, 1024), np.float32))


@pytest.mark.parametrize("rows", [0, 7, 400])
def test_arrays_of_dynamic_extents_have_the_bits_and_extents_that_they_have_one_by_one(rows):
    text = """HloModule m
sum { p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q) }
ENTRY e { x = f32[400,300] parameter(0)
  n = s32[] parameter(1)
  z = f32[] constant(0)
  a = f32[<=400,300] set-dimension-size(x, n), dimensions={0}
  b = f32[<=400,300] sine(a)
  c = f32[<=400,300] add(b, a)
  d = f32[<=400,300] multiply(c, c)
  e = f32[<=400] reduce(d, z), dimensions={1}, to_apply=sum
  f = f32[<=400] negate(e)
  ROOT r = (f32[<=400], f32[<=400,300]) tuple(f, d) }"""
    x = np.random.default_rng(0).standard_normal((400, 300), dtype=np.float32)
    require_same_bits(hloexec.parse(text), x, np.int32(rows))


@pytest.mark.usefixtures("small")
def test_a_reshape_that_copies_what_is_repeated_is_computed_for_each_block() -> None:
    """Group normalization: a statistic of each group is repeated for its channels."""
    module = hloexec.parse("""HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[20,8,8,20] parameter(0)
  zero = f32[] constant(0)
  n = f32[] constant(320)
  counts = f32[20,4] broadcast(n), dimensions={}
  groups = f32[20,8,8,4,5] reshape(x)
  total = f32[20,4] reduce(groups, zero), dimensions={1,2,4}, to_apply=sum
  mean = f32[20,4] divide(total, counts)
  repeated = f32[20,4,5] broadcast(mean), dimensions={0,1}
  flat = f32[20,20] reshape(repeated)
  means = f32[20,8,8,20] broadcast(flat), dimensions={0,3}
  ROOT y = f32[20,8,8,20] subtract(x, means)
}
""")
    (region,) = regions_of(module)
    assert region.parts[-1].step.instruction.name == "y"
    x = np.arange(20 * 8 * 8 * 20).reshape(20, 8, 8, 20) % 41
    means = x.reshape(20, 8, 8, 4, 5).sum((1, 2, 4)).astype(np.float32) / np.float32(320)
    expected = x.astype(np.float32) - means.repeat(5, 1)[:, None, None]
    assert_array_equal(hloexec.run(module, x.astype(np.float32)), expected)


def test_few_long_rows_are_shared_by_two_cores() -> None:
    """All rows together take what a block may take; a block of them all would be the work of one core."""
    lines = ["x0 = f32[8,16,1024] parameter(0)"]
    lines += [f"x{number + 1} = f32[8,16,1024] multiply(x{number}, x0)" for number in range(12)]
    text = """HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
ENTRY e {
  LINES
  z = f32[] constant(0)
  s = f32[8] reduce(x12, z), dimensions={1,2}, to_apply=sum
  w = f32[8,16,1024] broadcast(s), dimensions={0}
  ROOT r = f32[8,16,1024] divide(x12, w) }
"""
    module = hloexec.parse(text.replace("LINES", "\n  ".join(lines)))
    (region,) = regions_of(module)
    assert (region.rows, region.block) == (8, 4)
    require_same_bits(module, np.linspace(0.9, 1.1, 1 << 17, dtype=np.float32).reshape(8, 16, 1024))


_SPECIAL = np.array(
    [0, 1 << 31, 0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 1, 0x3F800000, 0x40490FDB], np.uint32
).view(np.float32)
"""Zeros, NaNs of two kinds, infinities and numbers."""


@pytest.mark.parametrize("length", [512, 643, 4096])
@pytest.mark.parametrize("function", [np.add, np.subtract, np.multiply, np.divide], ids=lambda each: each.__name__)
def test_rows_that_are_computed_one_by_one_have_the_bits_of_all(function: np.ufunc, length: int) -> None:
    random = np.random.default_rng(length)
    rows = random.choice(_SPECIAL, (64, length))
    row = np.broadcast_to(random.choice(_SPECIAL, length), rows.shape)
    numbers = [random.choice(_SPECIAL, (64, 1)), random.standard_normal((64, 1)).astype(np.float32)]
    with np.errstate(all="ignore"):
        for repeated in (row, *(np.broadcast_to(number, rows.shape) for number in numbers)):
            for operands in ((rows, repeated), (repeated, rows), (repeated, row)):
                expected, value = np.empty_like(rows), np.empty_like(rows)
                function(*operands, expected)
                row_by_row(function)(*operands, value)
                assert value.tobytes() == expected.tobytes()


def test_the_callers_buffer_stays_as_it_is() -> None:
    rows = np.ones((64, 600), np.float32)
    before = np.getbufsize()
    row_by_row(np.divide)(rows, np.broadcast_to(rows[0], rows.shape), np.empty_like(rows))
    with pytest.raises(ValueError, match="broadcast"):
        row_by_row(np.divide)(rows, np.broadcast_to(rows[:1, :1], (64, 500)), np.empty_like(rows))
    assert np.getbufsize() == before
