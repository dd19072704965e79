"""dynamic-slice, dynamic-update-slice and gather, against XLA bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hloexec
from conformance.cell import shape_of, text_of
from hloexec import testing
from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import ArrayShape
from hloexec.ops.indexing.dynamic_slice import DynamicSlice, DynamicSliceAttributes, DynamicUpdateSlice
from hloexec.ops.indexing.fast.indexing import FastDynamicSlice, FastDynamicUpdateSlice, FastGather
from hloexec.ops.indexing.gather import Gather, GatherAttributes
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, module_text, random_array
from tests.ops.evaluation import assert_refused, evaluate
from tests.ops.indexing.index_windows import braces, changed, draw_indices, draw_windows

TYPES = [name for name, entry in ELEMENT_TYPES.items() if entry.is_array and name not in ("s1", "u1")]

sizes = st.sampled_from([1, 1, 2, 3, 4, 5])
types = st.sampled_from(TYPES)
few = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _array(draw: Any, name: str, shape: Any) -> Any:
    return draw(testing.arrays(f"{name}[{','.join(map(str, shape))}]"))


def _indices(draw: Any, shape: Any) -> Any:
    return draw_indices(draw, shape, near=(-2, 7), share=0.8)


@st.composite
def _dynamic_slices(draw: Any) -> Case:
    name, source = draw(types), draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=4))
    window = [draw(st.integers(0, size)) for size in source]
    operands = [_array(draw, name, source), *map(np.array, _indices(draw, (len(source),)))]
    return Case("dynamic-slice", operands, text_of(name, window), f"dynamic_slice_sizes={braces(window)}")


@st.composite
def _dynamic_update_slices(draw: Any) -> Case:
    case = draw(_dynamic_slices())
    operand, *starts = case.operands
    window = [int(size) for size in case.attributes.partition("{")[2].rstrip("}").split(",") if size]
    update = random_array(draw(st.integers(0, 2**20)), window, operand.dtype)
    return Case("dynamic-update-slice", [operand, update, *starts], shape_of(operand))


@st.composite
def _gathers(draw: Any) -> Case:
    name, source = draw(types), draw(st.lists(sizes, min_size=1, max_size=4))
    windows = draw_windows(draw, source, most_batching=2, least_mapped=0, batch_sizes=(0, 1, 2, 3))
    attributes = (
        f"offset_dims={braces(windows.window_dims)}, collapsed_slice_dims={braces(windows.left_out)}, "
        f"start_index_map={braces(windows.mapped)}, operand_batching_dims={braces(windows.batching)}, "
        f"start_indices_batching_dims={braces(windows.index_batching)}, "
        f"index_vector_dim={windows.index_vector_dim}, slice_sizes={braces(windows.sizes)}"
    )
    operands = [_array(draw, name, source), _indices(draw, windows.index_shape)]
    return Case("gather", operands, text_of(name, windows.shape), attributes)


@pytest.mark.usefixtures("newer_emitters")
@few
@given(st.lists(st.one_of(_dynamic_slices(), _dynamic_update_slices()), min_size=8, max_size=20))
def test_dynamic_slices_clamp_as_in_xla(cases: list[Case]) -> None:
    assert_same_as_xla(cases)


@settings(few, max_examples=examples(60))
@given(st.one_of(_dynamic_slices(), _dynamic_update_slices()), st.booleans())
def test_kernels_bound_to_shapes_give_what_others_do(case: Case, is_vector: bool) -> None:
    operands = case.operands
    first = 1 if case.opcode == "dynamic-slice" else 2
    if is_vector:
        operands = [*operands[:first], np.array(operands[first:])]
    shapes = tuple(ArrayShape(element_type_of(operand.dtype), operand.shape) for operand in operands)
    if case.opcode == "dynamic-slice":
        sizes = [int(size) for size in case.attributes.partition("{")[2].rstrip("}").split(",") if size]
        attributes = DynamicSliceAttributes(dynamic_slice_sizes=tuple(sizes))
        expected = DynamicSlice.evaluate(*operands, attributes=attributes, operand_shapes=shapes)
        bound = FastDynamicSlice.bind(attributes=attributes, operand_shapes=shapes)
        assert_same_array(bound(*operands), expected)
        return
    before = operands[0].copy()
    given = {"shape": shapes[0], "operand_shapes": shapes}
    expected = DynamicUpdateSlice.evaluate(*operands, **given)
    assert_same_array(FastDynamicUpdateSlice.bind(**given)(*operands), expected)
    assert operands[0].tobytes() == before.tobytes()
    bound = FastDynamicUpdateSlice.bind(**given)
    assert_same_array(bound(before, *operands[1:], out=before), expected)


def assert_same_array(actual: Any, expected: Any) -> None:
    assert type(actual) is np.ndarray
    assert (actual.dtype, actual.shape, actual.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.usefixtures("newer_emitters")
@settings(few, max_examples=examples(20))
@given(st.lists(_gathers(), min_size=6, max_size=14))
def test_gather_clamps_out_of_range_indices_as_xla_does(cases: list[Case]) -> None:
    assert_same_as_xla(cases)


@settings(few, max_examples=examples(150))
@given(_gathers())
def test_gather_depends_neither_on_the_memory_order_nor_keeps_the_operand(case: Case) -> None:
    operand, indices = case.operands
    instructions = hloexec.parse(module_text([case])).entry.instructions
    (attributes,) = (instruction.attributes for instruction in instructions if instruction.opcode == "gather")
    shapes = tuple(ArrayShape(element_type_of(array.dtype), array.shape) for array in case.operands)
    expected = Gather.evaluate(operand, indices, attributes=attributes, operand_shapes=shapes)
    assert not np.shares_memory(expected, operand)
    bound = FastGather.bind(attributes=attributes, operand_shapes=shapes)
    for stored in (operand, np.asfortranarray(operand), np.repeat(operand, 2, axis=-1)[..., ::2]):
        found = bound(stored, indices)
        assert_same_array(found, expected)
        assert not np.shares_memory(found, stored)


@pytest.mark.slow
def test_gather_of_every_element_type_is_that_of_xla() -> None:
    indices = np.array([[1], [5], [-2], [0]], np.int32)
    row = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
    window = "offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={1}, index_vector_dim=1, slice_sizes={2,3}"
    cases = []
    for seed, name in enumerate(TYPES):
        operand = random_array(seed, (3, 4), ELEMENT_TYPES[name].storage)
        cases.append(Case("gather", [operand, indices], f"{name}[4,4]", row))
        cases.append(Case("gather", [operand, indices], f"{name}[4,2,3]", window))
    assert_same_as_xla(cases)


@pytest.mark.parametrize("name", "s2 u2 s4 u4".split())
def test_sub_byte_indices_count_like_any_other(name: str) -> None:
    # XLA:CPU does not take indices this narrow; a wider type holds the same numbers.
    operand = np.arange(12, dtype=np.int32).reshape(3, 4)
    narrow = np.array([[1], [0], [-1]]).astype(ELEMENT_TYPES[name].storage)
    attributes = GatherAttributes(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, 4)
    )
    rows = Gather.evaluate(
        operand, narrow, attributes=attributes, operand_shapes=(ArrayShape(ELEMENT_TYPES["s32"], (3, 4)),)
    )
    assert rows.tolist() == [operand[min(max(int(i), 0), 2)].tolist() for i in narrow.astype(np.int64)[:, 0]]


def test_dynamic_slice_of_a_scalar_is_the_scalar() -> None:
    # XLA's importer does not take this one; its shape inference does.
    text = "HloModule m\nENTRY e {\n p = s32[] parameter(0)\n q = s32[] parameter(1)\n r = s32[] dynamic-slice(p), dynamic_slice_sizes={}\n u = s32[] dynamic-update-slice(p, q)\n ROOT t = (s32[], s32[]) tuple(r, u)\n}"
    assert [int(value) for value in evaluate(text, np.array(4, np.int32), np.array(7, np.int32))] == [4, 7]


def test_starts_may_come_as_one_array() -> None:
    # XLA's importer takes scalars only, though its shape inference has both.
    text = """HloModule m
