"""However a product is computed (in blocks, slabs or tiles, on any number of cores, in place), the sums are those of dot."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops import resources
from hloexec.ops.contraction import matrix_product, plain_products
from hloexec.ops.contraction.dot import DotAttributes
from hloexec.ops.registry import find_opcode
from hloexec.ops.resources import matmul
from tests.ops.contraction.products import dot


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
        monkeypatch.setattr(resources, "core_count", lambda cores=cores: cores)
        found.add(dot(lhs, rhs, "f32", attributes).tobytes())
    assert len(found) == 1


def test_blocks_of_products_are_even_and_cover_all():
    for size, products in product((1, 127, 128, 300, 768, 1024, 5000), (1, 1 << 12, 1 << 17, 1 << 24)):
        step = plain_products.even_step(size, products)
        count = -(-size // step)
        assert count == 1 or (count % 2 == 0 and step * products >= plain_products._LEAST_PRODUCTS // 2)
    for rows, terms, columns in ((1, 1, 1), (5000, 9, 4000), (4096, 4096, 4096), (16, 2048, 4096), (900, 3000, 1),
                                 (128, 16, 512), (1000, 32, 130), (1, 4096, 5000), (70, 4096, 130)):  # fmt: skip
        blocks = plain_products.blocks_of(rows, terms, columns)
        times = np.zeros((rows, columns), np.int8)
        blocks.on_all_cores(lambda row, column, times=times: np.add(times[row, column], 1, out=times[row, column]))
        assert (times == 1).all()
    for rows, terms, columns, least in ((512, 256, 1024, 4), (1024, 1024, 1024, 8), (16, 4096, 4096, 8),
                                        (4096, 4096, 4096, 16), (256, 256, 256, 2)):  # fmt: skip
        blocks = plain_products.blocks_of(rows, terms, columns)
        assert -(-rows // blocks.row_step) * -(-columns // blocks.column_step) >= least
    blocks = plain_products.batch_blocks((3, 5, 7), 1 << 18)
    times = np.zeros((3, 5, 7), int)
    for block in blocks:
        times[block] += 1
    assert (times == 1).all()
    assert len(blocks) == 30


def test_no_other_division_into_as_many_blocks_copies_much_less():
    """Each block copies its rows and its columns, so that per element of the result 1/rows + 1/columns are copied."""
    for rows, terms, columns in ((1024, 1024, 1024), (512, 256, 1024), (2048, 512, 512), (16384, 4096, 4096),
                                 (4096, 1024, 300), (777, 1001, 1300)):  # fmt: skip
        blocks = plain_products.blocks_of(rows, terms, columns)
        count = -(-rows // blocks.row_step) * -(-columns // blocks.column_step)
        least = min(down / rows + (count // down) / columns for down in range(1, count + 1) if count % down == 0)
        assert 1 / blocks.row_step + 1 / blocks.column_step <= 1.25 * least


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
    np.testing.assert_array_equal(value, scale * (lhs @ matrix.T))
    assert value.flags.c_contiguous


@pytest.mark.slow_cases("16-False", "16-True", "30-False", "30-True", "31-False", "31-True")
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
        np.testing.assert_array_equal(value, lhs.astype(np.float64) @ rhs)
        assert value.flags.c_contiguous


def test_tiles_of_a_transposed_matrix_are_of_few_columns(monkeypatch):
    monkeypatch.setattr(plain_products, "openblas_kernels", lambda: "skylakex")
    taken = []

    def noted(lhs, rhs, out=None):
        taken.append(lhs.shape[-2:])
        return matmul(lhs, rhs, out)

    monkeypatch.setattr(plain_products, "matmul", noted)
    lhs, rhs = np.ones((16, 1024), np.float32), np.ones((1024, 1280), np.float32, order="F")
    assert (plain_products.plain_matrix_product(lhs, rhs) == 1024).all()
    assert set(taken) == {(32, 256)}


@pytest.mark.parametrize(("length", "columns"), [(2048, 1024), (1003, 2100), (4100, 515)])
def test_few_rows_times_a_matrix_in_row_major_order_are_exact_in_wide_tiles(monkeypatch, length, columns):
    """Small whole numbers, whose sums no order rounds. Of the matrix, BLAS is given some rows at a time, as they lie."""
    rng = np.random.default_rng(length)
    lhs, rhs = rng.integers(-8, 9, (16, length)), rng.integers(-8, 9, (length, columns))
    monkeypatch.setattr(plain_products, "openblas_kernels", lambda: "skylakex")
    taken = []

    def noted(lhs, rhs, out=None):
        taken.append(rhs.shape[-2:])
        return matmul(lhs, rhs, out)

    monkeypatch.setattr(plain_products, "matmul", noted)
    value = plain_products.plain_matrix_product(lhs.astype(np.float32), rhs.astype(np.float32))
    np.testing.assert_array_equal(value, lhs.astype(np.float64) @ rhs)
    assert {rows for rows, _ in taken} == {32, length % 32}
    assert max(across for _, across in taken) <= 1024


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
        np.testing.assert_array_equal(value, lhs.astype(np.float64) @ rhs)
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


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_narrow_product_is_widened_on_all_cores_and_multiplied_in_few_calls(monkeypatch, is_transposed):
    """Whole numbers, whose sums no order rounds and of which bf16 holds every one up to 256."""
    rng = np.random.default_rng(3)
    lhs, rhs = rng.integers(0, 2, (512, 1024)), np.eye(1024, 256, dtype=np.int64)
    given = np.asarray(rhs.astype(ml_dtypes.bfloat16), order="F" if is_transposed else "C")
    shared, multiplied = [], []

    def noted_blocks(function, count, block, **how):
        shared.append(-(-count // block))
        resources.in_blocks(function, count, block, **how)

    def noted(lhs, rhs, out):
        multiplied.append(len(lhs))
        return matmul(lhs, rhs, out)

    monkeypatch.setattr(matrix_product, "in_blocks", noted_blocks)
    monkeypatch.setattr(plain_products, "matmul", noted)
    value = dot(lhs.astype(ml_dtypes.bfloat16), given, "bf16")
    np.testing.assert_array_equal(value.astype(np.float64), lhs.astype(np.float64) @ rhs)
    assert (shared, multiplied) == ([4, 2], [256, 256])
