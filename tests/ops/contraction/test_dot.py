"""dot, ragged-dot and scaled-dot against XLA:CPU, JAX, and exact arithmetic."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.dtypes import ELEMENT_TYPES
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ir import ArrayShape
from hloexec.ops import threads
from hloexec.ops.blas import matmul
from hloexec.ops.contraction import integer_products, matrix_product, plain_products, product_blocks
from hloexec.ops.contraction.algorithms import DOT_ALGORITHMS
from hloexec.ops.contraction.dot import Dot, DotAttributes, ScaledDot
from hloexec.ops.contraction.ragged_dot import RaggedDot, RaggedDotAttributes
from hloexec.ops.policies.policy import POLICIES
from hloexec.ops.registry import find_opcode
from tests.ops.against_xla import Case, assert_same_as_xla, random_array, restrided

MATMUL = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,))
MATMUL_TEXT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def dot(lhs: Any, rhs: Any, result: str, attributes: DotAttributes = MATMUL, **options: Any) -> Any:
    """The kernel's result, checked to be of the declared type and not to have touched its operands."""
    before = lhs.tobytes(), rhs.tobytes()
    shape = ArrayShape(ELEMENT_TYPES[result])
    value = Dot.evaluate(lhs, rhs, attributes=attributes, shape=shape, **options)
    assert value.dtype == ELEMENT_TYPES[result].storage
    assert before == (lhs.tobytes(), rhs.tobytes())
    return value


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Integers: bit for bit


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [
        ("pred", "pred", "pred"), ("pred", "pred", "s32"), ("s8", "s8", "s32"), ("s8", "s8", "s8"), ("s8", "u8", "s32"),
        ("u8", "u8", "u8"), ("s16", "s16", "s16"), ("s16", "s16", "s64"), ("s32", "s32", "s32"), ("s32", "s32", "s8"),
        ("u32", "u32", "u32"), ("s64", "s64", "s64"), ("u64", "u64", "u64"), ("s4", "s4", "s4"), ("u4", "u4", "u4"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [(2, 3, 4), (33, 70, 35)])
def test_integer_dot_is_xlas_bit_for_bit(lhs, rhs, result, size):
    m, k, n = size
    operands = (
        random_array(1, (m, k), ELEMENT_TYPES[lhs].storage),
        random_array(2, (k, n), ELEMENT_TYPES[rhs].storage),
    )
    assert_same_as_xla([Case("dot", operands, f"{result}[{m},{n}]", MATMUL_TEXT)])


@pytest.mark.parametrize("name", ["s8", "u8", "s16", "s32", "u32", "s64", "u64"])
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
@pytest.mark.parametrize(("lhs", "rhs", "result"), FLOAT_CASES)
def test_float_dot_agrees_with_xla_and_f64(lhs, rhs, result):
    """|error| ≤ γ·Σ|a||b|, γ = k·u/(1 − k·u) for a sum of k products in any order (Higham, §3.1), u that of the
    accumulation type, four times that for complex products (§3.6), and half an ULP of the result's type on top."""
    m, k, n = 7, 130, 5
    storages = [ELEMENT_TYPES[name].storage for name in (lhs, rhs, result)]
    a, b = random_array(3, (m, k), storages[0]), random_array(4, (k, n), storages[1])
    xla = pytest.importorskip("conformance.xla")
    text = f"HloModule m\n\nENTRY e {{\n  a = {lhs}[{m},{k}] parameter(0)\n  b = {rhs}[{k},{n}] parameter(1)\n  ROOT r = {result}[{m},{n}] dot(a, b), {MATMUL_TEXT}\n}}\n"
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
    for value in (dot(a, b, result), xla.run_hlo(text, a, b)[0]):
        assert (np.abs(value.astype(wide) - exact) <= bound).all()


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    storage = ELEMENT_TYPES[data.draw(st.sampled_from(["f32", "bf16", "s32", "f64"]))].storage
    manner = data.draw(st.integers(0, 3))
    name = next(name for name, entry in ELEMENT_TYPES.items() if entry.storage == storage)
    operands = restrided(lhs.astype(storage), manner), restrided(rhs.astype(storage), manner + 1)
    value = dot(*operands, "f32" if name == "bf16" else name, attributes)
    assert value.shape == expected.shape
    assert (value == expected).all()
    shapes = [ArrayShape(ELEMENT_TYPES[name], operand.shape) for operand in operands]
    inferred = Dot.infer(*shapes, attributes=attributes, shape=ArrayShape(ELEMENT_TYPES["f32"]))
    assert inferred == ArrayShape(ELEMENT_TYPES["f32"], expected.shape)


@pytest.mark.parametrize("shapes", [((70, 40), (40, 90)), ((5, 33, 40), (5, 40, 27)), ((2, 3, 20, 9), (2, 3, 9, 30))])
@pytest.mark.parametrize("name", ["bf16", "s8", "f8e4m3fn", "f16", "s32"])
def test_working_in_blocks_changes_no_value(monkeypatch, shapes, name):
    """Blocks cut rows and columns, and never the sum: whole numbers show that each block lands in its place."""
    generator = np.random.default_rng(5)
    lhs, rhs = (generator.integers(-3, 4, shape) for shape in shapes)
    storage, result = ELEMENT_TYPES[name].storage, "s32" if name.startswith("s") else "f32"
    rank = lhs.ndim
    attributes = DotAttributes(
        lhs_batch_dims=tuple(range(rank - 2)), rhs_batch_dims=tuple(range(rank - 2)),
        lhs_contracting_dims=(rank - 1,), rhs_contracting_dims=(rank - 2,),
    )  # fmt: skip
    monkeypatch.setattr(matrix_product, "_BLOCK_BYTES", 900)
    monkeypatch.setattr(matrix_product, "_BLOCK_BYTES_LIMIT", 1800)
    monkeypatch.setattr(matrix_product, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(integer_products, "_DIRECT_INTEGER_PRODUCTS", 0)
    value = dot(lhs.astype(np.float32).astype(storage), rhs.astype(np.float32).astype(storage), result, attributes)
    assert (value == lhs @ rhs).all()


_LARGE = {
    "wide": (256, 300, 520),
    "tall": (530, 260, 250),
    "batch": (3, 9, 64, 40, 96),
    "large batch": (2, 700, 300, 700),
}
"""Sizes [batch..., m, k, n] of products that take several blocks."""


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", list(_LARGE.values()), ids=list(_LARGE))
def test_products_in_several_blocks_are_the_exact_ones_rounded_once(sizes, turns):
    """Whole numbers, whose sums no order rounds; their bf16 has fewer digits than the sum."""
    *batch, rows, length, columns = sizes
    generator = np.random.default_rng(7)
    operands = generator.integers(-9, 10, (*batch, rows, length)), generator.integers(-9, 10, (*batch, length, columns))
    expected = np.matmul(*(operand.astype(np.float64) for operand in operands)).astype(np.float32)
    rank = len(sizes) - 1
    given = [
        np.ascontiguousarray(operand.swapaxes(-1, -2) if is_turned else operand).astype(ml_dtypes.bfloat16)
        for operand, is_turned in zip(operands, turns, strict=True)
    ]
    attributes = DotAttributes(
        lhs_batch_dims=tuple(range(rank - 2)), rhs_batch_dims=tuple(range(rank - 2)),
        lhs_contracting_dims=(rank - 1 - turns[0],), rhs_contracting_dims=(rank - 2 + turns[1],),
    )  # fmt: skip
    value = dot(*given, "bf16", attributes)
    assert value.tobytes() == expected.astype(ml_dtypes.bfloat16).tobytes()
    assert np.array_equal(dot(*given, "f32", attributes), expected)
    assert np.array_equal(dot(*(operand.astype(np.float32) for operand in given), "f32", attributes), expected)


@pytest.mark.parametrize("sizes", list(_LARGE.values()), ids=list(_LARGE))
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_products_in_blocks_have_the_same_bits_on_any_number_of_cores(monkeypatch, sizes, kind):
    *batch, rows, length, columns = sizes
    generator = np.random.default_rng(8)
    shapes = (*batch, rows, length), (*batch, length, columns)
    lhs, rhs = (generator.standard_normal(shape).astype(ELEMENT_TYPES[kind].storage) for shape in shapes)
    rank = lhs.ndim
    attributes = DotAttributes(
        lhs_batch_dims=tuple(range(rank - 2)), rhs_batch_dims=tuple(range(rank - 2)),
        lhs_contracting_dims=(rank - 1,), rhs_contracting_dims=(rank - 2,),
    )  # fmt: skip
    found = set()
    for cores in 1, 2, 3:
        monkeypatch.setattr(threads, "core_count", lambda cores=cores: cores)
        found.add(dot(lhs, rhs, "f32", attributes).tobytes())
    assert len(found) == 1


def test_blocks_of_products_are_even_and_cover_all():
    for size, products in product((1, 127, 128, 300, 768, 1024, 5000), (1, 1 << 12, 1 << 17, 1 << 24)):
        step = product_blocks.even_step(size, products)
        count = -(-size // step)
        assert count == 1 or (count % 2 == 0 and step * products >= product_blocks._LEAST_PRODUCTS // 2)
    for rows, terms, columns in ((1, 1, 1), (5000, 9, 4000), (4096, 4096, 4096), (16, 2048, 4096), (900, 3000, 1),
                                 (128, 16, 512), (1000, 32, 130), (1, 4096, 5000), (70, 4096, 130)):  # fmt: skip
        blocks = product_blocks.blocks_of(rows, terms, columns)
        times = np.zeros((rows, columns), int)
        blocks.on_all_cores(lambda row, column, times=times: np.add(times[row, column], 1, out=times[row, column]))
        assert (times == 1).all()
    for rows, terms, columns, least in ((512, 256, 1024, 4), (1024, 1024, 1024, 8), (16, 4096, 4096, 8),
                                        (4096, 4096, 4096, 16), (256, 256, 256, 2)):  # fmt: skip
        blocks = product_blocks.blocks_of(rows, terms, columns)
        assert -(-rows // blocks.row_step) * -(-columns // blocks.column_step) >= least
    blocks = product_blocks.batch_blocks((3, 5, 7), 1 << 18)
    times = np.zeros((3, 5, 7), int)
    for block in blocks:
        times[block] += 1
    assert (times == 1).all()
    assert len(blocks) == 30


@pytest.mark.parametrize("rows", [1, 2, 16, 32, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_few_rows_times_a_transposed_matrix_give_the_exact_sums_in_row_major_order(rows, dtype):
    """Small whole numbers, whose sums no order rounds; the matrix is large enough to be multiplied the other way."""
    rng = np.random.default_rng(rows)
    lhs, matrix = rng.integers(-8, 9, (rows, 512)), rng.integers(-8, 9, (256, 512))
    scale = 1 + 1j if dtype is np.complex64 else 1
    value = dot(
        (scale * lhs).astype(dtype), matrix.astype(dtype).T, {"f": "f32", "d": "f64", "F": "c64"}[np.dtype(dtype).char]
    )
    np.testing.assert_array_equal(value, scale * (lhs @ matrix.T))
    assert value.flags.c_contiguous


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rows", [2, 16, 30, 31])
def test_few_rows_times_a_large_matrix_in_tiles_or_not(monkeypatch, rows, is_transposed):
    """Small whole numbers, whose sums no order rounds."""
    rng = np.random.default_rng(rows)
    lhs, rhs = rng.integers(-8, 9, (rows, 1024)), rng.integers(-8, 9, (1024, 1280))
    given = np.asarray(rhs.astype(np.float32), order="F" if is_transposed else "C")
    for kernels in "skylakex", "haswell":
        monkeypatch.setattr(plain_products, "openblas_kernels", lambda kernels=kernels: kernels)
        is_tiled = kernels == "skylakex" and rows <= 30
        assert plain_products._can_be_tiled(lhs.astype(np.float32), given) == is_tiled
        value = dot(lhs.astype(np.float32), given, "f32")
        np.testing.assert_array_equal(value, lhs @ rhs)
        assert value.flags.c_contiguous


@pytest.mark.parametrize(("length", "columns"), [(128, 512), (512, 128), (256, 320), (96, 1000), (89, 739)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_few_rows_with_a_medium_matrix_are_exact_in_slabs(monkeypatch, is_transposed, length, columns):
    """Whole numbers whose sums f32 holds: each element of the result is that of its own column, and exact."""
    rng = np.random.default_rng(length)
    lhs, rhs = rng.integers(-8, 9, (16, length)), rng.integers(-8, 9, (length, columns))
    given = np.asarray(rhs.astype(np.float32), order="F" if is_transposed else "C")
    for kernels in "skylakex", "haswell":
        monkeypatch.setattr(plain_products, "openblas_kernels", lambda kernels=kernels: kernels)
        slabs = plain_products._slabs(lhs.astype(np.float32), given)
        assert (slabs > 1) == (kernels == "skylakex" and columns != 739)
        assert columns % slabs == 0
        value = dot(lhs.astype(np.float32), given, "f32")
        np.testing.assert_array_equal(value, lhs @ rhs)
        assert value.flags.c_contiguous


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", [(512, 256, 128), (1000, 33, 700), (5, 1 << 21, 3), (1024, 256, 300), (0, 4, 3)])
@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_addend_first", [False, True])
def test_a_sum_with_a_product_is_exact_however_it_is_spread(sizes, is_in_place, is_addend_first):
    rng = np.random.default_rng(sizes[0])
    rows, terms, columns = sizes
    lhs, rhs = rng.integers(-1, 2, (terms, rows)), rng.integers(-1, 2, (terms, columns))
    addend = rng.integers(-8, 9, (rows, columns)).astype(np.float32)
    expected = lhs.T.astype(np.float64) @ rhs.astype(np.float64) + addend
    given = lhs.astype(np.float32).T, rhs.astype(np.float32), addend
    out = addend if is_in_place else None
    result = plain_products.products_plus([given[:2]], addend, out, is_addend_first=is_addend_first)
    assert (result is addend) == is_in_place
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(3, 5, 7), (700, 16, 1200), (300, 900, 200), (2048, 40, 700), (16, 512, 640)]
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_sum_with_a_product_has_the_bits_of_the_product_and_then_the_sum(rows, terms, columns, is_transposed):
    rng = np.random.default_rng(rows)
    lhs, addend = rng.standard_normal((rows, terms), np.float32), rng.standard_normal((rows, columns), np.float32)
    rhs = np.asarray(rng.standard_normal((terms, columns), np.float32), order="F" if is_transposed else "C")
    together = plain_products.products_plus([(lhs, rhs)], addend)
    assert together.tobytes() == (plain_products.plain_matrix_product(lhs, rhs) + addend).tobytes()


def test_a_matrix_times_its_transpose_has_the_bits_of_any_two_equal_matrices():
    """NumPy has another routine for operands that share memory."""
    for sizes in ((90, 300), (3, 40, 200)):
        matrix = np.random.default_rng(5).standard_normal(sizes, np.float32)
        together = matmul(matrix, matrix.swapaxes(-1, -2))
        assert together.tobytes() == matmul(matrix, matrix.copy().swapaxes(-1, -2)).tobytes()


def test_an_empty_sum_is_zero():
    assert (dot(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32), "f32") == np.zeros((2, 3))).all()
    assert (dot(np.ones((2, 0), ml_dtypes.bfloat16), np.ones((0, 3), ml_dtypes.bfloat16), "bf16") == 0).all()
    assert (dot(np.ones((2, 0), np.int8), np.ones((0, 3), np.int8), "s32") == 0).all()


def test_a_dynamic_extent_cuts_the_other_operand():
    lhs, rhs = normal(1, 2, 2), normal(2, 3, 4)
    assert (dot(lhs, rhs, "f32") == lhs @ rhs[:2]).all()


# Algorithms, precision and policies


def rounded(array: Any, bits: int) -> Any:
    """To `bits` explicit bits of the significand, ties to even, by exact scaling of f64."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)


@pytest.mark.parametrize(
    ("algorithm", "bits"), [("dot_bf16_bf16_f32", 7), ("dot_tf32_tf32_f32", 10), ("dot_f16_f16_f32", 10)]
)
def test_an_algorithm_rounds_the_operands(algorithm, bits):
    """Products of rounded operands have at most 22 bits and are exact in f32; the sum of 16 has error 16·2⁻²⁴ at most."""
    lhs, rhs = normal(1, 6, 16), normal(2, 16, 5)
    value = dot(
        lhs, rhs, "f32", DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm=algorithm)
    )
    exact = rounded(lhs, bits) @ rounded(rhs, bits)
    assert (np.abs(value - exact) <= 16 * 2.0**-24 * (np.abs(rounded(lhs, bits)) @ np.abs(rounded(rhs, bits)))).all()
    assert (np.abs(value - lhs.astype(np.float64) @ rhs) > 1e-5).any()


@pytest.mark.parametrize("algorithm", ["dot_bf16_bf16_f32", "dot_tf32_tf32_f32", "dot_f16_f16_f16"])
@pytest.mark.parametrize(("lhs_type", "rhs_type"), [("f32", "f32"), ("f32", "bf16"), ("f16", "f32"), ("f64", "f64")])
def test_under_xla_cpu_an_algorithm_is_ignored_as_xla_does(algorithm, lhs_type, rhs_type):
    """Any order of k f32 products and sums is within k·2⁻²⁴/(1 - k·2⁻²⁴) · Σ|lhs·rhs| of the exact product."""
    xla = pytest.importorskip("conformance.xla")
    result = "f64" if lhs_type == "f64" else "f32"
    text = (
        f"HloModule m\n\nENTRY e {{\n  a = {lhs_type}[5,64] parameter(0)\n  b = {rhs_type}[64,6] parameter(1)\n"
        f"  ROOT r = {result}[5,6] dot(a, b), {MATMUL_TEXT}, algorithm={algorithm}\n}}\n"
    )
    lhs, rhs = (
        normal(seed, *sizes).astype(ELEMENT_TYPES[name].storage)
        for seed, sizes, name in ((0, (5, 64), lhs_type), (1, (64, 6), rhs_type))
    )
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    bound = 65 * 2**-24 / (1 - 65 * 2**-24) * (np.abs(lhs).astype(np.float64) @ np.abs(rhs).astype(np.float64))
    module = hloexec.parse(text)
    assert (np.abs(xla.run_hlo(text, lhs, rhs)[0] - exact) <= bound).all()
    assert (np.abs(hloexec.run(module, lhs, rhs, numerics="xla-cpu") - exact) <= bound).all()
    assert (np.abs(hloexec.run(module, lhs, rhs) - exact) > bound).any()


@pytest.mark.parametrize(
    ("algorithm", "exponent"),
    [
        ("dot_bf16_bf16_f32_x3", 15),
        ("dot_tf32_tf32_f32_x3", 20),
        ("dot_bf16_bf16_f32_x6", 20),
        ("dot_bf16_bf16_f32_x9", 20),
    ],
)
def test_splitting_algorithms_are_as_accurate_as_their_terms(algorithm, exponent):
    """x3 drops products of two second terms: 2⁻¹⁶ of each for bf16 (8 bits a term), 2⁻²² for tf32, and the second terms
    are themselves rounded: 2·2⁻¹⁷ and 2·2⁻²³. x6 and x9 lose 2⁻²⁴ and less. f32 sums add k·2⁻²⁴ = 2⁻²⁰ with k = 16."""
    lhs, rhs = normal(1, 6, 16), normal(2, 16, 5)
    value = dot(
        lhs, rhs, "f32", DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm=algorithm)
    )
    exact = lhs.astype(np.float64) @ rhs
    error = np.abs(value - exact) / (np.abs(lhs).astype(np.float64) @ np.abs(rhs))
    assert (error <= 2.0**-exponent + 2.0**-20).all()


def test_a_splitting_algorithm_keeps_infinity():
    lhs, rhs = normal(1, 2, 3), np.abs(normal(2, 3, 2))
    lhs[0, 1] = np.inf
    attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm="dot_bf16_bf16_f32_x3")
    value = dot(lhs, rhs, "f32", attributes)
    assert (value[0] == np.inf).all()
    assert np.isfinite(value[1]).all()


def test_an_accumulation_type_of_16_bits_rounds_the_sum():
    lhs = np.array([[1, 2.0**-9]], np.float32)
    attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(1,), algorithm="dot_bf16_bf16_bf16")
    assert dot(lhs, np.ones((1, 2), np.float32), "f32", attributes)[0, 0] == 1


def test_every_algorithm_of_xla_is_known():
    _hlo = pytest.importorskip("jaxlib._hlo")
    for algorithm in DOT_ALGORITHMS:
        text = f"HloModule m\n\nENTRY e {{\n  a = f32[2,2] parameter(0)\n  ROOT r = f32[2,2] dot(a, a), {MATMUL_TEXT}, algorithm={algorithm}\n}}\n"
        printed = _hlo.hlo_module_from_text(text).to_string()
        assert (f"algorithm={algorithm}" in printed) == (algorithm != "unset")


@pytest.mark.parametrize(("policy", "bits"), [("tf32", 10), ("bf16", 7)])
def test_a_policy_rounds_f32_operands_of_default_dots_only(policy, bits):
    lhs, rhs = normal(1, 3, 1), normal(2, 1, 4)
    product = (rounded(lhs, bits) @ rounded(rhs, bits)).astype(np.float32)
    assert (dot(lhs, rhs, "f32", numerics=POLICIES[policy]) == product).all()
    for extra in ({"operand_precision": ("highest", "highest")}, {"algorithm": "dot_f32_f32_f32"}):
        attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), **extra)
        assert (dot(lhs, rhs, "f32", attributes, numerics=POLICIES[policy]) == lhs @ rhs).all()
    wide = lhs.astype(np.float64), rhs.astype(np.float64)
    assert (dot(*wide, "f64", numerics=POLICIES[policy]) == wide[0] @ wide[1]).all()


def test_rounding_a_significand_keeps_nan_and_infinity():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4028235e38], np.float32)
    special = np.append(special, np.array([0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32))
    value = matrix_product.round_mantissa(special, 7)
    assert np.isnan(value[[0, 6, 7]]).all()
    assert (value[1:6] == np.array([np.inf, -np.inf, 0, 0, np.inf])).all()
    assert np.signbit(value[4])


def test_packed_nibbles_are_refused():
    attributes = DotAttributes(
        lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), operand_precision=("packed_nibble", "default")
    )
    with pytest.raises(UnsupportedError, match="packed_nibble"):
        dot(np.ones((2, 2), np.int8), np.ones((2, 2), np.int8), "s32", attributes)


# ragged-dot and scaled-dot: XLA:CPU has neither


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


# Shape rules

WRONG_DOTS = [
    ("f32[2,3]", "f32[4,4]", MATMUL_TEXT),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={1}, rhs_contracting_dims={2}"),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={-1}, rhs_contracting_dims={0}"),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={1}, rhs_contracting_dims={}"),
    ("f32[2,3,3]", "f32[3,3,4]", "lhs_contracting_dims={1,1}, rhs_contracting_dims={0,1}"),
    (
        "f32[2,3]",
        "f32[2,3]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}",
    ),
    (
        "f32[2,3]",
        "f32[5,3]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    ),
    ("f32[2,3]", "f32[2,3]", "lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}"),
    ("f32[2,<=3]", "f32[<=4,4]", MATMUL_TEXT),
    ("(f32[],f32[])", "f32[3,4]", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
]
RIGHT_DOTS = [
    ("f32[2,3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[3,2,4]", "f32[2,5,3,4]", "lhs_batch_dims={1,0}, rhs_batch_dims={0,2}, lhs_contracting_dims={2}, rhs_contracting_dims={3}"),
    ("f32[<=2,3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[2,<=3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[2,3]", "f32[?,4]", MATMUL_TEXT),
    ("f32[?,3,4]", "f32[<=2,4,5]", "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"),
    ("f32[2,3,4]", "f32[<=2,4,5]", "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"),
    ("f32[]", "f32[3,4]", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
]  # fmt: skip


def inferred_by_xla(lhs: str, rhs: str, attributes: str) -> str | None:
    """XLA infers the shape of an instruction that leaves it out; None where it refuses."""
    _hlo = pytest.importorskip("jaxlib._hlo")
    text = f"HloModule m\n\nENTRY e {{\n  a = {lhs} parameter(0)\n  b = {rhs} parameter(1)\n  ROOT r = dot(a, b), {attributes}\n}}\n"
    try:
        printed = _hlo.hlo_module_from_text(text).to_string()
    except Exception:
        return None
    return re.search(r"ROOT %r\S* = (\S+?)(\{\S*)? dot\(", printed)[1]


def shapes_of(lhs: str, rhs: str, attributes: str) -> tuple[Any, Any, DotAttributes]:
    from hloexec.text import parse

    text = f"HloModule m\n\nENTRY e {{\n  a = {lhs} parameter(0)\n  b = {rhs} parameter(1)\n  ROOT r = f32[] dot(a, b), {attributes}\n}}\n"
    entry = parse(text).entry
    return entry.by_name["a"].shape, entry.by_name["b"].shape, entry.root.attributes


@pytest.mark.parametrize(("lhs", "rhs", "attributes"), WRONG_DOTS)
def test_a_dot_that_xla_refuses_is_refused(lhs, rhs, attributes):
    assert inferred_by_xla(lhs, rhs, attributes) is None
    left, right, numbers = shapes_of(lhs, rhs, attributes)
    with pytest.raises(ShapeError):
        Dot.infer(left, right, attributes=numbers, shape=ArrayShape(ELEMENT_TYPES["f32"]))


@pytest.mark.parametrize(("lhs", "rhs", "attributes"), RIGHT_DOTS)
def test_the_shape_of_a_dot_is_the_one_that_xla_infers(lhs, rhs, attributes):
    left, right, numbers = shapes_of(lhs, rhs, attributes)
    inferred = Dot.infer(left, right, attributes=numbers, shape=ArrayShape(ELEMENT_TYPES["f32"]))
    assert str(inferred) == inferred_by_xla(lhs, rhs, attributes)


@pytest.mark.parametrize(
    ("lhs", "rhs", "group_sizes", "change", "message"),
    [
        ((8, 4), (3, 4, 5), (3,), {"lhs_ragged_dims": (0, 1)}, "exactly one ragged"),
        ((8, 4), (3, 4, 5), (3,), {"lhs_ragged_dims": (2,)}, "must lie in"),
        ((8, 4), (4, 4, 5), (3,), {}, "must have size 3"),
        ((8, 4), (3, 4, 5), (), {}, "at least one dimension"),
        ((8, 4), (3, 4, 5), (2, 3), {}, "group sizes must have shape"),
        ((8, 4), (3, 4, 5), (3,), {"rhs_group_dims": ()}, "one group dimension"),
        ((8, 4), (3, 4, 5), (3,), {"rhs_group_dims": (1,)}, "must be a free dimension"),
        ((8, 4), (3, 4, 5), (3,), {"lhs_ragged_dims": (1,)}, "no group dimension"),
    ],
)
def test_a_ragged_dot_that_does_not_fit_is_refused(lhs, rhs, group_sizes, change, message):
    numbers = {
        "lhs_contracting_dims": (1,),
        "rhs_contracting_dims": (1,),
        "lhs_ragged_dims": (0,),
        "rhs_group_dims": (0,),
    }
    shapes = [ArrayShape(ELEMENT_TYPES["f32"], lhs), ArrayShape(ELEMENT_TYPES["f32"], rhs)]
    with pytest.raises(ShapeError, match=message):
        RaggedDot.infer(
            *shapes, ArrayShape(ELEMENT_TYPES["s32"], group_sizes),
            attributes=RaggedDotAttributes(**(numbers | change)), shape=shapes[0],
        )  # fmt: skip


@pytest.mark.parametrize("scale", [(4, 3), (4,), (8, 2), (4, 0)])
def test_a_scale_that_does_not_divide_its_operand_is_refused(scale):
    f8, e8 = ELEMENT_TYPES["f8e4m3fn"], ELEMENT_TYPES["f8e8m0fnu"]
    with pytest.raises(ShapeError, match="must divide"):
        ScaledDot.infer(
            ArrayShape(f8, (4, 64)), ArrayShape(f8, (64, 5)), ArrayShape(e8, scale), ArrayShape(e8, (2, 5)),
            attributes=MATMUL, shape=ArrayShape(ELEMENT_TYPES["f32"], (4, 5)),
        )  # fmt: skip


@pytest.mark.parametrize("turns_rhs", [False, True])
@pytest.mark.parametrize("turns_lhs", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_multiplied_by_what_shapes_decide_have_the_same_bits(
    dtype: type[np.floating], turns_lhs: bool, turns_rhs: bool
) -> None:
    """Whatever the operands' strides are, the bound kernel gives what `evaluate` does."""
    entry = find_opcode("dot")
    assert entry is not None and entry.bind is not None and entry.evaluate is not None
    kind = "f32" if dtype is np.float32 else "f64"
    text = (
        f"HloModule m\nENTRY e {{ a = {kind}[{'40,24' if turns_lhs else '24,40'}] parameter(0)\n"
        f" b = {kind}[{'32,40' if turns_rhs else '40,32'}] parameter(1)\n"
        f" ROOT c = {kind}[24,32] dot(a, b), lhs_contracting_dims={{{int(not turns_lhs)}}}, "
        f"rhs_contracting_dims={{{int(turns_rhs)}}} }}"
    )
    module = hloexec.parse(text)
    root = module.entry.root
    shapes = tuple(parameter.shape for parameter in module.entry.parameters)
    function = entry.bind(attributes=root.attributes, shape=root.shape, operand_shapes=shapes)
    assert function is not None
    generator = np.random.default_rng(0)
    lhs, rhs = (generator.standard_normal(shape.dimensions).astype(dtype) for shape in shapes)
    for left in (lhs, np.asfortranarray(lhs), lhs[::-1]):
        for right in (rhs, np.asfortranarray(rhs), np.broadcast_to(rhs[:1], rhs.shape)):
            expected = entry.evaluate(left, right, attributes=root.attributes, shape=root.shape)
            assert function(left, right).tobytes() == expected.tobytes()