ENTRY e {
  p = s32[3,4] parameter(0)
  u = s32[2,2] parameter(1)
  i = u8[2] parameter(2)
  r = s32[2,2] dynamic-slice(p, i), dynamic_slice_sizes={2,2}
  s = s32[3,4] dynamic-update-slice(p, u, i)
  ROOT t = (s32[2,2], s32[3,4]) tuple(r, s)
}"""
    operand = np.arange(12, dtype=np.int32).reshape(3, 4)
    window, updated = evaluate(text, operand, np.full((2, 2), -1, np.int32), np.array([0, 200], np.uint8))
    assert window.tolist() == [[2, 3], [6, 7]]
    assert updated.tolist() == [[0, 1, -1, -1], [4, 5, -1, -1], [8, 9, 10, 11]]


def test_dynamic_slice_is_a_view_of_its_operand() -> None:
    operand = np.arange(12, dtype=np.int32).reshape(3, 4)
    text = "HloModule m\nENTRY e {\n p = s32[3,4] parameter(0)\n i = s32[] parameter(1)\n ROOT r = s32[2,2] dynamic-slice(p, i, i), dynamic_slice_sizes={2,2}\n}"
    assert np.shares_memory(evaluate(text, operand, np.array(1, np.int32)), operand)


def test_dynamic_operands_are_zero_between_extent_and_bound() -> None:
    text = """HloModule m
