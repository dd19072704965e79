"""However a product is computed (in blocks, slabs or tiles, on any number of cores, in place), the sums are those of dot."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops import resources
from hloexec.ops.contraction import matrix_product, plain_products
from hloexec.ops.contraction.dot import DotAttributes
from hloexec.ops.registry import find_opcode
from hloexec.ops.resources import matmul
from tests.ops.contraction.products import dot


def batched(rank, turns_lhs=False, turns_rhs=False):
    batch = tuple(range(rank - 2))
    return DotAttributes(
        lhs_batch_dims=batch,
        rhs_batch_dims=batch,
        lhs_contracting_dims=(rank - 1 - turns_lhs,),
        rhs_contracting_dims=(rank - 2 + turns_rhs,),
    )


@pytest.mark.parametrize("shapes", [((70, 40), (40, 90)), ((5, 33, 40), (5, 40, 27)), ((2, 3, 20, 9), (2, 3, 9, 30))])
@pytest.mark.parametrize("name", "bf16 s8 f8e4m3fn f16 s32".split())
def test_working_in_blocks_changes_no_value(monkeypatch, shapes, name):
    """Blocks cut rows and columns, and never the sum: whole numbers show that each block lands in its place."""
    generator = np.random.default_rng(5)
    lhs, rhs = (generator.integers(-3, 4, shape) for shape in shapes)
    storage, result = ELEMENT_TYPES[name].storage, "s32" if name.startswith("s") else "f32"
    attributes = batched(lhs.ndim)
    monkeypatch.setattr(matrix_product, "_BLOCK_BYTES", 900)
    monkeypatch.setattr(matrix_product, "_BLOCK_BYTES_LIMIT", 1800)
    monkeypatch.setattr(matrix_product, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(matrix_product, "_DIRECT_INTEGER_PRODUCTS", 0)
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
    attributes = batched(rank, *turns)
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
    attributes = batched(lhs.ndim)
    found = set()
    for cores in 1, 2, 3:
        monkeypatch.setattr(resources, "core_count", lambda cores=cores: cores)
        found.add(dot(lhs, rhs, "f32", attributes).tobytes())
    assert len(found) == 1


def test_a_product_with_one_narrow_operand_has_the_bits_of_the_wide_one():
    """bf16 numbers are f32 numbers: the same blocks give BLAS the same products."""
    rng = np.random.default_rng(0)
    lhs = rng.standard_normal((700, 300), np.float32)
    rhs = rng.standard_normal((300, 500), np.float32).astype(ml_dtypes.bfloat16)
    for order in "CF":
        narrow = np.asarray(rhs, order=order)
        wide = np.asarray(rhs.astype(np.float32), order=order)
        assert dot(lhs, narrow, "f32").tobytes() == dot(lhs, wide, "f32").tobytes()
        assert dot(narrow.T, lhs.T, "f32").tobytes() == dot(wide.T, lhs.T, "f32").tobytes()


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
    assert_array_equal(value, scale * (lhs @ matrix.T))
    assert value.flags.c_contiguous


FEW_ROWS = [
    *((np.float32, rows, 1024, 1280) for rows in (2, 16, 30, 31)),
    *((np.float32, 16, *sizes) for sizes in ((2048, 1024), (1003, 2100), (4100, 515))),
    *((np.float32, 16, *sizes) for sizes in ((128, 512), (512, 128), (256, 320), (96, 1000), (89, 739))),
    (ml_dtypes.bfloat16, 512, 1024, 256),
]
"""Types, and sizes m, k, n, of products that are computed in tiles, or not; in wide tiles; in slabs, or not; and of one
that is widened first."""


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("dtype", "rows", "length", "columns"), FEW_ROWS)
def test_few_rows_times_a_matrix_are_exact_in_any_parts(monkeypatch, dtype, rows, length, columns, is_transposed):
    """Small whole numbers, whose sums no order rounds."""
    rng = np.random.default_rng(length + rows)
    lhs, rhs = rng.integers(-8, 9, (rows, length)), rng.integers(-8, 9, (length, columns))
    given = np.asarray(rhs.astype(dtype), order="F" if is_transposed else "C")
    for kernels in "skylakex", "haswell":
        monkeypatch.setattr(plain_products, "openblas_kernels", lambda kernels=kernels: kernels)
        value = dot(lhs.astype(dtype), given, "f32")
        assert_array_equal(value, lhs.astype(np.float64) @ rhs)
        assert value.flags.c_contiguous


@pytest.mark.slow_cases("True-False-sizes2")
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
    assert_array_equal(result, expected)


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


@pytest.mark.parametrize("turns_rhs", [False, True])
@pytest.mark.parametrize("turns_lhs", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_multiplied_by_what_shapes_decide_have_the_same_bits(
    dtype: type[np.floating], turns_lhs: bool, turns_rhs: bool
) -> None:
    """Whatever the operands' strides are, the bound kernel gives what `evaluate` does."""
    entry = find_opcode("dot")
    assert entry is not None and entry.fast.bind is not None and entry.evaluate is not None
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
    function = entry.fast.bind(attributes=root.attributes, shape=root.shape, operand_shapes=shapes)
    assert function is not None
    generator = np.random.default_rng(0)
    lhs, rhs = (generator.standard_normal(shape.dimensions).astype(dtype) for shape in shapes)
    for left in (lhs, np.asfortranarray(lhs), lhs[::-1]):
        for right in (rhs, np.asfortranarray(rhs), np.broadcast_to(rhs[:1], rhs.shape)):
            expected = entry.evaluate(left, right, attributes=root.attributes, shape=root.shape)
            assert function(left, right).tobytes() == expected.tobytes()
