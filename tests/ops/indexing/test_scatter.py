"""scatter against XLA bit for bit: placement, skipping, order, rounding, and any combiner."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from conformance.cell import shape_of
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, evaluated, module_text, random_array
from tests.ops.evaluation import assert_refused, evaluate
from tests.ops.indexing.index_windows import braces, changed, draw_indices, draw_windows
from tests.plan.loops import loop
from tests.text.building import ADD

# XLA:CPU takes no arrays of one-bit integers.
TYPES = [name for name, entry in ELEMENT_TYPES.items() if entry.is_array and name not in ("s1", "u1")]
ARITHMETIC = "s4 s8 s32 s64 u4 u16 u32 u64 f16 bf16 f32 f64".split()

sizes = st.sampled_from([1, 1, 2, 3, 4, 5])
few = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _combiner(name: str, element: str, body: str) -> str:
    """A computation of two scalars; `body` is a list of instructions on a and b, the last of which is the root."""
    *before, root = body.split("; ")
    lines = [f"  {line}" for line in before]
    return "\n".join(
        [
            f"{name} {{",
            f"  a = {element}[] parameter(0)",
            f"  b = {element}[] parameter(1)",
            *lines,
            f"  ROOT {root}",
            "}",
            "",
        ]
    )


BODIES = {
    "add": "r = T[] add(a, b)",
    "multiply": "r = T[] multiply(a, b)",
    "minimum": "r = T[] minimum(b, a)",
    "maximum": "r = T[] maximum(a, b)",
    "and": "r = T[] and(a, b)",
    "or": "r = T[] or(a, b)",
    "xor": "r = T[] xor(b, a)",
    "second": "r = T[] copy(b)",
    "first": "r = T[] copy(a)",
    "subtract": "r = T[] subtract(a, b)",
    "mix": "d = T[] add(a, a); r = T[] subtract(b, d)",
}
LOGICAL, ORDERED = ("and", "or", "xor"), ("minimum", "maximum")


def _computations(cases: list[tuple[str, str]]) -> str:
    """The computations of (element type, body) pairs, each once."""
    return "\n".join(
        _combiner(f"{body}_{name}", name, BODIES[body].replace("T[]", f"{name}[]")) for name, body in sorted(set(cases))
    )


def _indices(draw: Any, shape: Any) -> Any:
    return draw_indices(draw, shape, near=(-1, 5), share=0.9)


@st.composite
def _scatters(
    draw: Any, bodies: Sequence[str] = tuple(BODIES), batch_sizes: tuple[int, ...] = (1, 2, 3, 7), most: int = 2
) -> tuple[Case, tuple[str, str]]:
    name = draw(st.sampled_from(ARITHMETIC))
    bodies = [body for body in bodies if body not in LOGICAL or ELEMENT_TYPES[name].is_integral]
    body = draw(st.sampled_from(bodies))
    source = draw(st.lists(sizes, min_size=1, max_size=4))
    most = min(most, len(source) - 1)
    windows = draw_windows(draw, source, most_batching=most, least_mapped=1, batch_sizes=batch_sizes)
    attributes = (
        f"update_window_dims={braces(windows.window_dims)}, inserted_window_dims={braces(windows.left_out)}, "
        f"scatter_dims_to_operand_dims={braces(windows.mapped)}, input_batching_dims={braces(windows.batching)}, "
        f"scatter_indices_batching_dims={braces(windows.index_batching)}, "
        f"index_vector_dim={windows.index_vector_dim}, to_apply={body}_{name}"
    )
    seed, storage = draw(st.integers(0, 2**20)), ELEMENT_TYPES[name].storage
    operands = [
        random_array(seed, source, storage),
        _indices(draw, windows.index_shape),
        random_array(seed + 1, windows.shape, storage),
    ]
    return Case("scatter", operands, shape_of(operands[0]), attributes), (name, body)


@few
@given(st.lists(_scatters(), min_size=4, max_size=10))
def test_scatter_is_that_of_xla(drawn: list[tuple[Case, tuple[str, str]]]) -> None:
    assert_same_as_xla([case for case, _ in drawn], _computations([key for _, key in drawn]))


@settings(few, max_examples=examples(5))
@given(st.lists(_scatters(bodies=("add", "second"), batch_sizes=(1,), most=0), min_size=8, max_size=12))
def test_a_single_window_is_put_where_xla_puts_it(drawn: list[tuple[Case, tuple[str, str]]]) -> None:
    assert_same_as_xla([case for case, _ in drawn], _computations([key for _, key in drawn]))


@pytest.mark.parametrize("body", ["add", "second"])
def test_a_loop_puts_single_windows_in_place(body: str) -> None:
    step = """  row = f32[2] dynamic-slice(y, i), dynamic_slice_sizes={2}
  new = f32[9] scatter(x, i, row), update_window_dims={0}, inserted_window_dims={},
    scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=COMBINER"""
    carried, combiner = {"x": "f32[9]", "y": "f32[9]"}, _computations([("f32", body)])
    step = step.replace("COMBINER", f"{body}_f32")
    module = hloexec.parse(loop(carried, step, "new, y", first=-3, trips=25, computations=combiner))
    y = np.arange(2.0, 11.0, dtype=np.float32)
    expected = np.zeros(9, np.float32)
    for i in range(8):
        expected[i : i + 2] = y[i : i + 2] + (expected[i : i + 2] if body == "add" else 0)
    x = np.zeros(9, np.float32)
    for planner in (True, False):
        assert hloexec.run(module, x, y, planner=planner)[0].tolist() == expected.tolist()
    assert not x.any()


def test_a_loop_puts_a_window_of_each_row_in_place() -> None:
    """What jax.vmap makes of `x.at[i].set(y)`; the second lies outside in all but one."""
    step = """  nine = s32[] constant(9)
  far = s32[] multiply(i, nine)
  a = s32[1] reshape(i)
  b = s32[1] reshape(far)
  columns = s32[2] concatenate(a, b), dimensions={0}
  indices = s32[2,1] reshape(columns)
  new = f32[2,9] scatter(x, indices, y), update_window_dims={}, inserted_window_dims={1},
    scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1,
    to_apply=second_f32"""
    carried = {"x": "f32[2,9]", "y": "f32[2]"}
    module = hloexec.parse(loop(carried, step, "new, y", trips=9, computations=_computations([("f32", "second")])))
    x, y = np.zeros((2, 9), np.float32), np.array([1, 2], np.float32)
    expected = np.array([[1] * 9, [2] + [0] * 8], np.float32)
    for planner in (True, False):
        assert hloexec.run(module, x, y, planner=planner)[0].tolist() == expected.tolist()
    assert not x.any()


ROWS = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"


@pytest.mark.slow_cases("add", "first")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("body", list(BODIES))
def test_many_updates_of_one_row_round_step_by_step_as_in_xla(body: str) -> None:
    cases, keys = [], []
    indices = np.array([[0], [2], [0], [0], [1], [0], [2], [0], [0], [3], [-1], [0]], np.int32)
    for seed, name in enumerate(ARITHMETIC):
        element_type = ELEMENT_TYPES[name]
        if body in LOGICAL and not element_type.is_integral:
            continue
        operand = random_array(seed, (3, 5), element_type.storage)
        updates = random_array(seed + 50, (12, 5), element_type.storage)
        cases.append(Case("scatter", [operand, indices, updates], f"{name}[3,5]", f"{ROWS}, to_apply={body}_{name}"))
        keys.append((name, body))
    assert_same_as_xla(cases, _computations(keys))


@pytest.mark.slow_cases("add-1", "minimum-3", "second-1", "subtract-3")
@pytest.mark.sampled(7)
@pytest.mark.parametrize("row", [1, 3, 20])
@pytest.mark.parametrize("body", [body for body in BODIES if body != "mix"])
def test_a_few_crowded_rows_among_many_round_step_by_step_as_in_xla(body: str, row: int) -> None:
    # Rounds of many rows, then of fewer than are worth one: rows 0 and 1 get 200 updates, most others 0 to 3.
    generator = np.random.default_rng(0)
    crowd, spread = generator.integers(0, 2, 200), generator.integers(-5, 1005, 300)
    indices = generator.permutation(np.concatenate((crowd, spread))).astype(np.int32)[:, None]
    cases, keys = [], []
    for seed, name in enumerate(ARITHMETIC):
        element_type = ELEMENT_TYPES[name]
        if body in LOGICAL and not element_type.is_integral:
            continue
        for rows in (1000, 3000):
            operand = random_array(seed, (rows, row), element_type.storage)
            updates = random_array(seed + 50, (500, row), element_type.storage)
            if body == "multiply" and element_type.is_floating:
                # Products of 200 factors that neither vanish nor overflow: denormals are flushed by XLA:CPU.
                updates = (1 + abs(updates.astype(np.float64)) % 0.01).astype(element_type.storage)
            attributes = f"{ROWS}, to_apply={body}_{name}"
            cases.append(Case("scatter", [operand, indices, updates], shape_of(operand), attributes))
            keys.append((name, body))
    assert_same_as_xla(cases, _computations(keys))


def test_overwriting_works_for_every_element_type_as_in_xla() -> None:
    indices = np.array([[2], [0], [2], [9]], np.int32)
    cases, keys = [], []
    for seed, name in enumerate(TYPES):
        storage = ELEMENT_TYPES[name].storage
        operands = [random_array(seed, (3, 2), storage), indices, random_array(seed + 50, (4, 2), storage)]
        cases.append(Case("scatter", operands, f"{name}[3,2]", f"{ROWS}, to_apply=second_{name}"))
        keys.append((name, "second"))
    assert_same_as_xla(cases, _computations(keys))


@pytest.mark.parametrize("body", ORDERED)
@pytest.mark.parametrize("name", "f16 bf16 f32 f64".split())
def test_minimum_and_maximum_order_zeros_and_propagate_nan(body: str, name: str) -> None:
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0], np.float32).astype(ELEMENT_TYPES[name].storage)
    operand = np.repeat(special, len(special))
    indices = np.arange(len(operand), dtype=np.int32)[:, None]
    updates = np.tile(special, len(special))
    attributes = f"update_window_dims={{}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={body}_{name}"
    cases = [Case("scatter", [operand, indices, updates], shape_of(operand), attributes)]
    (result,) = evaluated(_module(cases, [(name, body)]), cases[0].operands)
    # By definition (IEEE 754-2019 minimum and maximum): NaN wins, and -0 lies below +0.
    choose = min if body == "minimum" else max
    for ours, theirs, found in zip(operand.astype(float), updates.astype(float), result.astype(float), strict=True):
        if np.isnan(ours) or np.isnan(theirs):
            assert np.isnan(found)
        else:
            expected = choose((ours, np.copysign(1, ours)), (theirs, np.copysign(1, theirs)))
            assert (found, np.copysign(1, found)) == expected


def _module(cases: list[Case], keys: list[tuple[str, str]]) -> str:
    return module_text(cases, _computations(keys))


@pytest.mark.parametrize("body", ["add", "multiply"])
@pytest.mark.parametrize("is_even", [True, False])
def test_many_long_rows_at_few_places_are_combined_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, body: str, is_even: bool
) -> None:
    """Against the definition, with the zeros and NaNs that it gives; the rows are so many that they are folded.

    Where they are part of longer rows, they are not copied as a whole for each place, as NumPy's `take` would.
    """
    random = np.random.default_rng(8)
    places = random.integers(0, 7, 900) if is_even else np.minimum(random.geometric(0.5, 900), 6)
    special = np.array([1.5, -0.0, 0.0, np.inf, np.nan], np.float32)
    pieces = random.standard_normal((900, 20)).astype(np.float32)
    pieces[:, 15:] = special[random.integers(0, 3 if body == "add" else 5, (900, 5))]
    operand = np.full((8, 20), -0.0, np.float32)
    step = {"add": np.add, "multiply": np.multiply}[body]
    expected = operand.copy()
    with np.errstate(all="ignore"):
        for place, piece in zip(places, pieces, strict=True):
            expected[place] = step(expected[place], piece)
    text = f"""HloModule m

