"""dot against XLA:CPU and exact arithmetic: every element type, and any dimension numbers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.ops.contraction.dot import Dot, DotAttributes
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, module_text, random_array, restrided
from tests.ops.contraction.products import MATMUL_TEXT, dot, normal

# Integers: bit for bit


INTEGER_CASES = [
    ("pred", "pred", "pred"), ("pred", "pred", "s32"), ("s8", "s8", "s32"), ("s8", "s8", "s8"), ("s8", "u8", "s32"),
    ("u8", "u8", "u8"), ("s16", "s16", "s16"), ("s16", "s16", "s64"), ("s32", "s32", "s32"), ("s32", "s32", "s8"),
    ("u32", "u32", "u32"), ("s64", "s64", "s64"), ("u64", "u64", "u64"), ("s4", "s4", "s4"), ("u4", "u4", "u4"),
]  # fmt: skip


def case(lhs, rhs, result, m, k, n, seed=1):
    storages = [ELEMENT_TYPES[name].storage for name in (lhs, rhs)]
    operands = random_array(seed, (m, k), storages[0]), random_array(seed + 1, (k, n), storages[1])
    return Case("dot", operands, f"{result}[{m},{n}]", MATMUL_TEXT)


@pytest.mark.parametrize("size", [(2, 3, 4), (33, 70, 35)])
def test_integer_dot_is_xlas_bit_for_bit(size):
    assert_same_as_xla([case(*types, *size) for types in INTEGER_CASES])


@pytest.mark.parametrize("name", "s8 u8 s16 s32 u32 s64 u64".split())
def test_integer_dot_wraps_exactly_over_long_sums(name):
    """Against Python's integers: extremes only, so that every partial sum is as large as it can be."""
    entry = ELEMENT_TYPES[name]
    info = np.iinfo(entry.storage)
    lhs = np.full((3, 3000), info.min, entry.storage)
    lhs[1] = info.max
    rhs = np.full((3000, 9), info.max, entry.storage)
    rhs[:, 1] = info.min
    rhs[::2, 2] = info.min
    exact = lhs.astype(object) @ rhs.astype(object)
    expected = np.array(
        [[int(value) & (2**entry.bits - 1) for value in row] for row in exact], f"u{entry.storage.itemsize}"
    )
    assert (dot(lhs, rhs, name).view(expected.dtype) == expected).all()


def test_int8_dot_to_s32_is_exact_where_f32_would_not_be():
    lhs = np.full((40, 5000), -128, np.int8)
    rhs = np.full((5000, 40), -128, np.int8)
    rhs[0] = 127
    assert (dot(lhs, rhs, "s32") == 4999 * 128 * 128 - 128 * 127).all()


# Floats: within the bound of any order of summation

FLOAT_CASES = [
    ("f32", "f32", "f32"), ("f64", "f64", "f64"), ("bf16", "bf16", "bf16"), ("bf16", "bf16", "f32"), ("f16", "f16", "f16"),
    ("f32", "bf16", "f32"), ("f32", "f32", "bf16"), ("f32", "f32", "f64"), ("f64", "f64", "f32"), ("s8", "s8", "f32"),
    ("f8e4m3fn", "f8e4m3fn", "f32"), ("f8e5m2", "f8e5m2", "bf16"), ("c64", "c64", "c64"), ("c128", "c128", "c128"),
    ("c64", "f32", "c64"), ("f32", "f32", "c64"), ("c64", "c64", "f32"), ("f32", "f32", "s32"),
]  # fmt: skip


@pytest.mark.usefixtures("newer_emitters")
def test_float_dot_agrees_with_xla_and_f64():
    """|error| ≤ γ·Σ|a||b|, γ = k·u/(1 − k·u) for a sum of k products in any order (Higham, §3.1), u that of the
    accumulation type, four times that for complex products (§3.6), and half an ULP of the result's type on top."""
    xla = pytest.importorskip("conformance.xla")
    k = 130
    cases = [case(*types, 7, k, 5, seed=3) for types in FLOAT_CASES]
    found = xla.run_hlo(module_text(cases), *(operand for case in cases for operand in case.operands))
    for types, each, theirs in zip(FLOAT_CASES, cases, found, strict=True):
        for value in (dot(*each.operands, types[2]), theirs):
            assert_near_the_exact_product(value, *each.operands, *types, k)


def assert_near_the_exact_product(value, a, b, lhs, rhs, result, k):
    wide = np.complex128
    exact = a.astype(wide) @ b.astype(wide)
    unit = (
        np.finfo(np.float64 if "64" in (lhs + rhs + result).replace("c64", "") or "c128" in lhs else np.float32).eps / 2
    )
    bound = 4 * k * unit / (1 - k * unit) * (np.abs(a.astype(wide)) @ np.abs(b.astype(wide)))
    entry = ELEMENT_TYPES[result]
    if entry.is_integral:
        bound = bound + 1
    elif entry.is_floating:
        exact = exact.real
        bound = bound + np.abs(exact) * 2.0 ** -(entry.mantissa_bits + 1)
    assert (np.abs(value.astype(wide) - exact) <= bound).all(), (lhs, rhs, result)


