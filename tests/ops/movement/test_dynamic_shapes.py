"""get-dimension-size, set-dimension-size and dynamic-reshape: values of runtime extents."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.core.tree import flat
from hloexec.errors import EvaluationError
from hloexec.ops.movement.strided import Reshape, ReshapeAttributes
from tests.ops.evaluation import assert_refused, evaluate

F32, S32 = ELEMENT_TYPES["f32"], ELEMENT_TYPES["s32"]

SIZES = """HloModule m
ENTRY main {
  p = f32[6,2] parameter(0)
  n = s32[] parameter(1)
  cut = f32[<=6,2] set-dimension-size(p, n), dimensions={0}
  size = s32[] get-dimension-size(cut), dimensions={0}
  other = s32[] get-dimension-size(cut), dimensions={1}
  turned = f32[2,<=6] transpose(cut), dimensions={1,0}
  ROOT all = (f32[<=6,2], s32[], s32[], f32[2,<=6]) tuple(cut, size, other, turned)
}"""


@pytest.mark.parametrize("extent", [0, 1, 4, 6])
def test_runtime_extents_are_those_of_xla(extent: int) -> None:
    xla = pytest.importorskip("conformance.xla")
    inputs = [np.arange(12, dtype=np.float32).reshape(6, 2), np.array(extent, np.int32)]
    actual = evaluate(SIZES, *inputs)
    for ours, theirs in zip(actual, xla.run_hlo(SIZES, *inputs), strict=True):
        assert ours.shape == theirs.shape
        assert_array_equal(ours, theirs)


FLOW = """HloModule m
add {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b)
}
ENTRY main {
  whole = s32[6] parameter(0)
  n = s32[] parameter(1)
  z = s32[] parameter(2)
  q = s32[2] parameter(3)
  i = s32[2,1] parameter(4)
  p = s32[<=6] set-dimension-size(whole, n), dimensions={0}
  one = s32[] constant(1)
  two = s32[] constant(2)
  column = s32[<=6,1] reshape(p)
  wide = s32[2,<=6] broadcast(p), dimensions={1}
  tall = s32[<=6,2] broadcast(p), dimensions={0}
  wide_flat = s32[<=12] reshape(wide)
  tall_flat = s32[<=12] reshape(tall)
  tail = s32[<=4] slice(p), slice={[2:6]}
  every_other = s32[<=3] slice(p), slice={[0:6:2]}
  last = s32[1] slice(p), slice={[2:3]}
  joined = s32[<=8] concatenate(p, q), dimensions={0}
  joined_behind = s32[<=8] concatenate(q, p), dimensions={0}
  padded = s32[<=14] pad(p, z), padding=1_2_1
  turned = s32[<=6] reverse(p), dimensions={0}
  window = s32[2] dynamic-slice(p, one), dynamic_slice_sizes={2}
  updated = s32[<=6] dynamic-update-slice(p, q, one)
  updated_beyond = s32[<=6] dynamic-update-slice(p, q, two)
  copies = s32[2,<=6] gather(p, i), offset_dims={1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={6}
  picked = s32[2] gather(p, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}
  summed = s32[<=6] scatter(p, i, q), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  ROOT all = (s32[<=6,1], s32[<=12], s32[<=12], s32[<=4], s32[<=3], s32[1], s32[<=8], s32[<=8], s32[<=14], s32[<=6],
    s32[2], s32[<=6], s32[<=6], s32[2,<=6], s32[2], s32[<=6])
    tuple(column, wide_flat, tall_flat, tail, every_other, last, joined, joined_behind, padded, turned,
    window, updated, updated_beyond, copies, picked, summed)
}"""


def test_runtime_extents_flow_through_data_movement_as_in_xla() -> None:
    xla = pytest.importorskip("conformance.xla")
    inputs = [
        np.arange(1, 7, dtype=np.int32), np.array(3, np.int32), np.array(7, np.int32),
        np.array([8, 9], np.int32), np.array([[0], [2]], np.int32),
    ]  # fmt: skip
    for ours, theirs in zip(evaluate(FLOW, *inputs), xla.run_hlo(FLOW, *inputs), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("source", "dynamic", "result", "result_dynamic", "extents", "expected"),
    [
        ((4, 3, 2), "100", (4, 6), "10", (2, 3, 2), (2, 6)),
        ((1, 6), "01", (6, 1), "10", (1, 5), (5, 1)),
        ((2, 3, 4), "001", (6, 1, 4), "001", (2, 3, 0), (6, 1, 0)),
        ((2, 3), "01", (1, 6), "01", (2, 2), (1, 4)),
        ((3, 4), "11", (3, 1, 4), "101", (2, 1), (2, 1, 1)),
        ((0, 4), "01", (0,), "1", (0, 2), (0,)),
    ],
)
def test_a_reshape_hands_each_extent_to_the_dimension_of_its_run(
    source: Any, dynamic: str, result: Any, result_dynamic: str, extents: Any, expected: Any
) -> None:
    before = ArrayShape(S32, source, dynamic_dimensions=tuple(flag == "1" for flag in dynamic))
    after = ArrayShape(S32, result, dynamic_dimensions=tuple(flag == "1" for flag in result_dynamic))
    assert Reshape.infer(before, attributes=ReshapeAttributes(), shape=after) == after
    assert Reshape.evaluate(np.zeros(extents, np.int32), shape=after, operand_shapes=(before,)).shape == expected


def test_a_reshape_that_no_extents_fit_is_an_error() -> None:
    before = ArrayShape(S32, (6,), dynamic_dimensions=(True,))
    after = ArrayShape(S32, (3, 2), dynamic_dimensions=(True, False))
    with pytest.raises(EvaluationError, match="do not fill any extents"):
        Reshape.evaluate(np.zeros(3, np.int32), shape=after, operand_shapes=(before,))


def test_a_static_slice_beyond_the_extent_is_zero() -> None:
    text = "HloModule m\nENTRY main {\n p = s32[<=6] parameter(0)\n ROOT r = s32[1] slice(p), slice={[5:6]}\n}"
    assert evaluate(text, np.array([1, 2, 3], np.int32)).tolist() == [0]


def test_the_size_of_a_dimension_is_of_its_type() -> None:
    text = "HloModule m\nENTRY main {\n p = f32[<=4] parameter(0)\n ROOT s = s32[] get-dimension-size(p), dimensions={0}\n}"
    found = hloexec.run(hloexec.parse(text), np.zeros(3, np.float32), check=True)
    assert (found.dtype, found.shape, int(found)) == (np.int32, (), 3)


def test_enlarging_a_dimension_yields_zeros() -> None:
    text = """HloModule m
ENTRY main {
  p = s32[<=4] parameter(0)
  n = s32[] parameter(1)
  ROOT r = s32[<=4] set-dimension-size(p, n), dimensions={0}
}"""
    operand = np.array([5, 6], np.int32)
    assert evaluate(text, operand, np.array(4, np.int32)).tolist() == [5, 6, 0, 0]
    assert evaluate(text, operand, np.array(1, np.int32)).tolist() == [5]


@pytest.mark.parametrize("extent", [-1, 7])
def test_an_extent_beyond_the_bound_is_an_error(extent: int) -> None:
    with pytest.raises(EvaluationError, match="must lie between 0 and the bound 6"):
        evaluate(SIZES, np.zeros((6, 2), np.float32), np.array(extent, np.int32))


def test_a_dimension_that_its_shape_calls_static_keeps_its_size() -> None:
    text = """HloModule m
ENTRY main {
  p = s32[4] parameter(0)
  n = s32[] parameter(1)
  ROOT r = s32[4] set-dimension-size(p, n), dimensions={0}
}"""
    operand = np.arange(4, dtype=np.int32)
    assert evaluate(text, operand, np.array(4, np.int32)).tolist() == [0, 1, 2, 3]
    with pytest.raises(EvaluationError, match=r"sets dimension 0 to 3, but in its shape s32\[4\]"):
        evaluate(text, operand, np.array(3, np.int32))


def test_dynamic_reshape_takes_its_extents_from_the_operands() -> None:
    text = """HloModule m
ENTRY main {
  p = s32[<=12] parameter(0)
  m = s32[] parameter(1)
  n = s32[] parameter(2)
  ROOT r = s32[<=4,3] dynamic-reshape(p, m, n)
}"""
    operand, three = np.arange(6, dtype=np.int32), np.array(3, np.int32)
    assert evaluate(text, operand, np.array(2, np.int32), three).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(EvaluationError, match="number of elements must agree"):
        evaluate(text, operand, np.array(3, np.int32), three)
    with pytest.raises(EvaluationError, match="exceed the bounds"):
        evaluate(text, operand, np.array(5, np.int32), three)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("s32[] get-dimension-size(v), dimensions={1}", "dimension 1 is not one"),
        ("s32[] get-dimension-size(h), dimensions={0}", "counts in s32"),
        ("f32[<=3] set-dimension-size(v, s), dimensions={1}", "dimension 1 is not one"),
        ("f32[<=3] set-dimension-size(v, l), dimensions={0}", "must be an s32 scalar"),
        ("f32[<=3] set-dimension-size(v, o), dimensions={0}", "must be an s32 scalar"),
        ("f32[3] dynamic-reshape(v, s, s)", "one size per dimension"),
        ("f32[4] dynamic-reshape(v, s)", "keep the number of elements"),
        ("f32[3] dynamic-reshape(v, v)", "must be an s32 scalar"),
    ],
)  # fmt: skip
def test_shape_rules_say_what_is_wrong(call: str, message: str) -> None:
    assert_refused(call, message, v="f32[3]", h="f32[2147483648]", s="s32[]", l="s64[]", o="s32[1]")


BESIDE_STATIC = """HloModule m
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  ROOT l = pred[] compare(a, b), direction=LT
}
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
ENTRY main {
  whole = f32[6,2] parameter(0)
  static = f32[6,2] parameter(1)
  n = s32[] parameter(2)
  dynamic = f32[<=6,2] set-dimension-size(whole, n), dimensions={0}
  product = f32[<=6,2] multiply(dynamic, static)
  sum = f32[<=6,2] add(product, static)
  less = pred[<=6,2] compare(static, sum), direction=LT
  chosen = f32[<=6,2] select(less, static, dynamic)
  one = f32[] constant(1)
  clamped = f32[<=6,2] clamp(one, chosen, static)
  complex = c64[<=6,2] complex(static, dynamic)
  joined = f32[<=6,4] concatenate(static, dynamic), dimensions={1}
  sorted = (f32[<=6,2], f32[6,2]) sort(dynamic, static), dimensions={0}, to_apply=less
  zero = f32[] constant(0)
  total = f32[2] reduce(sum, zero), dimensions={0}, to_apply=add
  ROOT all = (f32[<=6,2], f32[<=6,2], f32[<=6,2], c64[<=6,2], f32[<=6,4], (f32[<=6,2], f32[6,2]), f32[2]) tuple(product, chosen, clamped, complex, joined, sorted, total)
}"""


@pytest.mark.parametrize("extent", [0, 1, 4])
def test_static_operands_are_cut_to_the_extents_of_dynamic_ones_beside_them(extent: int) -> None:
    """As in a framework's sum over the elements that a mask selects, where a constant is broadcast to the bound."""
    xla = pytest.importorskip("conformance.xla")
    whole, static = (np.random.default_rng(seed).random((6, 2), np.float32) for seed in (1, 2))
    inputs = [whole, static, np.array(extent, np.int32)]
    expected = xla.run_hlo(BESIDE_STATIC, *inputs)
    module = hloexec.parse(BESIDE_STATIC)
    for numerics in "reference exact xla-cpu random-rounding:1".split():
        actual = flat(hloexec.run(module, inputs, numerics=numerics))
        plain = flat(hloexec.run(module, inputs, numerics=numerics, planner=False))
        assert [each.tobytes() for each in actual] == [each.tobytes() for each in plain]
        for ours, theirs in zip(actual, expected, strict=True):
            assert ours.shape == theirs.shape
            # Two roundings of numbers below 2, and sums of at most four of these.
            assert_allclose(ours, theirs, rtol=0, atol=16 * 2**-24)
    assert hloexec.shadow(module, inputs).outputs


def test_dynamic_operands_of_different_extents_are_refused() -> None:
    text = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  n = s32[] parameter(1)
  m = s32[] parameter(2)
  a = f32[<=4] set-dimension-size(x, n), dimensions={0}
  b = f32[<=4] set-dimension-size(x, m), dimensions={0}
  ROOT r = f32[<=4] add(a, b)
}"""
    with pytest.raises(EvaluationError, match=r"different extents along dimension 0: \[1, 3\]"):
        hloexec.run(hloexec.parse(text), np.ones(4, np.float32), np.array(1, np.int32), np.array(3, np.int32))