combine {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] {body}(a, b)
}}

ENTRY e {{
  x = f32[8,20] parameter(0)
  i = s32[900,1] parameter(1)
  u = f32[900,20] parameter(2)
  ROOT r = f32[8,20] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=combine
}}
"""
    indices = places.astype(np.int32)[:, None]
    assert evaluate(text, operand, indices, pieces).tobytes() == expected.tobytes()

    def taken(array: np.ndarray, *numbers: Any, **how: Any) -> np.ndarray:
        assert array.flags.c_contiguous
        return array.take(*numbers, **how)

    monkeypatch.setattr(np, "take", taken)
    longer = "u = f32[900,20] slice(v), slice={[0:900], [5:25]}"
    text = text.replace("u = f32[900,20] parameter(2)", f"v = f32[900,30] parameter(2)\n  {longer}")
    found = hloexec.run(hloexec.parse(text), operand, indices, np.pad(pieces, ((0, 0), (5, 5))))
    assert found.tobytes() == expected.tobytes()


def test_scatter_add_of_many_bf16_ones_stops_at_256() -> None:
    ones = np.ones(4096, ml_dtypes.bfloat16)
    operand, indices = np.zeros(1, ml_dtypes.bfloat16), np.zeros((4096, 1), np.int32)
    attributes = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_bf16"
    cases = [Case("scatter", [operand, indices, ones], "bf16[1]", attributes)]
    (result,) = evaluated(_module(cases, [("bf16", "add")]), cases[0].operands)
    assert float(result[0]) == 256
    assert_same_as_xla(cases, _computations([("bf16", "add")]))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("body", ["add", "multiply"])
def test_one_row_that_gets_every_update_rounds_each_to_nearest(body: str, name: str) -> None:
    # Denormals, overflow and all: the exact sum or product in f64, rounded once per step.
    storage = ELEMENT_TYPES[name].storage
    patterns = np.random.default_rng(1).integers(0, 1 << 16, (1 << 14, 2)).astype(np.uint16)
    starts, steps = patterns.view(storage).T
    finite = np.isfinite(starts.astype(np.float32)) & np.isfinite(steps.astype(np.float32))
    starts, steps = starts[finite], steps[finite]
    attributes = f"update_window_dims={{}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={body}_{name}"
    # Fifteen rows a time are too few for a round.
    for first in range(0, 150, 15):
        operand, update = starts[first : first + 15], steps[first : first + 15]
        indices = np.arange(15, dtype=np.int32)[:, None]
        cases = [Case("scatter", [operand, indices, update], shape_of(operand), attributes)]
        (result,) = evaluated(_module(cases, [(name, body)]), cases[0].operands)
        wide, other = operand.astype(np.float64), update.astype(np.float64)
        with np.errstate(all="ignore"):
            expected = narrow(wide + other if body == "add" else wide * other, ELEMENT_TYPES[name])
        assert_array_equal(result.view(np.uint16), expected.view(np.uint16))


def test_windows_without_index_components_all_count() -> None:
    # XLA:CPU keeps only the last of such windows; by definition each is combined in turn.
    operands = [np.array([-1], np.int32), np.zeros((0, 3), np.int32), np.array([[-1, 4, 5]], np.int32)]
    attributes = "update_window_dims={0}, inserted_window_dims={}, scatter_dims_to_operand_dims={}, index_vector_dim=0, to_apply=add_s32"
    (result,) = evaluated(_module([Case("scatter", operands, "s32[1]", attributes)], [("s32", "add")]), operands)
    assert result.tolist() == [-1 - 1 + 4 + 5]


def test_several_operands_are_combined_together_as_in_xla() -> None:
    computations = """