def test_narrow_floats_accumulate_in_f32_and_round_once():
    """4096 products of 1: any accumulation in bf16 stops at 256."""
    ones = np.ones((1, 4096), ml_dtypes.bfloat16)
    assert float(dot(ones, ones.T, "bf16")[0, 0]) == 4096


def test_nan_and_infinity_reach_exactly_their_row_and_column():
    lhs, rhs = normal(1, 40, 64), normal(2, 64, 50)
    lhs[3, 5], rhs[7, 9] = np.nan, np.inf
    value = dot(lhs, rhs, "f32")
    assert np.isnan(value[3]).all()
    assert not np.isfinite(value[:, 9]).any()
    rest = np.delete(np.delete(value, 3, 0), 9, 1)
    assert np.isfinite(rest).all()


sizes = st.sampled_from([0, 1, 1, 2, 3, 5])


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_dimension_numbers_and_strides_give_the_sum_of_the_definition(data):
    """Small whole numbers, for which f32 is exact, against einsum in int64."""
    roles = data.draw(
        st.lists(st.sampled_from("bklr"), min_size=1, max_size=7).filter(lambda r: r.count("l") + r.count("r") < 6)
    )
    letters = [chr(ord("a") + i) for i in range(len(roles))]
    extent = {letter: data.draw(sizes) for letter in letters}
    of = {role: [letter for letter, ours in zip(letters, roles, strict=True) if ours == role] for role in "bklr"}
    lhs_letters = data.draw(st.permutations(of["b"] + of["k"] + of["l"]))
    rhs_letters = data.draw(st.permutations(of["b"] + of["k"] + of["r"]))
    attributes = DotAttributes(
        lhs_batch_dims=tuple(lhs_letters.index(letter) for letter in of["b"]),
        lhs_contracting_dims=tuple(lhs_letters.index(letter) for letter in of["k"]),
        rhs_batch_dims=tuple(rhs_letters.index(letter) for letter in of["b"]),
        rhs_contracting_dims=tuple(rhs_letters.index(letter) for letter in of["k"]),
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    lhs = generator.integers(-3, 4, [extent[letter] for letter in lhs_letters])
    rhs = generator.integers(-3, 4, [extent[letter] for letter in rhs_letters])
    out = of["b"] + [x for x in lhs_letters if x in of["l"]] + [x for x in rhs_letters if x in of["r"]]
    expected = np.einsum(f"{''.join(lhs_letters)},{''.join(rhs_letters)}->{''.join(out)}", lhs, rhs)
    storage = ELEMENT_TYPES[data.draw(st.sampled_from("f32 bf16 s32 f64".split()))].storage
    manner = data.draw(st.integers(0, 3))
    name = next(name for name, entry in ELEMENT_TYPES.items() if entry.storage == storage)
    operands = restrided(lhs.astype(storage), manner), restrided(rhs.astype(storage), manner + 1)
    value = dot(*operands, "f32" if name == "bf16" else name, attributes)
    assert value.shape == expected.shape
    assert (value == expected).all()
    shapes = [ArrayShape(ELEMENT_TYPES[name], operand.shape) for operand in operands]
    inferred = Dot.infer(*shapes, attributes=attributes, shape=ArrayShape(ELEMENT_TYPES["f32"]))
    assert inferred == ArrayShape(ELEMENT_TYPES["f32"], expected.shape)


def test_an_empty_sum_is_zero():
    assert (dot(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32), "f32") == np.zeros((2, 3))).all()
    assert (dot(np.ones((2, 0), ml_dtypes.bfloat16), np.ones((0, 3), ml_dtypes.bfloat16), "bf16") == 0).all()
    assert (dot(np.ones((2, 0), np.int8), np.ones((0, 3), np.int8), "s32") == 0).all()


def test_a_dynamic_extent_cuts_the_other_operand():
    lhs, rhs = normal(1, 2, 2), normal(2, 3, 4)
    assert (dot(lhs, rhs, "f32") == lhs @ rhs[:2]).all()


def test_dimensions_that_are_contracted_together_are_taken_in_any_order():
    lhs, rhs = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    attributes = DotAttributes(lhs_contracting_dims=(1, 2), rhs_contracting_dims=(1, 0))
    np.testing.assert_array_equal(dot(lhs, rhs, "f32", attributes), np.einsum("abc,cbd->ad", lhs, rhs))
