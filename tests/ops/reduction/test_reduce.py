"""reduce, reduce-window and map against XLA:CPU and f64, and their shape rules; windows are also in test_windows."""

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import Window, WindowDimension
from hloexec.ops.reduction import reducers
from hloexec.ops.reduction.fast.reduce import bound_reduction
from hloexec.ops.reduction.reduce_window import reduce_windows_known
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, reduce_axis, reduce_known
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, random_array, restrided
from tests.ops.evaluation import assert_refused, evaluate
from tests.text.building import ADD, op

INTEGER_TYPES = "s4 s8 s16 s32 s64 u4 u8 u16 u32 u64".split()
FLOAT_TYPES = "f16 bf16 f32 f64 f8e4m3fn f8e5m2".split()
BITWISE, ORDERED = ["and", "or", "xor"], ["minimum", "maximum"]
WINDOWS = [
    ("size=3x4 stride=2x1 pad=1_0x2_3", "4,22"),
    ("size=1x20 pad=0_0x19_0", "9,20"),
    ("size=1x20 pad=0_0x0_19", "9,20"),
    ("size=1x13 pad=0_0x12_3", "9,23"),
    ("size=2x3 stride=1x2 pad=-1_2x1_2 lhs_dilate=2x3 rhs_dilate=3x2", "15,29"),
    ("size=10x2", "0,19"),
]


def reducer(operation: str, element: str, name: str = "reducer") -> str:
    return (
        f"{name} {{\n  x = {element}[] parameter(0)\n  y = {element}[] parameter(1)\n"
        f"  ROOT r = {element}[] {operation}(x, y)\n}}\n"
    )


def identity(operation: str, name: str) -> Any:
    """What changes nothing: XLA:CPU splits some reductions and then combines the initial value more than once."""
    entry = ELEMENT_TYPES[name]
    if entry.name == "pred":
        return np.array(operation in ("and", "multiply", "minimum"))
    if operation in ORDERED and entry.is_integral:
        bounds = ml_dtypes.iinfo(entry.storage)
        return np.array(bounds.max if operation == "minimum" else bounds.min).astype(entry.storage)
    if operation in ORDERED:
        sign = 1 if operation == "minimum" else -1
        return np.array(sign * (np.inf if entry.has_inf else 448.0)).astype(entry.storage)
    if operation == "and":
        return np.array(-1).astype(entry.compute).astype(entry.storage)
    return np.array(int(operation == "multiply")).astype(entry.storage)


def assert_reductions_are_xlas(operations: list[str], name: str, array: Any, windows: bool) -> None:
    cases = []
    for operation in operations:
        init = identity(operation, name)
        rest = f"to_apply=reduce_{operation}"
        cases += [
            Case("reduce", (array, init), f"{name}[{array.shape[0]}]", f"dimensions={{1}}, {rest}"),
            Case("reduce", (array, init), f"{name}[{array.shape[1]}]", f"dimensions={{0}}, {rest}"),
            Case("reduce", (array, init), f"{name}[]", f"dimensions={{1,0}}, {rest}"),
        ]
        if windows:
            cases += [
                Case("reduce-window", (array, init), f"{name}[{sizes}]", f"window={{{window}}}, {rest}")
                for window, sizes in WINDOWS
            ]
    assert_same_as_xla(cases, "\n".join(reducer(operation, name, f"reduce_{operation}") for operation in operations))


