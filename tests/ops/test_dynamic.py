"""get-dimension-size, set-dimension-size and dynamic-reshape: values of runtime extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hloexec.dtypes import ELEMENT_TYPES
from hloexec.errors import EvaluationError, ShapeError
from hloexec.ir import ArrayShape
from hloexec.ops.dynamic import DimensionSizeAttributes, DynamicReshape, GetDimensionSize, SetDimensionSize
from tests.ops.evaluation import evaluate

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
    for mine, its in zip(actual, xla.run_hlo(SIZES, *inputs), strict=True):
        assert mine.shape == its.shape
        np.testing.assert_array_equal(mine, its)


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


F32, S32 = ELEMENT_TYPES["f32"], ELEMENT_TYPES["s32"]
VECTOR, SIZE = ArrayShape(F32, (3,)), ArrayShape(S32)
FIRST, SECOND = DimensionSizeAttributes(dimension=0), DimensionSizeAttributes(dimension=1)


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        (lambda: GetDimensionSize.infer(VECTOR, attributes=SECOND), "dimension 1 is not one"),
        (lambda: GetDimensionSize.infer(ArrayShape(F32, (2**31,)), attributes=FIRST), "counts in s32"),
        (lambda: SetDimensionSize.infer(VECTOR, SIZE, attributes=SECOND, shape=VECTOR), "dimension 1 is not one"),
        (lambda: SetDimensionSize.infer(VECTOR, ArrayShape(ELEMENT_TYPES["s64"]), attributes=FIRST, shape=VECTOR), "must be an s32 scalar"),
        (lambda: SetDimensionSize.infer(VECTOR, ArrayShape(S32, (1,)), attributes=FIRST, shape=VECTOR), "must be an s32 scalar"),
        (lambda: DynamicReshape.infer(VECTOR, SIZE, SIZE, shape=VECTOR), "one size per dimension"),
        (lambda: DynamicReshape.infer(VECTOR, SIZE, shape=ArrayShape(F32, (4,))), "keep the number of elements"),
        (lambda: DynamicReshape.infer(VECTOR, VECTOR, shape=VECTOR), "must be an s32 scalar"),
    ],
)  # fmt: skip
def test_shape_rules_say_what_is_wrong(infer: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        infer()
