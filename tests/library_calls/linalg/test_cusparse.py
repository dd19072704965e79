"""cuSPARSE's calls against dense arithmetic that is exact, through modules as JAX writes them.

Elements and right-hand sides are small whole numbers, so that every sum is exact in every type.
"""

import struct
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import element_type_of
from hloexec.errors import EvaluationError, HloError, UnsupportedError
from hloexec.ops.library_calls.configs import bytes_of_attribute, ffi_attributes
from tests.library_calls.calls import by_jax

jax = pytest.importorskip("jax")

ROWS, COLUMNS = 7, 9


def dense_matrix(dtype: Any) -> Any:
    generator = np.random.default_rng(0)
    dense = generator.integers(-3, 4, (ROWS, COLUMNS)) * (generator.random((ROWS, COLUMNS)) < 0.4)
    if np.dtype(dtype).kind == "c":
        dense = dense + 1j * np.roll(dense, 2, 0) * (dense != 0)
    dense[2] = 0
    return dense.astype(dtype)


def parts_of(dense: Any, kind: str) -> tuple[Any, Any, Any]:
    row, col = (part.astype(np.int32) for part in np.nonzero(dense))
    if kind == "coo":
        return dense[row, col], row, col
    return dense[row, col], col, np.searchsorted(row, np.arange(len(dense) + 1)).astype(np.int32)


def sparse_descriptor(nnz: int, rows: int = ROWS, columns: int = COLUMNS, *, older: bool = False) -> bytes:
    return struct.pack("5i", 0, 1, rows, columns, nnz) + (b"" if older else struct.pack("2i", 1, 0))


def product_descriptor(nnz: int, rhs: Any, op: int, *, older: bool = False) -> bytes:
    size = COLUMNS if op else ROWS
    batch = b"" if older else struct.pack("2i", 1, 0)
    if rhs.ndim == 1:
        dense = struct.pack("4i", 0, len(rhs), 0, size)
    else:
        dense = struct.pack("3i", 0, *rhs.shape) + batch + struct.pack("3i", 0, size, rhs.shape[1]) + batch
    return sparse_descriptor(nnz, older=older) + dense + struct.pack("i", op)


