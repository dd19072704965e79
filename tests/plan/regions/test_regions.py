"""Steps that are taken together by rows have the bits that they have one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import hloexec
from hloexec.dtypes import element_type
from hloexec.exec.plans import plan_of
from hloexec.exec.statistics import Statistics
from hloexec.plan import pipeline
from hloexec.plan.passes import fuse
from hloexec.plan.regions import block_program, blocks
from hloexec.plan.regions.region import Region, RegionKernel
from tests.drawing import examples
from tests.exec.programs import flat
from tests.plan.regions.programs import row_programs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of small arrays, in many blocks."""
    monkeypatch.setattr(fuse, "LEAST_BYTES", 1)
    monkeypatch.setattr(pipeline, "LEAST_BYTES", 1)
    monkeypatch.setattr(fuse, "_LEAST_BYTES_ALONE", 1)
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 400)
    monkeypatch.setattr(blocks, "_SMALL_BLOCK_BYTES", 16)
    monkeypatch.setattr(blocks, "_LITTLE_WORK", 0)


def _regions(module: Any, numerics: str = "reference") -> list[Region]:
    steps = plan_of(module, numerics=numerics).steps
    return [step.kernel.region for step in steps if isinstance(step.kernel, RegionKernel)]


def _same_bits(module: Any, *inputs: Any, **options: Any) -> None:
    together = flat(hloexec.run(module, *inputs, check=True, **options))
    apart = flat(hloexec.run(module, *inputs, planner=False, **options))
    for ours, theirs in zip(together, apart, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(150), deadline=None)
@given(row_programs())
def test_random_programs_have_the_same_bits_by_rows(program: tuple[str, list[Any]]) -> None:
    text, inputs = program
    _same_bits(hloexec.parse(text), *inputs)
    _same_bits(hloexec.parse(text), *inputs, numerics="random-rounding:1")


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
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "s32"])
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
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", block_bytes)
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
    assert [len(region.parts) for region in _regions(module)] == [2]
    _same_bits(module, numbers.astype(element_type(kind).storage))


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
    (found,) = _regions(module, numerics)
    assert len(found.parts) == 7
    assert len(plan_of(module, numerics=numerics).steps) == 1
    _same_bits(module, x, numerics=numerics)


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
    _same_bits(hloexec.parse(text), np.random.default_rng(3).normal(size=given).astype(np.float32))


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
    assert _regions(module)
    generator = np.random.default_rng(5)
    x, y = (generator.normal(size=shape).astype(element_type(kind).storage) for shape in (given, sizes))
    _same_bits(module, x, y)
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
    assert _regions(module)
    x, b = generator.normal(size=(30, 40, 50)).astype(np.float32), generator.normal(size=30).astype(np.float32)
    _same_bits(module, x, b)
    wide = np.tanh(x[:, 3:36].astype(np.float64) + b[:, None, None])
    # The sum is off by u, relative, and so is its tanh for that, as |x tanh' x| ≤ |tanh x|; 4 ULPs are 8 u at most; a
    # square doubles both and is rounded itself.
    np.testing.assert_allclose(hloexec.run(module, x, b), wide.reshape(990, 50) ** 2, rtol=(2 * (1 + 8) + 1) * 2.0**-24)


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
    _same_bits(module, x)
    statistics = Statistics()
    before = x.copy()
    hloexec.run(module, x, statistics=statistics)
    np.testing.assert_array_equal(x, before)
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
    _same_bits(module, x, y)
    statistics = Statistics()
    result = hloexec.run(module, x, y, statistics=statistics)
    np.testing.assert_array_equal(x, before)
    # A product of integers is exact.
    values = {"p": y @ y.T, "x": x, "zeros": np.zeros_like(x)}
    np.testing.assert_array_equal(result, np.where(x > 0, *(values[name] for name in chosen.split(", "))))
    assert statistics.peak_bytes < (buffers + 0.5) * x.nbytes


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
    assert len(_regions(module)) == 2
    _same_bits(module, np.random.default_rng(6).normal(size=(300, 300)).astype(np.float32) / 20)


def test_an_error_within_a_region_names_its_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hloexec.parse(_SOFTMAX)
    (found,) = _regions(module)

    def fails(*_: Any) -> None:
        raise MemoryError

    operation = next(entry for entry in found.operations if entry.step.instruction.name == "p")
    monkeypatch.setattr(operation, "function", fails)
    with pytest.raises(hloexec.ResourceError, match=r"%p in computation e.*MemoryError"):
        hloexec.run(module, np.zeros((60, 50, 40), np.float32))


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from hloexec.ops import threads

    module = hloexec.parse(_SOFTMAX)
    x = np.random.default_rng(7).normal(size=(60, 50, 40)).astype(np.float32)
    found = set()
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "core_count", lambda count=count: count)
        threads._pool.cache_clear()
        found.add(hloexec.run(module, x).tobytes())
        threads._pool().shutdown()
    threads._pool.cache_clear()
    assert len(found) == 1


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["convnet", "flax_attention", "transformer"])
def test_training_steps_in_bf16_have_the_same_bits_by_rows(name: str) -> None:
    jax = pytest.importorskip("jax")
    from tests.models.programs import PROGRAMS

    function, arguments = PROGRAMS[name]()
    narrow = element_type("bf16").storage
    leaves, tree = jax.tree.flatten(arguments)
    leaves = [np.asarray(leaf) for leaf in leaves]
    leaves = [leaf.astype(narrow) if leaf.dtype == np.float32 else leaf for leaf in leaves]
    module = hloexec.from_jax(function, *jax.tree.unflatten(tree, leaves))
    assert sum(len(region.parts) for region in _regions(module)) > 40
    _same_bits(module, *leaves)


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
    _same_bits(many, x)
    (short,), (long,) = _regions(few), _regions(many)
    assert len(long.parts) == len(short.parts) + 3 * 9
    assert long.scratch_bytes == short.scratch_bytes


def test_large_outputs_that_other_parts_read_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_program, "_COPIED_BYTES", 1 << 10)
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
    (found,) = _regions(module)
    assert len(found.outputs) == 5
    _same_bits(module, x, y)


def test_a_broadcast_that_rounds_its_operand_is_no_repetition_of_it() -> None:
    """1/3 is no bf16 number, and products with it are others than with the nearest one."""
    module = hloexec.parse("""HloModule m
ENTRY e { h = f32[] parameter(0)
  x = bf16[64,1024] parameter(1)
  w = bf16[64,1024] broadcast(h), dimensions={}
  p = bf16[64,1024] multiply(x, w)
  ROOT r = bf16[64,1024] subtract(p, x) }
""")
    assert _regions(module)
    x = np.linspace(-300, 300, 1 << 16).astype(element_type("bf16").storage).reshape(64, 1024)
    _same_bits(module, np.array(1 / 3, np.float32), x)


def test_a_conversion_to_the_same_type_is_not_lost_when_scratch_is_used_again() -> None:
    module = hloexec.parse("""HloModule m
ENTRY e { x = f32[64,1024] parameter(0)
  t = f32[64,1024] tanh(x)
  c = f32[64,1024] convert(t)
  u = f32[64,1024] sine(x)
  w = f32[64,1024] cosine(u)
  ROOT r = f32[64,1024] divide(c, w) }
""")
    assert _regions(module)
    _same_bits(module, np.random.default_rng(3).standard_normal((64, 1024), np.float32))


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
    _same_bits(hloexec.parse(text), x, np.int32(rows))
