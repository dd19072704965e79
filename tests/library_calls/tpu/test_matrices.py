"""Kernels of matrices in dumps of TPUs: what factors multiply to, and what XLA:CPU's decompositions say.

Which factors these are shows in modules that XLA optimized for TPUs: run with these calls, they give what they gave on
XLA:CPU before the optimization. Bounds are those of backward stable algorithms.
"""

from typing import Any

import numpy as np
import pytest

from conformance.cell import shape_of
from hloexec.errors import HloError
from tests.library_calls.linalg.matrices import adjoint, close, matrices
from tests.library_calls.linalg.test_decompositions import call


def parts(array: Any) -> list[Any]:
    """The operands for an array: its real and its imaginary parts, or itself."""
    return [array.real.copy(), array.imag.copy()] if array.dtype.kind == "c" else [array]


def joined(result: Any) -> Any:
    return result[0] + 1j * result[1] if isinstance(result, tuple) else result


def declared(*arrays: Any) -> str:
    listed = [str(shape_of(array)) for array in arrays]
    return listed[0] if len(listed) == 1 else f"({', '.join(listed)})"


DTYPES = (np.float32, np.complex64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_reads_the_lower_triangle(dtype):
    a = matrices(dtype, 2, 7, 7)
    positive = (a @ adjoint(a) + 2 * np.eye(7)).astype(dtype)
    given = parts(np.tril(positive) + np.triu(matrices(dtype, 2, 7, 7, seed=1), 1))
    factor = joined(call("Cholesky", *given, results=declared(*given)))
    close(factor @ adjoint(factor), positive, unit=2**-24)
    assert not np.triu(factor, 1).any()
    assert np.isnan(joined(call("Cholesky", *parts(-positive), results=declared(*given))).real).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("side", "triangle"), [("Lower", np.tril), ("Upper", np.triu)])
def test_inverses_of_blocks_read_one_triangle(dtype, side, triangle):
    a = (matrices(dtype, 2, 3, 6, 6) + 4 * np.eye(6)).astype(dtype)
    given = parts(a)
    inverse = joined(call(f"InvertDiagBlocks{side}Triangular", *given, results=declared(*given)))
    close(inverse @ triangle(a), np.broadcast_to(np.eye(6), a.shape), unit=2**-24)
    assert (inverse == triangle(inverse)).all()


@pytest.mark.parametrize("shape", [(2, 5, 5), (6, 4), (4, 6)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_is_the_decomposition_of_xla(dtype, shape):
    a = matrices(dtype, *shape)
    rows, least = shape[-2], min(shape[-2:])
    given = parts(a)
    target = f"Lu{'Complex' if np.dtype(dtype).kind == 'c' else 'Real'}DecompositionBlock"
    batch = "".join(f"{size}," for size in shape[:-2])
    indices = f"s32[{batch}{least}], s32[{batch}{rows}]"
    *factors, pivots, permutation = call(target, *given, results=f"({', '.join(map(declared, given))}, {indices})")
    lu = joined(tuple(factors)) if len(factors) > 1 else factors[0]
    lower = np.tril(lu, -1)[..., :least] + np.eye(rows, least)
    close(lower @ np.triu(lu)[..., :least, :], np.take_along_axis(a, permutation[..., None], -2), unit=2**-24)
    assert (pivots >= np.arange(least)).all() and pivots.shape == (*shape[:-2], least)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (5, 5)])
def test_reflectors_multiply_to_the_compact_form(dtype, rows, columns):
    """1 + v t vᴴ is Q, and Q R is the matrix: QrDecompositionBlock and CompactWyHelper as XLA uses them together."""
    a = matrices(dtype, rows, columns)
    given = parts(a)
    taus_shape = ", ".join([f"f32[{columns}]"] * len(given))
    found = call("QrDecompositionBlock", *given, results=f"({', '.join(map(declared, given))}, {taus_shape})")
    count = len(given)
    qr, taus = (joined(found[at : at + count]) if count > 1 else found[at] for at in (0, count))
    v = np.tril(qr, -1) + np.eye(rows, columns)
    products = adjoint(v) @ v
    m = (-(np.triu(products, 1) + np.eye(columns)) * taus).astype(dtype)
    t = joined(call("CompactWyHelper", *parts(m), results=declared(*parts(m))))
    q = np.eye(rows) + v @ t @ adjoint(v)
    close(adjoint(q) @ q, np.eye(rows), unit=2**-24)
    close(q[:, :columns] @ np.triu(qr)[:columns], a, unit=2**-24)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_eigenvectors_are_the_rows_of_blocks_and_padding_stays_in_place(batch):
    a = matrices(np.float32, *batch, 8, 8)
    a += adjoint(a)
    a[..., [3, 6, 7], :] = a[..., :, [3, 6, 7]] = 0
    a[..., 3, 3] = -2.5
    blocks = [a[..., :4, :4], a[..., :4, 4:], a[..., 4:, :4], a[..., 4:, 4:]]
    blocks = [np.ascontiguousarray(block) for block in blocks]
    values = ", ".join([f"f32[{''.join(f'{size},' for size in batch)}4]"] * 2)
    upper, lower, *found = call("EighTpu", *blocks, results=f"({values}, {', '.join(map(declared, blocks))})")
    w = np.concatenate([upper, lower], -1)
    vectors = np.block([[found[0], found[1]], [found[2], found[3]]])
    close(vectors @ a, w[..., None] * vectors, unit=2**-24)
    close(vectors @ adjoint(vectors), np.broadcast_to(np.eye(8), a.shape), unit=2**-24)
    assert (w[..., [3, 6, 7]] == [-2.5, 0, 0]).all()
    assert (vectors[..., [3, 6, 7], :] == np.eye(8)[[3, 6, 7]]).all()


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("Cholesky", ["f32[2,3]"], "f32[2,3]"),
        ("Cholesky", ["s32[2,2]"], "s32[2,2]"),
        ("Cholesky", ["f32[2,2]", "f32[3,3]"], "(f32[2,2], f32[3,3])"),
        ("Cholesky", ["f32[2,2]"] * 3, "f32[2,2]"),
        ("InvertDiagBlocksLowerTriangular", ["f32[4]"], "f32[4]"),
        ("LuComplexDecompositionBlock", ["f32[2,2]"], "(f32[2,2], f32[2,2], s32[2], s32[2])"),
        ("LuRealDecompositionBlock", ["f32[2,2]"], "(f32[2,2], s32[2], s32[3])"),
        ("QrDecompositionBlock", ["f32[4,2]"], "(f32[4,2], f32[4])"),
        ("CompactWyHelper", ["f32[2,3]"], "f32[2,3]"),
        ("EighTpu", ["f32[2,2]"] * 3, "(f32[2], f32[2], f32[2,2], f32[2,2], f32[2,2])"),
        ("EighTpu", "f32[2,2] f32[2,2] f32[2,2] f32[1,1]".split(), "f32[2]"),
    ],
)
def test_calls_that_do_not_fit_are_refused(target, operands, results):
    types = {"f32": np.float32, "s32": np.int32}
    arrays = []
    for operand in operands:
        name, _, sizes = operand.rstrip("]").partition("[")
        arrays.append(np.ones([int(size) for size in sizes.split(",")], types[name]))
    with pytest.raises(HloError):
        call(target, *arrays, results=results)