def call(target: str, *operands: Any, results: Any, descriptor: bytes, typed: bool = True) -> Any:
    """The results of a call that JAX lowered, or of one in the older spelling."""
    if typed:
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in results]
        with jax.enable_x64(True):
            function = jax.jit(lambda *parts: jax.ffi.ffi_call(target, shapes)(*parts, opaque=descriptor))
            return hloexec.run(hloexec.from_jax(function.lower(*operands)), *operands)

    def text(dtype: Any, shape: Any) -> str:
        return f"{element_type_of(np.dtype(dtype)).name}[{','.join(map(str, shape))}]"

    lines = [f"  p{n} = {text(part.dtype, part.shape)} parameter({n})" for n, part in enumerate(operands)]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    config = "".join(f"\\{byte:03o}" for byte in descriptor)
    declared = ", ".join(text(*result) for result in results)
    declared = declared if len(results) == 1 else f"({declared})"
    lines.append(
        f'  ROOT r = {declared} custom-call({names}), custom_call_target="{target}", backend_config="{config}"'
    )
    return hloexec.run(hloexec.parse("HloModule m\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"), *operands)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["csr", "coo"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
@pytest.mark.parametrize("columns", [None, 3])
def test_products_are_those_of_dense_matrices(kind, dtype, columns):
    dense = dense_matrix(dtype)
    parts = parts_of(dense, kind)
    for op, matrix in enumerate((dense, dense.T, dense.conj().T)):
        shape = (matrix.shape[1],) if columns is None else (matrix.shape[1], columns)
        rhs = np.random.default_rng(1).integers(-3, 4, shape).astype(dtype)
        results = [(dtype, (matrix.shape[0], *shape[1:])), (np.int8, (5,))]
        name = f"sparse_{kind}_{'matvec' if columns is None else 'matmat'}"
        descriptor = product_descriptor(len(parts[0]), rhs, op)
        found, workspace = call(f"cu{name}_ffi", *parts, rhs, results=results, descriptor=descriptor)
        assert_array_equal(found, matrix @ rhs)
        assert not workspace.any()
        for older in (False, True):
            descriptor = product_descriptor(len(parts[0]), rhs, op, older=older)
            found, _ = call(f"hip{name}", *parts, rhs, results=results, descriptor=descriptor, typed=False)
            assert_array_equal(found, matrix @ rhs)


@pytest.mark.slow_cases("float32-csr", "complex64-coo")
@pytest.mark.parametrize("kind", ["csr", "coo"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_conversions_are_jaxs(kind, dtype):
    """With room for four more elements than there are; JAX on the CPU fills that up in a way of its own."""
    from jax.experimental import sparse

    dense = dense_matrix(dtype)
    parts = parts_of(dense, kind)
    count = len(parts[0])
    descriptor = sparse_descriptor(count)
    results = [(dtype, dense.shape), (np.int8, (5,))]
    found, _ = call(f"cusparse_{kind}_todense_ffi", *parts, results=results, descriptor=descriptor)
    assert_array_equal(found, dense)
    length = count + 4
    sizes = (length, length, ROWS + 1 if kind == "csr" else length)
    results = [(part.dtype, (size,)) for part, size in zip(parts, sizes, strict=True)] + [(np.int8, (5,))]
    found = call(f"cusparse_{kind}_fromdense_ffi", dense, results=results, descriptor=sparse_descriptor(length))
    names = ("data", "indices", "indptr") if kind == "csr" else ("data", "row", "col")

    def converted(dense: Any) -> Any:
        matrix = (sparse.CSR if kind == "csr" else sparse.COO).fromdense(dense, nse=count)
        return [getattr(matrix, name) for name in names]

    for ours, theirs, size in zip(found, by_jax(converted, dense), (count, count, len(parts[2])), strict=False):
        assert_array_equal(ours[:size], theirs)
        assert not ours[size:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_sparse_systems_have_the_solution_that_jax_finds(dtype):
    """A system that is diagonally dominant: 20 n² u of the solution covers both solvers' errors."""
    pytest.importorskip("scipy")
    from jax.experimental.sparse.linalg import spsolve

    dense = dense_matrix(dtype)[:, :ROWS] + 20 * np.eye(ROWS, dtype=dtype)
    data, indices, indptr = parts_of(dense, "csr")
    b = np.arange(1, ROWS + 1).astype(dtype)
    with jax.enable_x64(True):
        function = jax.jit(lambda *parts: spsolve(*parts, tol=1e-6, reorder=1))
        module = hloexec.from_jax(function.trace(data, indices, indptr, b).lower(lowering_platforms=("cuda",)))
        expected = np.asarray(function(data, indices, indptr, b))
    assert "cusolver_csrlsvqr_ffi" in hloexec.format(module)
    x = hloexec.run(module, data, indices, indptr, b)
    assert x.dtype == dtype
    assert np.abs(x - expected).max() <= 10 * ROWS**2 * np.finfo(dtype).eps * np.abs(expected).max()
    kind = (np.float32, np.float64, np.complex64, np.complex128).index(dtype)
    older = struct.pack("4id", kind, ROWS, len(data), 1, 1e-6)
    operands, results = (data, indptr, indices, b), [(dtype, (ROWS,))]
    assert_array_equal(call("cusolver_csrlsvqr", *operands, results=results, descriptor=older, typed=False), x)
    with pytest.raises(HloError, match="3 equations"):
        older = struct.pack("4id", kind, 3, len(data), 1, 1e-6)
        call("cusolver_csrlsvqr", *operands, results=results, descriptor=older, typed=False)


def test_bytes_of_attributes_are_what_jax_gave():
    data = bytes(range(256))
    function = jax.jit(lambda x: jax.ffi.ffi_call("t", jax.ShapeDtypeStruct((3,), np.float32))(x, opaque=data))
    module = hloexec.from_jax(function.lower(np.ones(3, np.float32)))
    (call_,) = (one for one in module.computations[0] if one.opcode == "custom-call")
    assert bytes_of_attribute(str(ffi_attributes(call_.backend_config)["opaque"])) == data


# Bad input

DATA, ROW, COL, RHS = (
    np.ones(2, np.float32),
    np.array([0, 1], np.int32),
    np.array([1, 0], np.int32),
    np.ones(2, np.float32),
)
DESCRIPTOR = struct.pack("12i", 0, 1, 2, 2, 2, 1, 0, 0, 2, 0, 2, 0)


def product(
    *operands: Any, descriptor: bytes = DESCRIPTOR, target: str = "cusparse_coo_matvec", results: Any = None
) -> Any:
    results = results or [(np.float32, (2,)), (np.int8, (1,))]
    return call(target, *operands, results=results, descriptor=descriptor, typed=target.endswith("_ffi"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({11: 3}, "op of its backend_config is 3"),
        ({5: 2}, "batch_count of its backend_config is 2"),
    ],
)
def test_structures_that_say_something_else_are_refused_before_running(changed, message):
    members = list(struct.unpack("12i", DESCRIPTOR))
    for place, value in changed.items():
        members[place] = value
    with pytest.raises(UnsupportedError, match=message):
        product(DATA, ROW, COL, RHS, descriptor=struct.pack("12i", *members))
    with pytest.raises(UnsupportedError, match="structure of 48 bytes"):
        product(DATA, ROW, COL, RHS, descriptor=DESCRIPTOR[:-1])
    with pytest.raises(UnsupportedError, match="structure of 48 bytes"):
        product(DATA, ROW, COL, RHS, target="cusparse_csr_matvec_ffi", descriptor=b"")


@pytest.mark.parametrize(
    ("operands", "error", "message"),
    [
        ([DATA, ROW, COL], HloError, "3 operands"),
        ([DATA[:1], ROW, COL, RHS], HloError, "data of a sparse matrix of 2 rows"),
        ([DATA, ROW.astype(np.float32), COL, RHS], HloError, "must be integers"),
        ([DATA, ROW, COL, RHS.astype(np.float64)], HloError, "cannot be multiplied"),
        ([DATA, ROW, COL, np.ones(3, np.float32)], HloError, "cannot be multiplied"),
        ([DATA, ROW + 1, COL, RHS], EvaluationError, "rows 1 to 2 of 2"),
        ([DATA, ROW, COL - 1, RHS], EvaluationError, "columns -1 to 0 of 2"),
    ],
)
def test_matrices_that_are_none_are_refused(operands, error, message):
    with pytest.raises(error, match=message):
        product(*operands)


def test_more_elements_than_there_is_room_for_are_an_error():
    results = [(np.float32, (1,)), (np.int32, (1,)), (np.int32, (1,)), (np.int8, (1,))]
    descriptor = sparse_descriptor(1, 2, 2)
    with pytest.raises(EvaluationError, match="2 elements that are not zero, but the result has space for 1"):
        product(
            np.eye(2, dtype=np.float32), target="cusparse_coo_fromdense_ffi", results=results, descriptor=descriptor
        )


def test_a_singular_system_is_an_error():
    pytest.importorskip("scipy")
    zeros, indptr = np.zeros(2, np.float32), np.array([0, 1, 2], np.int32)
    text = """HloModule m

ENTRY e {
  d = f32[2] parameter(0)
  i = s32[2] parameter(1)
  p = s32[3] parameter(2)
  b = f32[2] parameter(3)
  ROOT x = f32[2] custom-call(d, i, p, b), custom_call_target="cusolver_csrlsvqr_ffi", backend_config={reorder = 1 : i32, tol = 1.000000e-06 : f64}
}
"""
    with pytest.raises(EvaluationError, match="singular"):
        hloexec.run(hloexec.parse(text), zeros, ROW, indptr, zeros)
    with pytest.raises(UnsupportedError, match="attribute reorder is 9"):
        hloexec.run(hloexec.parse(text.replace("reorder = 1", "reorder = 9")), zeros, ROW, indptr, zeros)