# Bit for bit


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["pred", *INTEGER_TYPES])
def test_integer_reductions_are_xlas_bit_for_bit(name):
    array = random_array(1, (9, 20), ELEMENT_TYPES[name].storage)
    operations = ["add", "multiply", *ORDERED, *BITWISE]
    assert_reductions_are_xlas(operations, name, array, windows=name in ("pred", "s8", "u32"))


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_minimum_and_maximum_of_floats_are_xlas_bit_for_bit(name):
    array = random_array(2, (9, 20), ELEMENT_TYPES[name].storage)
    array[0, 3], array[1:4] = np.nan, 0
    array[2, ::2] = -0.0
    array[3] = -0.0
    assert_reductions_are_xlas(ORDERED, name, array, windows=name in ("f32", "bf16"))


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_dimensions_and_strides_reduce_to_the_definition(data):
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), max_size=5))
    dimensions = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    name = data.draw(st.sampled_from("s32 f32 bf16 s8".split()))
    operation = data.draw(st.sampled_from(["add", "minimum", "maximum"]))
    # Whole numbers so small that every order of summation is exact in every type.
    array = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 2, shape)
    storage = ELEMENT_TYPES[name].storage
    operand = restrided(array.astype(storage), data.draw(st.integers(0, 3)))
    if data.draw(st.booleans()):
        order = data.draw(st.permutations(range(len(shape))))
        operand, array = operand.transpose(order), array.transpose(order)
    init = np.array(2 if operation == "add" else 0).astype(storage)
    value = reduce_known(operand, dimensions, init, KNOWN_REDUCERS[operation], ELEMENT_TYPES[name])
    function = {"add": np.add, "minimum": np.minimum, "maximum": np.maximum}[operation]
    expected = function.reduce(array, axis=tuple(dimensions), initial=int(init))
    assert value.dtype == storage
    assert value.shape == expected.shape
    assert (value == expected.astype(storage)).all()


def test_widening_in_chunks_changes_nothing(monkeypatch):
    monkeypatch.setattr(reducers, "_CHUNK_ELEMENTS", 50)
    array = np.random.default_rng(3).integers(-2, 3, (1, 13, 7, 1, 11))
    for dimensions in itertools.chain.from_iterable(itertools.combinations(range(5), count) for count in range(6)):
        operand = array.astype(ml_dtypes.bfloat16)
        value = reduce_known(operand, dimensions, operand.dtype.type(0), KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"])
        assert (value == array.sum(axis=dimensions)).all()


# Sums of floats


@pytest.mark.parametrize("name", "f32 f64 bf16 f16 c64".split())
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 3000), 1), ((3000, 5), 0), ((40, 70, 6), 1), ((100001,), 0), ((3000, 1), 0)]
)
def test_sums_stay_within_the_bound_of_grouped_summation(name, shape, axis):
    """γ_m·Σ|x| with m the longest chain of additions: at most 2·√n + 260 (256 neighbours one after the other, and what
    their n/256 sums add is less than 2·√n), and half an ULP of the result's type on top."""
    entry = ELEMENT_TYPES[name]
    array = random_array(4, shape, entry.storage)
    init = np.zeros((), entry.storage)
    value = reduce_known(array, (axis,), init, KNOWN_REDUCERS["add"], entry)
    exact = array.astype(np.clongdouble).sum(axis=axis)
    unit = (2.0**-53 if name == "f64" else 2.0**-24) * (2 * np.sqrt(shape[axis]) + 260)
    rounding = 2.0 ** -(entry.mantissa_bits + 1) if entry.is_narrow else 0
    bound = unit * np.abs(array.astype(np.clongdouble)).sum(axis=axis) + rounding * np.abs(exact)
    assert (np.abs(value.astype(np.clongdouble) - exact) <= bound).all()


