"""ragged-dot and scaled-dot, which XLA:CPU does not have, against JAX and exact arithmetic."""

import ml_dtypes
import numpy as np
import pytest

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.ops.contraction.blocked_dot import RaggedDot, RaggedDotAttributes, ScaledDot
from tests.ops.contraction.products import MATMUL, MATMUL_TEXT
from tests.ops.evaluation import assert_refused
from tests.ops.indexing.index_windows import changed


@pytest.mark.slow_cases(
    "lhs0-rhs0-group_sizes0-1 1 - - 0 0",
    "lhs3-rhs3-group_sizes3-2 2 0 0 1 1",
    "lhs4-rhs4-group_sizes4-2 2 0 0 1 1",
    "lhs5-rhs5-group_sizes5-2 1 - - 1 0",
    "lhs7-rhs7-group_sizes7-2 1 0 0 2 -",
    "lhs8-rhs8-group_sizes8-1,2 0,1 - - 2 -",
)
@pytest.mark.parametrize(
    ("lhs", "rhs", "group_sizes", "numbers"),
    [
        # lhs and rhs contracting, lhs and rhs batch, lhs ragged, rhs group dimensions
        ((8, 4), (3, 4, 5), [2, 3, 1], "1 1 - - 0 0"),
        ((8, 4), (3, 4, 5), [5, 0, 9], "1 1 - - 0 0"),
        ((8, 4), (4, 5), [1, 0, 2], "1 0 - - 1 -"),
        ((2, 8, 4), (2, 3, 4, 5), [1, 0, 2], "2 2 0 0 1 1"),
        ((2, 8, 4), (2, 3, 4, 5), [[1, 0, 2], [3, 3, 2]], "2 2 0 0 1 1"),
        ((2, 8, 4), (3, 4, 5), [[1, 0, 2], [3, 3, 2]], "2 1 - - 1 0"),
        ((2, 8, 4), (2, 4, 5), [1, 0, 0], "2 1 0 0 0 -"),
        ((2, 8, 4), (2, 4, 5), [[1, 0, 2], [3, 1, 0]], "2 1 0 0 2 -"),
        ((6, 2, 4), (2, 4, 5), [[1, 0, 2], [3, 1, 0]], "1,2 0,1 - - 2 -"),
    ],
)
def test_ragged_dot_is_jaxs(lhs, rhs, group_sizes, numbers):
    jax = pytest.importorskip("jax")
    lists = [[] if text == "-" else [int(number) for number in text.split(",")] for text in numbers.split()]
    generator = np.random.default_rng(6)
    # Whole numbers: every order of summation is exact.
    left, right = (generator.integers(-3, 4, shape).astype(np.float32) for shape in (lhs, rhs))
    groups = np.array(group_sizes, np.int32)
    dimension_numbers = jax.lax.RaggedDotDimensionNumbers(
        ((lists[0], lists[1]), (lists[2], lists[3])), lists[4], lists[5]
    )
    expected = np.asarray(jax.lax.ragged_dot_general(left, right, groups, dimension_numbers))
    names = "lhs_contracting_dims rhs_contracting_dims lhs_batch_dims rhs_batch_dims lhs_ragged_dims rhs_group_dims"
    attributes = RaggedDotAttributes(**dict(zip(names.split(), map(tuple, lists), strict=True)))
    declared = ArrayShape(ELEMENT_TYPES["f32"], expected.shape)
    shapes = [ArrayShape(ELEMENT_TYPES["f32"], left.shape), ArrayShape(ELEMENT_TYPES["f32"], right.shape)]
    shapes.append(ArrayShape(ELEMENT_TYPES["s32"], groups.shape))
    assert RaggedDot.infer(*shapes, attributes=attributes, shape=declared) == declared
    value = RaggedDot.evaluate(left, right, groups, attributes=attributes, shape=declared)
    assert value.dtype == np.float32
    assert (value == expected).all()


def test_scaled_dot_scales_block_by_block():
    """Powers of two scale exactly, and whole numbers add exactly: f64 has the very same result."""
    generator = np.random.default_rng(7)
    lhs = generator.integers(-3, 4, (4, 64)).astype(ml_dtypes.float8_e4m3fn)
    rhs = generator.integers(-3, 4, (64, 5)).astype(ml_dtypes.float8_e4m3fn)
    lhs_scale = (2.0 ** generator.integers(-2, 3, (4, 2))).astype(ml_dtypes.float8_e8m0fnu)
    rhs_scale = (2.0 ** generator.integers(-2, 3, (2, 5))).astype(ml_dtypes.float8_e8m0fnu)
    declared = ArrayShape(ELEMENT_TYPES["f32"], (4, 5))
    value = ScaledDot.evaluate(lhs, rhs, lhs_scale, rhs_scale, attributes=MATMUL, shape=declared)
    left = lhs.astype(np.float64) * np.repeat(lhs_scale.astype(np.float64), 32, 1)
    right = rhs.astype(np.float64) * np.repeat(rhs_scale.astype(np.float64), 32, 0)
    assert (value == left @ right).all()


@pytest.mark.parametrize(
    ("shapes", "changes", "message"),
    [
        ("f32[8,4] f32[3,4,5] s32[3]", "lhs_ragged_dims={0,1}", "exactly one ragged"),
        ("f32[8,4] f32[3,4,5] s32[3]", "lhs_ragged_dims={2}", "must lie in"),
        ("f32[8,4] f32[4,4,5] s32[3]", "", "must have size 3"),
        ("f32[8,4] f32[3,4,5] s32[]", "", "at least one dimension"),
        ("f32[8,4] f32[3,4,5] s32[2,3]", "", "group sizes must have shape"),
        ("f32[8,4] f32[3,4,5] s32[3]", "rhs_group_dims={}", "one group dimension"),
        ("f32[8,4] f32[3,4,5] s32[3]", "rhs_group_dims={1}", "must be a free dimension"),
        ("f32[8,4] f32[3,4,5] s32[3]", "lhs_ragged_dims={1}", "no group dimension"),
    ],
)
def test_a_ragged_dot_that_does_not_fit_is_refused(shapes, changes, message):
    numbers = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    call = f"f32[8,5] ragged-dot(x, y, g), {changed(numbers, changes)}"
    assert_refused(call, message, **dict(zip("xyg", shapes.split(), strict=True)))


@pytest.mark.parametrize("scale", "4,3 4 8,2 4,0".split())
def test_a_scale_that_does_not_divide_its_operand_is_refused(scale):
    call = f"f32[4,5] scaled-dot(x, y, s, t), {MATMUL_TEXT}"
    shapes = {"x": "f8e4m3fn[4,64]", "y": "f8e4m3fn[64,5]", "s": f"f8e8m0fnu[{scale}]", "t": "f8e8m0fnu[2,5]"}
    assert_refused(call, "must divide", **shapes)