both {
  a = s32[] parameter(0)
  x = f32[] parameter(1)
  b = s32[] parameter(2)
  y = f32[] parameter(3)
  s = s32[] subtract(b, a)
  t = f32[] multiply(y, x)
  u = f32[] subtract(t, y)
  ROOT r = (s32[], f32[]) tuple(s, u)
}
apart {
  a = s32[] parameter(0)
  x = f32[] parameter(1)
  b = s32[] parameter(2)
  y = f32[] parameter(3)
  s = s32[] add(b, a)
  ROOT r = (s32[], f32[]) tuple(s, y)
}
"""
    indices = np.array([[2], [0], [2], [9], [2], [0]], np.int32)
    operands = [
        random_array(1, (3, 2), np.int32), random_array(2, (3, 2), np.float32), indices,
        random_array(3, (6, 2), np.int32), random_array(4, (6, 2), np.float32),
    ]  # fmt: skip
    for name in ("both", "apart"):
        text = f"""HloModule m
{computations}
ENTRY main {{
  a = s32[3,2] parameter(0)
  b = f32[3,2] parameter(1)
  i = s32[6,1] parameter(2)
  u = s32[6,2] parameter(3)
  v = f32[6,2] parameter(4)
  ROOT r = (s32[3,2], f32[3,2]) scatter(a, b, i, u, v), {ROWS}, to_apply={name}
}}"""
        xla = pytest.importorskip("conformance.xla")
        for ours, theirs in zip(evaluated(text, operands), xla.run_hlo(text, *operands), strict=True):
            assert_array_equal(ours, theirs)


def test_dynamic_operand_keeps_its_extent() -> None:
    text = """HloModule m
add { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b) }
ENTRY main {
  p = s32[<=5] parameter(0)
  i = s32[<=4,1] parameter(1)
  u = s32[<=4,2] parameter(2)
  ROOT r = s32[<=5] scatter(p, i, u), update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
}"""
    inputs = [np.array([1, 2, 3], np.int32), np.array([[0], [2]], np.int32), np.array([[10, 20], [30, 40]], np.int32)]
    assert [value.tolist() for value in evaluated(text, inputs)] == [[11, 22, 33]]


@pytest.mark.parametrize("cut", ["i", "u", "both"])
def test_batch_has_the_extent_of_the_dynamic_ones_among_indices_and_updates(cut: str) -> None:
    names = {"i": ("ii", "u"), "u": ("i", "uu"), "both": ("ii", "uu")}[cut]
    text = f"""HloModule m
add {{ a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b) }}
ENTRY main {{
  p = s32[5] parameter(0)
  i = s32[4,1] parameter(1)
  u = s32[2,4] parameter(2)
  n = s32[] parameter(3)
  ii = s32[<=4,1] set-dimension-size(i, n), dimensions={{0}}
  uu = s32[2,<=4] set-dimension-size(u, n), dimensions={{1}}
  ROOT r = s32[5] scatter(p, {", ".join(names)}), update_window_dims={{0}}, inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
}}"""
    updates = np.array([[10, 20, 30, 40], [1, 2, 3, 4]], np.int32)
    inputs = [np.zeros(5, np.int32), np.array([[0], [2], [2], [3]], np.int32), updates, np.int32(3)]
    assert [value.tolist() for value in evaluated(text, inputs)] == [[10, 1, 50, 5, 0]]


COMBINERS = """one { a = f32[] parameter(0)
  ROOT r = f32[] negate(a) }