@pytest.mark.parametrize("name", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("operation", ["add", "multiply", "maximum"])
@pytest.mark.parametrize(
    ("shape", "dimensions"),
    [((70, 7), (1,)), ((70, 8), (1,)), ((33, 999), (1,)), ((9, 5, 3000), (2,)), ((40, 9, 33), (1, 2))],
)
def test_rows_are_reduced_alike_however_many_there_are(monkeypatch, name, operation, shape, dimensions):
    """Planners rely on it: what they do block by block must have the bits of what is done at once."""
    entry = ELEMENT_TYPES[name]
    array, init = random_array(8, shape, entry.storage), np.ones((), entry.storage)
    whole = reduce_known(array, dimensions, init, KNOWN_REDUCERS[operation], entry)
    monkeypatch.setattr(reducers, "_CHUNK_ELEMENTS", 600)
    for step in (1, 2, 7, 32, len(array)):
        parts = [
            reduce_known(array[start : start + step], dimensions, init, KNOWN_REDUCERS[operation], entry)
            for start in range(0, len(array), step)
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.slow_cases("f32", "bf16")
@pytest.mark.parametrize("name", "f32 bf16 s32 pred c64".split())
def test_a_reduction_that_is_bound_to_its_sizes_has_the_bits_of_any_other(name):
    entry = ELEMENT_TYPES[name]
    operations = {"pred": ["and", "or"], "c64": ["add"]}.get(name, ["add", "multiply", "maximum"])
    special = np.array([np.nan, -0.0, 0.0, np.inf] if entry.is_floating else [1, 0]).astype(entry.storage)
    for sizes in [(), (1,), (5,), (16, 30), (1, 300), (2, 1, 7, 1, 40), (1, 1), (3, 0), (40, 9, 5)]:
        array = random_array(5, sizes, entry.storage).copy()
        array.reshape(-1)[1 : 1 + len(special)] = special[: max(0, array.size - 1)]
        for count in range(len(sizes) + 1):
            chosen = itertools.product(itertools.combinations(range(len(sizes)), count), operations, special)
            for dimensions, operation, init in chosen:
                reducer = KNOWN_REDUCERS[operation]
                bound = bound_reduction(sizes, dimensions[::-1], reducer, entry)
                for operand in (array, restrided(array, 1), restrided(array, 3), array[:1] if sizes else array):
                    expected = reduce_known(operand, dimensions, np.array(init), reducer, entry)
                    with np.errstate(all="ignore"):
                        found = bound(operand, np.array(init))
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    assert found.tobytes() == expected.tobytes(), (sizes, dimensions, operation, init)


@pytest.mark.parametrize("operation", "add multiply maximum minimum".split())
def test_along_dimensions_of_size_1_elements_are_combined_with_the_initial_value_alone(monkeypatch, operation):
    monkeypatch.setattr(reducers, "reduce_axis", None)
    array = random_array(6, (3, 1, 40, 1), np.dtype(np.float32)).copy()
    array[0, 0, :4, 0] = np.nan, -0.0, 0.0, np.inf
    function = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[operation]
    for init in (np.float32(2), np.float32(-np.inf)):
        bound = bound_reduction(array.shape, (3, 1), KNOWN_REDUCERS[operation], ELEMENT_TYPES["f32"])
        with np.errstate(all="ignore"):
            expected = function(init, array[:, 0, :, 0])
            value = bound(array, np.array(init))
        assert not np.shares_memory(value, array)
        np.testing.assert_array_equal(value, expected, strict=True)


@pytest.mark.parametrize("length", [9, 256, 700, 70_000])
def test_sums_of_negative_zeros_are_negative(length):
    """−0 + −0 = −0, but −0 + +0 = +0 and x − x = +0."""
    array = np.full((4, length), -0.0, np.float32)
    array[1, length // 2] = 0
    array[2, 3], array[2, -2] = 1, -1
    init = np.array(-0.0, np.float32)
    for operand in (array, array[:, ::-1], np.asfortranarray(array)):
        value = reduce_known(operand, (1,), init, KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"])
        assert (value == 0).all()
        assert np.signbit(value).tolist() == [True, False, False, True]


@pytest.mark.parametrize("length", [10, 255, 257, 3000, 70_001])
def test_sums_of_neighbours_do_not_depend_on_where_they_lie(length):
    values = random_array(6, (3, length), np.float32)
    init = np.zeros((), np.float32)
    expected = reduce_known(values, (1,), init, KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"])
    for offset in range(1, 16):
        memory = np.empty(3 * length + offset, np.float32)
        moved = memory[offset:].reshape(3, length)
        moved[...] = values
        value = reduce_known(moved, (1,), init, KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"])
        assert value.tobytes() == expected.tobytes()


@pytest.mark.parametrize("length", [9, 16, 23, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_neighbours_that_lie_apart_are_those_of_neighbours_side_by_side(length, dtype):
    """Numbers that round, zeros of both signs, infinities, and NaNs of two kinds, whichever of them NumPy chooses."""
    apart = np.moveaxis(random_array(7, (length, 5, 60), dtype), 0, -1)
    apart[0, :20], apart[1, :20, : length // 2], apart[1, :20, length // 2 :] = -0.0, -0.0, 0.0
    nans = np.array([0x7FC00001, 0xFFC00002], np.uint32).view(np.float32)
    for place in range(length):
        apart[2, place % 60, place], apart[2, place % 60, place - 3] = nans
        apart[3, place % 60, place], apart[3, place % 60, place - 2] = np.inf, -np.inf
    with np.errstate(all="ignore"):
        value = reduce_axis(apart, 2, KNOWN_REDUCERS["add"])
        expected = reduce_axis(np.ascontiguousarray(apart), 2, KNOWN_REDUCERS["add"])
    assert value.tobytes() == expected.tobytes()


def test_narrow_sums_accumulate_in_f32_and_round_once():
    ones = np.ones(4096, ml_dtypes.bfloat16)
    text = f"HloModule m\n\n{reducer('add', 'bf16')}\nENTRY e {{\n  p = bf16[4096] parameter(0)\n  z = bf16[] constant(0)\n  ROOT r = bf16[] reduce(p, z), dimensions={{0}}, to_apply=reducer\n}}\n"
    assert float(evaluate(text, ones)) == 4096
    assert float(pytest.importorskip("conformance.xla").run_hlo(text, ones)[0]) == 4096


@pytest.mark.parametrize(
    "window", [Window((WindowDimension(4096, padding_low=4095),)), Window((WindowDimension(4096),))]
)
def test_narrow_windows_accumulate_in_f32_and_round_once(window):
    ones = np.ones(4096, ml_dtypes.bfloat16)
    value = reduce_windows_known(ones, np.zeros((), ones.dtype), window, KNOWN_REDUCERS["add"], ELEMENT_TYPES["bf16"])
    assert float(value[-1]) == 4096


def test_the_initial_value_is_combined_once():
    """Also where XLA:CPU, which splits this cumulative window, does it more than once: 5 xor 5 is 0."""
    array = np.arange(40, dtype=np.int32)
    window = Window((WindowDimension(40, padding_low=39),))
    value = reduce_windows_known(array, np.array(5, np.int32), window, KNOWN_REDUCERS["xor"], ELEMENT_TYPES["s32"])
    assert (value == (np.bitwise_xor.accumulate(array) ^ 5)).all()


@pytest.mark.parametrize("operation", ["add", "multiply", *ORDERED])
def test_no_elements_give_the_initial_value(operation):
    init = np.array(-0.0, np.float32)
    value = reduce_known(np.ones((3, 0), np.float32), (1,), init, KNOWN_REDUCERS[operation], ELEMENT_TYPES["f32"])
    assert np.signbit(value).all()


# Any reducer

ARGMAX = """reducer {
  x = f32[] parameter(0)
  i = s32[] parameter(1)
  y = f32[] parameter(2)
  j = s32[] parameter(3)
  greater = pred[] compare(x, y), direction=GT
  unordered = pred[] compare(x, x), direction=NE
  pick = pred[] or(greater, unordered)
  equal = pred[] compare(x, y), direction=EQ
  earlier = pred[] compare(i, j), direction=LT
  tie = pred[] and(equal, earlier)
  pick_index = pred[] or(pick, tie)
  v = f32[] select(pick, x, y)
  k = s32[] select(pick_index, i, j)
  ROOT t = (f32[], s32[]) tuple(v, k)
}
"""


def run_both(text: str, *inputs: Any) -> None:
    """Bit for bit, NaNs aside."""
    assert_agrees(pytest.importorskip("conformance.xla").compile_hlo(text, 1), text, *inputs)


def assert_agrees(compiled: Any, text: str, *inputs: Any) -> None:
    expected = compiled.run(*inputs)
    actual = evaluate(text, *inputs)
    for ours, theirs in zip(actual if isinstance(actual, tuple) else (actual,), expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        both_nan = (ours != ours) & (theirs != theirs)
        same_sign = np.signbit(ours) == np.signbit(theirs)
        assert (both_nan | ((ours == theirs) & same_sign)).all(), (ours, theirs)


def argmax_text(shape: tuple[int, ...], axis: int) -> str:
    sizes = ",".join(map(str, shape))
    kept = ",".join(str(size) for dimension, size in enumerate(shape) if dimension != axis)
    return f"""HloModule m

{ARGMAX}
ENTRY e {{
  p = f32[{sizes}] parameter(0)
  q = s32[{sizes}] iota(), iota_dimension={axis}
  z = f32[] constant(-inf)
  c = s32[] constant(0)
  ROOT r = (f32[{kept}], s32[{kept}]) reduce(p, q, z, c), dimensions={{{axis}}}, to_apply=reducer
}}
"""


@pytest.mark.parametrize(("shape", "axis"), [((7, 33), 1), ((64, 5), 0), ((4, 50, 3), 1), ((3, 8), 1), ((1000,), 0)])
def test_argmax_is_xlas_with_ties_nan_and_zeros(shape, axis):
    text = argmax_text(shape, axis)
    compiled = pytest.importorskip("conformance.xla").compile_hlo(text, 1)
    for special in ("ties", "nan", "zeros"):
        generator = np.random.default_rng(5)
        array = generator.integers(-3, 4, shape).astype(np.float32)
        if special == "nan":
            array[generator.random(shape) < 0.05] = np.nan
        if special == "zeros":
            array = np.where(generator.random(shape) < 0.5, np.float32(0), np.float32(-0.0))
        assert_agrees(compiled, text, array)


def test_a_choice_that_depends_on_the_grouping_goes_step_by_step():
    """Neither NaN-propagating nor associative: with NaN between 2 and 1, the pairs are (2, NaN) or (NaN, 1)."""
    body = "p = pred[] compare(x, y), direction=GT\n  ROOT r = f32[] select(p, x, y)"
    array = np.random.default_rng(6).integers(-5, 6, (9, 41)).astype(np.float32)
    array[np.random.default_rng(7).random(array.shape) < 0.3] = np.nan
    text = f"HloModule m\n\nreducer {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  {body}\n}}\n\nENTRY e {{\n  p = f32[9,41] parameter(0)\n  z = f32[] constant(-inf)\n  ROOT r = f32[9] reduce(p, z), dimensions={{1}}, to_apply=reducer\n}}\n"
    value = evaluate(text, array)
    for row, result in zip(array, value, strict=True):
        total = np.float32(-np.inf)
        for element in row:
            total = total if total > element else element
        assert total == result or (total != total and result != result)


UNUSUAL = "reducer {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  h = f32[] constant(0.5)\n  m = f32[] multiply(x, h)\n  ROOT s = f32[] add(m, y)\n}\n"


@pytest.mark.usefixtures("newer_emitters")
@pytest.mark.parametrize(
    "root",
    [
        "f32[6] reduce(p, z), dimensions={1}, to_apply=reducer",
        "f32[7] reduce(p, z), dimensions={0}, to_apply=reducer",
        "f32[] reduce(p, z), dimensions={0,1}, to_apply=reducer",
        "f32[] reduce(p, z), dimensions={1,0}, to_apply=reducer",
        "f32[5,7] reduce-window(p, z), window={size=2x3 pad=0_0x1_1}, to_apply=reducer",
        "f32[6,7] map(p, p), dimensions={0,1}, to_apply=reducer",
    ],
)
def test_any_other_reducer_works_in_row_major_order(root):
    text = f"HloModule m\n\n{UNUSUAL}\nENTRY e {{\n  p = f32[6,7] parameter(0)\n  z = f32[] constant(1)\n  ROOT r = {root}\n}}\n"
    # Halving is exact, so each step rounds once, fused or not: the bits show the order.
    array = np.random.default_rng(8).integers(-4, 5, (6, 7)).astype(np.float32)
    run_both(text, array)


@pytest.mark.parametrize(
    "operation", ["reduce(p, q, z, w), dimensions={1}", "reduce-window(p, q, z, w), window={size=1x3 pad=0_0x1_1}"]
)
def test_each_component_of_a_variadic_reducer_is_reduced(operation):
    body = "reducer {\n  a = f32[] parameter(0)\n  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n  d = s32[] parameter(3)\n  s = f32[] maximum(c, a)\n  t = s32[] add(b, d)\n  ROOT r = (f32[], s32[]) tuple(s, t)\n}\n"
    kept = "6,7" if "window" in operation else "6"
    text = f"HloModule m\n\n{body}\nENTRY e {{\n  p = f32[6,7] parameter(0)\n  q = s32[6,7] parameter(1)\n  z = f32[] constant(-1)\n  w = s32[] constant(3)\n  ROOT r = (f32[{kept}], s32[{kept}]) {operation}, to_apply=reducer\n}}\n"
    run_both(text, random_array(1, (6, 7), np.float32), random_array(2, (6, 7), np.int32))


@pytest.mark.parametrize("which", ["x", "y"])
def test_a_reducer_that_returns_a_parameter_keeps_the_first_or_last(which):
    text = f"HloModule m\n\nreducer {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT c = f32[] copy({which})\n}}\n\nENTRY e {{\n  p = f32[4,9] parameter(0)\n  z = f32[] constant(7)\n  ROOT r = f32[4] reduce(p, z), dimensions={{1}}, to_apply=reducer\n}}\n"
    run_both(text, random_array(3, (4, 9), np.float32))


def test_a_reducer_in_another_width_than_its_operand_decides_the_type():
    text = f"HloModule m\n\n{reducer('add', 'f32')}\nENTRY e {{\n  p = bf16[4,9] parameter(0)\n  z = f32[] constant(0)\n  ROOT r = f32[4] reduce(p, z), dimensions={{1}}, to_apply=reducer\n}}\n"
    array = np.random.default_rng(9).integers(-9, 9, (4, 9)).astype(ml_dtypes.bfloat16)
    assert (evaluate(text, array) == array.astype(np.float32).sum(axis=1)).all()


def test_map_of_no_elements_is_empty():
    text = f"HloModule m\n\n{reducer('add', 'f32')}\nENTRY e {{\n  p = f32[0,3] parameter(0)\n  ROOT r = f32[0,3] map(p, p), dimensions={{0,1}}, to_apply=reducer\n}}\n"
    assert evaluate(text, np.zeros((0, 3), np.float32)).shape == (0, 3)


# Shape rules


SHAPES = {
    "x": "f32[4,5]",
    "y": "f32[5,4]",
    "v": "f32[4]",
    "w": "f32[1]",
    "i": "s32[4,5]",
    "z": "f32[]",
    "j": "s32[]",
    "t": "()",
}
REDUCERS = (
    ADD
    + """three { a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  ROOT r = f32[] add(a, b) }
four { a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  ROOT r = (f32[], f32[]) tuple(a, b) }
comparing { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT }
arrays { a = f32[2] parameter(0)
  b = f32[2] parameter(1)
  ROOT r = f32[2] add(a, b) }
making_three { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[3] broadcast(a), dimensions={} }
nothing { ROOT r = f32[] constant(0) }
"""
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f32[4] reduce(x, z), dimensions={2}, to_apply=add_f32", r"must lie in \[0, 2\)"),
        ("f32[4] reduce(x, z), dimensions={-1}, to_apply=add_f32", r"must lie in \[0, 2\)"),
        ("f32[4] reduce(x, z), dimensions={1,1}, to_apply=add_f32", "twice"),
        ("f32[4] reduce(x, j), dimensions={1}, to_apply=add_f32", "initial value 0"),
        ("f32[4] reduce(x, w), dimensions={1}, to_apply=add_f32", "initial value 0"),
        ("f32[4] reduce(i, z), dimensions={1}, to_apply=add_f32", "array 0"),
        ("f32[4] reduce(x, x, z), dimensions={1}, to_apply=add_f32", "as many initial values"),
        ("f32[4] reduce(x, z), dimensions={1}, to_apply=three", "2 parameters"),
        ("f32[4] reduce(x, z), dimensions={1}, to_apply=comparing", "parameter 0"),
        ("f32[] reduce(v, z), dimensions={0}, to_apply=arrays", "scalars"),
        ("f32[4] reduce(t, z), dimensions={1}, to_apply=add_f32", "must be an array"),
        ("(f32[4], f32[5]) reduce(x, y, z, z), dimensions={1}, to_apply=four", "same dimensions"),
        ("f32[4,5] reduce-window(x, z), window={size=2}, to_apply=add_f32", "has 1 dimensions"),
        ("f32[4,5] reduce-window(x, z), window={size=0x1}, to_apply=add_f32", "size of window dimension 0"),
        (
            "f32[4,5] reduce-window(x, z), window={size=1x1 stride=1x0}, to_apply=add_f32",
            "stride of window dimension 1",
        ),
        ("f32[4,5] reduce-window(x, z), window={size=1x1 lhs_dilate=1x0}, to_apply=add_f32", "base dilation"),
        ("f32[4,5] reduce-window(x, z), window={size=1x1 rhs_dilate=1x0}, to_apply=add_f32", "window dilation"),
        ("f32[] map(), dimensions={}, to_apply=nothing", "at least one operand"),
        ("f32[4,5] map(x, x), dimensions={0}, to_apply=add_f32", "all 2 dimensions"),
        ("f32[4,5] map(x, x), dimensions={1,0}, to_apply=add_f32", "all 2 dimensions"),
        ("f32[4,5] map(x, y), dimensions={0,1}, to_apply=add_f32", "same dimensions"),
        ("f32[4,5] map(x, i), dimensions={0,1}, to_apply=add_f32", "parameter 1"),
        ("f32[4,5] map(x), dimensions={0,1}, to_apply=add_f32", "takes 2 parameters"),
        ("f32[4] map(v, v), dimensions={0}, to_apply=making_three", "return a scalar"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    assert_refused(call, message, REDUCERS, **SHAPES)


@pytest.mark.parametrize(
    ("operands", "call", "shape"),
    [
        ({"x": "f32[<=4,5,6]"}, "reduce(x, z), dimensions={1}, to_apply=add_f32", "f32[<=4,6]"),
        ({"x": "f32[<=4,5,6]"}, "reduce(x, z), dimensions={0}, to_apply=add_f32", "f32[5,6]"),
        ({"x": "f32[4,5]"}, "reduce(x, z), dimensions={1}, to_apply=of_one", "(f32[4])"),
    ],
)
def test_results_keep_flags_of_dimensions_and_tuples_of_one(operands, call, shape):
    of_one = "of_one { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = (f32[]) tuple(a) }\n"
    assert str(hloexec.parse(op(call, ADD + of_one, **operands, z="f32[]")).entry.root.shape) == shape


@pytest.mark.parametrize(
    "window", ["size=2x2", "size=6x2", "size=3x2 pad=2_0x0_0", "size=2x2 lhs_dilate=2x1 rhs_dilate=1x3 pad=-1_2x0_0"]
)
def test_the_shape_of_a_reduce_window_is_the_one_that_xla_infers(window):
    _hlo = pytest.importorskip("jaxlib._hlo")
    lines = "ENTRY e {\n  p = f32[4,5] parameter(0)\n  z = f32[] constant(0)\n  ROOT r = "
    call = f"reduce-window(p, z), window={{{window}}}, to_apply=reducer\n}}\n"
    head = f"HloModule m\n\n{reducer('add', 'f32')}\n{lines}"
    printed = _hlo.hlo_module_from_text(head + call).to_string()
    assert (
        str(hloexec.parse(head + call).entry.root.shape) == re.search(r"= (f32\[[^\]]*\])\S* reduce-window", printed)[1]
    )