ENTRY e {
  p = s32[<=5] parameter(0)
  i = s32[] parameter(1)
  u = s32[2] parameter(2)
  q = s32[2,1] parameter(3)
  window = s32[3] dynamic-slice(p, i), dynamic_slice_sizes={3}
  updated = s32[<=5] dynamic-update-slice(p, u, i)
  gathered = s32[2] gather(p, q), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}
  whole = s32[2,<=5] gather(p, q), offset_dims={1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={5}
  ROOT all = (s32[3], s32[<=5], s32[2], s32[2,<=5]) tuple(window, updated, gathered, whole)
}"""
    operand = np.array([1, 2, 3], np.int32)
    results = evaluate(text, operand, np.array(2, np.int32), np.array([8, 9], np.int32), np.array([[0], [4]], np.int32))
    assert [result.tolist() for result in results] == [[3, 0, 0], [1, 2, 8], [1, 0], [[1, 2, 3], [1, 2, 3]]]


GATHERED = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
SHAPES = {
    "m": "f32[3,4]", "s": "s32[]", "z": "f32[]", "l": "s64[]", "o": "s32[1]", "k": "s32[3]", "q": "f32[4,4]", "v": "f32[4]", "n": "s32[1,1]",
    "f": "f32[5,1]", "i": "s32[5,1]", "w": "s32[5,2]", "b": "s32[3,1]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f32[1,1] dynamic-slice(m, s), dynamic_slice_sizes={1,1}", "one start index per dimension"),
        ("f32[1,1] dynamic-slice(m, s, z), dynamic_slice_sizes={1,1}", "must be integers"),
        ("f32[1,1] dynamic-slice(m, s, l), dynamic_slice_sizes={1,1}", "one element type"),
        ("f32[1,1] dynamic-slice(m, s, o), dynamic_slice_sizes={1,1}", "must be scalars"),
        ("f32[1,1] dynamic-slice(m, k), dynamic_slice_sizes={1,1}", "one element per dimension"),
        ("f32[1,1] dynamic-slice(m, s, s), dynamic_slice_sizes={4,1}", "a size within it"),
        ("f32[1,1] dynamic-slice(m, s, s), dynamic_slice_sizes={1}", "a size within it"),
        ("f32[3,4] dynamic-update-slice(m, q, s, s)", "must fit into the operand"),
        ("f32[3,4] dynamic-update-slice(m, v, s, s)", "must fit into the operand"),
        ("f32[3,4] dynamic-update-slice(m, n, s, s)", "same element type"),
    ],
)  # fmt: skip
def test_shape_rules_of_dynamic_slices_say_what_is_wrong(call: str, message: str) -> None:
    assert_refused(call, message, **SHAPES)


@pytest.mark.parametrize(
    ("indices", "changes", "message"),
    [
        ("f", "", "must be integers"),
        ("i", "index_vector_dim=3", "index_vector_dim 3"),
        ("i", "start_index_map={0,1}", "one operand dimension for each of the 1 components"),
        ("i", "start_index_map={2}", "names dimension 2"),
        ("w", "start_index_map={0,0}", "repeats a dimension"),
        ("i", "slice_sizes={2,4}", "its slice size must be 1"),
        ("i", "slice_sizes={1,5}", "a size within it"),
        ("i", "collapsed_slice_dims={}", "offset_dims must name"),
        ("i", "offset_dims={2}", "names dimension 2"),
        ("i", "collapsed_slice_dims={1,0} slice_sizes={1,1} offset_dims={}", "must be sorted"),
        ("i", "operand_batching_dims={1}", "equal length"),
        ("i", "operand_batching_dims={1} start_indices_batching_dims={1}", "must not contain index_vector_dim"),
        ("i", "operand_batching_dims={1} start_indices_batching_dims={0}", "must be of one size"),
        ("b", "operand_batching_dims={0} start_indices_batching_dims={0}", "no dimension in common"),
    ],
)  # fmt: skip
def test_the_shape_rule_of_a_gather_says_what_is_wrong(indices: str, changes: str, message: str) -> None:
    call = f"f32[5,4] gather(m, {indices}), {changed(GATHERED, changes)}"
    assert_refused(call, message, **SHAPES)