array { a = f32[] parameter(0)
  b = f32[3,4] parameter(1)
  ROOT r = f32[] negate(a) }
other { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = s32[] constant(0) }
pair { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = (f32[], f32[]) tuple(a, b) }
"""
SCATTERED = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"


@pytest.mark.parametrize(
    ("operands", "changes", "combiner", "message"),
    [
        ("m, i, u, u", "", "add_f32", "an odd number of operands"),
        ("m, f, u", "", "add_f32", "must be integers"),
        ("m, i, v", "", "add_f32", "must have rank 2"),
        ("m, i, w", "", "add_f32", r"have sizes \[6\]"),
        ("m, i, x", "", "add_f32", "must not exceed the operand"),
        ("m, i, u", "inserted_window_dims={0,0}", "add_f32", "repeats a dimension"),
        ("m, i, u", "inserted_window_dims={}", "add_f32", "update_window_dims must name"),
        ("m, i, u", "update_window_dims={2}", "add_f32", "names dimension 2"),
        ("m, i, u", "scatter_dims_to_operand_dims={5}", "add_f32", "names dimension 5"),
        ("m, i, u", "scatter_dims_to_operand_dims={}", "add_f32", "one operand dimension for each of the 1 components"),
        ("m, i, u", "input_batching_dims={0} scatter_indices_batching_dims={0}", "add_f32", "must be of one size"),
        ("m, i, u", "index_vector_dim=-1", "add_f32", "index_vector_dim -1"),
        ("m, i, u", "", "one", "must take 2 parameters"),
        ("m, i, u", "", "array", "must be scalars"),
        ("m, i, u", "", "other", "same element type"),
        ("m, i, u", "", "pair", "must return 1 scalars"),
    ],
)  # fmt: skip
def test_shape_rule_says_what_is_wrong(operands: str, changes: str, combiner: str, message: str) -> None:
    call = f"f32[3,4] scatter({operands}), {changed(SCATTERED, changes)}, to_apply={combiner}"
    shapes = {
        "m": "f32[3,4]",
        "i": "s32[5,1]",
        "u": "f32[5,4]",
        "f": "f32[5,1]",
        "v": "f32[5]",
        "w": "f32[6,4]",
        "x": "f32[5,5]",
    }
    assert_refused(call, message, ADD + COMBINERS, **shapes)
