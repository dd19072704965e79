"""GPU solvers against what GPUs gave, against JAX on the CPU, and against what factors must multiply to.

jaxlib brings results that NVIDIA's and AMD's libraries gave, with the modules that asked for them. JAX lowers for GPUs on
any machine, so its functions can be run here as a GPU would be asked to. Errors of backward stable algorithms are a small
multiple of n·u·|a|; 20 n² u covers the constants of all (LAPACK Users' Guide, chapter 4).
"""

import functools
import importlib
import inspect
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from conformance.cell import shape_of
from hloexec.core.dtypes import element_type_of
from hloexec.errors import HloError, UnsupportedError
from hloexec.ops.registry import CUSTOM_CALLS
from tests.library_calls.calls import by_jax
from tests.library_calls.linalg.matrices import DTYPES, adjoint, definite, hermitian, matrices

pytest.importorskip("scipy")
jax = pytest.importorskip("jax")
linalg = jax.lax.linalg

RECORDED = "jax._src.internal_test_util.export_back_compat_test_data"
FILES = (
    "cuda_cholesky_solver_potrf cuda_eigh_cusolver_syev cuda_lu_cusolver_getrf cuda_lu_pivots_to_permutation "
    "cuda_qr_cusolver_geqrf cuda_svd_cusolver_gesvd cuda_threefry2x32 cuda_tridiagonal_cusolver_sytrd "
    "cuda_tridiagonal_solve gpu_eigh_solver_syev rocm_cholesky_solver_potrf rocm_eigh_hipsolver_syev "
    "rocm_lu_pivots_to_permutation rocm_lu_rocsolver_getrf rocm_qr_hipsolver_geqrf rocm_svd_hipsolver_gesvd "
    "rocm_threefry2x32 rocm_tridiagonal_hipsolver_sytrd"
).split()


def close(actual: Any, expected: Any, *, unit: float | None = None) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    unit = unit or np.finfo(actual.dtype).eps / 2
    size = max(*actual.shape[-2:], 4) if actual.ndim > 1 else max(len(actual), 4)
    assert np.abs(actual - expected).max(initial=0) <= 20 * size**2 * unit * max(np.abs(expected).max(initial=0), 1)


# What GPUs gave


def recorded(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file, which has several dates, kinds and types."""

    def walk(found: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        found = found if isinstance(found, dict) else vars(found)
        if "mlir_module_serialized" in found:
            yield path, found
        else:
            for key, inner in found.items():
                yield from walk(inner, f"{path}/{key}")

    module = importlib.import_module(f"{RECORDED}.{name}")
    for key, found in vars(module).items():
        if key.startswith("data"):
            yield from walk(found, key)


def agree(name: str, ours: list[Any], theirs: list[Any], inputs: list[Any]) -> None:
    """Everything that is unique is close, and vectors that are unique but for phases give back the same matrix."""
    for found, expected in zip(ours, theirs, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if "eigh" in name:  # v, w
        close(ours[1], theirs[1], unit=np.finfo(ours[1].dtype).eps / 2)
        close(
            (ours[0] * ours[1][..., None, :]) @ adjoint(ours[0]),
            (theirs[0] * theirs[1][..., None, :]) @ adjoint(theirs[0]),
        )
    elif "svd" in name:  # u, s, vt
        close(ours[1], theirs[1])
        close((ours[0] * ours[1][..., None, :]) @ ours[2], inputs[0])
        close(ours[0] @ adjoint(ours[0]), np.broadcast_to(np.eye(4), ours[0].shape))
    else:
        for found, expected in zip(ours, theirs, strict=True):
            if found.dtype.kind in "fc":
                close(found, expected)
            else:
                assert_array_equal(found, expected)


@pytest.mark.slow_cases("cuda_cholesky_solver_potrf", "cuda_tridiagonal_solve")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FILES)
def test_results_are_those_that_a_gpu_gave(name, tmp_path):
    count = 0
    for path, record in recorded(name):
        file = tmp_path / "module.mlirbc"
        file.write_bytes(record["mlir_module_serialized"])
        module = hloexec.load(file)
        assert all(target in hloexec.format(module) for target in record["custom_call_targets"]), path
        found = hloexec.run(module, *map(np.asarray, record["inputs"]))
        agree(
            name,
            list(found) if isinstance(found, tuple) else [found],
            list(record["expected_outputs"]),
            record["inputs"],
        )
        count += 1
    assert count


# What JAX asks of a GPU, against JAX on the CPU


def lowered_for(platform: str, function: Any, *arguments: Any) -> Any:
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    return hloexec.from_jax(traced.lower(lowering_platforms=(platform,)))


def run_both(platform: str, function: Any, *arguments: Any) -> tuple[list[Any], list[Any], str]:
    with jax.enable_x64(True):
        module = lowered_for(platform, function, *arguments)
        expected = jax.tree.leaves(by_jax(function, *arguments))
        return jax.tree.leaves(hloexec.run(module, *arguments)), expected, hloexec.format(module)


SAME = {
    "cholesky": (linalg.cholesky, definite, (2, 9, 9), "solver_potrf_ffi"),
    "lu": (linalg.lu, matrices, (2, 9, 7), "solver_getrf_ffi"),
    "lu of many": (linalg.lu, matrices, (2, 3, 5, 5), "solver_getrf_ffi"),
    "qr": (lambda a: linalg.qr(a, full_matrices=False), matrices, (2, 7, 9), "solver_geqrf_ffi"),
    "full qr": (lambda a: linalg.qr(a, full_matrices=True), matrices, (9, 5), "solver_orgqr_ffi"),
    "pivoted qr": (lambda a: linalg.qr(a, pivoting=True), matrices, (2, 7, 5), "hybrid_geqp3"),
    "tridiagonal": (linalg.tridiagonal, hermitian, (2, 9, 9), "solver_sytrd_ffi"),
    "upper tridiagonal": (lambda a: linalg.tridiagonal(a, lower=False), hermitian, (7, 7), "solver_sytrd_ffi"),
    "eig": (linalg.eig, matrices, (2, 7, 7), "hybrid_eig_"),
    "product with q": (
        lambda a: jax._src.lax.linalg.ormqr(a, a[..., 0], a[..., :3], left=True, transpose=True),
        matrices,
        (2, 7, 7),
        "solver_ormqr_ffi",
    ),
    "tridiagonal solve": (
        lambda a: linalg.tridiagonal_solve(a[..., 0, :], 9 + a[..., 1, :], a[..., 2, :], a),
        matrices,
        (2, 7, 7),
        "sparse_gtsv2_ffi",
    ),
}


@pytest.mark.slow_cases("cholesky-cuda")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("name", SAME)
def test_both_give_the_same_where_the_routine_is_the_same(name, platform):
    function, make, shape, target = SAME[name]
    for dtype in DTYPES if platform == "cuda" else (np.complex64,):
        found, expected, text = run_both(platform, function, make(dtype, *shape))
        assert target in text
        for ours, theirs in zip(found, expected, strict=True):
            if theirs.dtype.kind in "fc":
                close(ours, theirs)
            else:
                assert_array_equal(ours, theirs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("algorithm", [None, "QR", "JACOBI"])
def test_eigenvectors_diagonalize_the_triangle_that_is_read(algorithm, lower, platform):
    chosen = algorithm and linalg.EighImplementation[algorithm]
    function = functools.partial(linalg.eigh, lower=lower, symmetrize_input=False, implementation=chosen)
    for dtype in (np.float32, np.complex64):
        a = matrices(dtype, 2, 9, 9)
        diagonal = np.diagonal(a, axis1=-2, axis2=-1).real[..., None]
        v, w = hloexec.run(lowered_for(platform, function, a), a)
        strict = np.tril(a, -1) if lower else np.triu(a, 1)
        close(strict @ v + adjoint(strict) @ v + diagonal * v, v * w[:, None])
        close(adjoint(v) @ v, np.broadcast_to(np.eye(9, dtype=dtype), v.shape))
        assert (np.diff(w) >= 0).all()


@pytest.mark.slow_cases("True-shape0-cuda", "True-shape4-cuda")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 5, 7), (40, 36), (36, 40), (6, 6)])
@pytest.mark.parametrize("full", [True, False])
def test_singular_vectors_give_the_matrix_back_by_every_algorithm(shape, full, platform):
    """Beyond 32 rows and columns, Jacobi's method has the economic form; QR sees wide matrices transposed."""
    algorithms = [linalg.SvdAlgorithm.DEFAULT, linalg.SvdAlgorithm.QR, linalg.SvdAlgorithm.JACOBI]
    algorithms += [linalg.SvdAlgorithm.POLAR if platform == "cuda" else linalg.SvdAlgorithm.DIVIDE_AND_CONQUER]
    dtype: Any = np.float32 if platform == "cuda" else np.complex64
    a, least = matrices(dtype, *shape), min(shape[-2:])
    for algorithm in algorithms:
        module = lowered_for(platform, functools.partial(linalg.svd, full_matrices=full, algorithm=algorithm), a)
        u, s, vt = hloexec.run(module, a)
        assert u.shape[-1] == (shape[-2] if full else least)
        close((u[..., :least] * s[..., None, :]) @ vt[..., :least, :], a)
        close(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1], dtype=dtype), (*shape[:-2], *u.shape[-1:] * 2)))
        close(vt @ adjoint(vt), np.broadcast_to(np.eye(vt.shape[-2], dtype=dtype), (*shape[:-2], *vt.shape[-2:-1] * 2)))
        close(s, np.linalg.svd(a, compute_uv=False))
        if full:
            alone = lowered_for(platform, functools.partial(linalg.svd, compute_uv=False, algorithm=algorithm), a)
            close(hloexec.run(alone, a), s)


@pytest.mark.slow_cases("float32")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_symmetric_products_and_updates_are_jaxs(dtype):
    a, c = matrices(dtype, 2, 7, 5), hermitian(dtype, 2, 7, 7)
    with jax.enable_x64(True):
        product = functools.partial(linalg.symmetric_product, alpha=0.5, beta=2.0, symmetrize_output=True)
        module = lowered_for("cuda", product, a, c)
        assert "cusolver_syrk_ffi" in hloexec.format(module)
        close(hloexec.run(module, a, c), by_jax(product, a, c))
        r, w = np.linalg.cholesky(definite(dtype, 7, 7)).T.copy(), matrices(dtype, 7, seed=3)
        w[2] = 0
        module = lowered_for("cuda", linalg.cholesky_update, r, w)
        assert "cu_cholesky_update_ffi" in hloexec.format(module)
        updated = hloexec.run(module, r, w)
        close(updated, by_jax(linalg.cholesky_update, r, w))
    close(updated.T @ updated, r.T @ r + np.outer(w, w))


@pytest.mark.parametrize("function", [linalg.cholesky, linalg.eig, linalg.lu])
def test_failures_are_told_as_on_the_cpu(function):
    a = np.stack([np.eye(3), -np.eye(3), np.full((3, 3), np.nan)]).astype(np.float32)
    found, expected, _ = run_both("cuda", function, a)
    for ours, theirs in zip(found, expected, strict=True):
        assert_array_equal(np.isnan(ours), np.isnan(theirs))


# Calls by hand: the older spelling with its C structures, and what JAX lowers only where a GPU is present


def call(target: str, *operands: Any, results: str, config: bytes | str = "") -> Any:
    """The results of one call, by way of the text."""
    operands = tuple(map(np.asarray, operands))
    parameters = "\n".join(f"  p{n} = {shape_of(operand)} parameter({n})" for n, operand in enumerate(operands))
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = f", backend_config={config}" if config else ""
    if isinstance(config, bytes):
        suffix = ', backend_config="' + "".join(f"\\{byte:03o}" for byte in config) + '"'
    root = f'ROOT r = {results} custom-call({names}), custom_call_target="{target}"{suffix}'
    return hloexec.run(hloexec.parse(f"HloModule m\n\nENTRY e {{\n{parameters}\n  {root}\n}}\n"), *operands)


@pytest.mark.parametrize(("vendor", "uplo"), [("cu", 0), ("hip", 122)])
def test_older_calls_say_in_bytes_what_newer_ones_say_in_attributes(vendor, uplo):
    a = hermitian(np.float32, 2, 4, 4)
    shape = "f32[2,4,4]"
    lu, pivots, info, _ = call(
        f"{vendor}solver_getrf",
        a,
        results=f"({shape}, s32[2,4], s32[2], f32[9])",
        config=struct.pack("5i", 0, 2, 4, 4, 9),
    )
    newer = call(f"{vendor}solver_getrf_ffi", a, results=f"({shape}, s32[2,4], s32[2])", config="{}")
    batched = call(
        f"{vendor}blas_getrf_batched",
        a,
        results=f"({shape}, s32[2,4], s32[2], s8[16])",
        config=struct.pack("3i", 0, 2, 4),
    )
    for ours, theirs, third in zip((lu, pivots, info), newer, batched, strict=False):
        assert_array_equal(ours, theirs)
        assert_array_equal(ours, third)
    older = struct.pack("5i", 0, uplo, 2, 4, 9)
    for name in ("syevd", "syevj"):
        found = call(f"{vendor}solver_{name}", a, results=f"({shape}, f32[2,4], s32[2], f32[9])", config=older)
        newer = call(
            f"{vendor}solver_syevd_ffi",
            a,
            results=f"({shape}, f32[2,4], s32[2])",
            config="{algorithm = 0 : ui8, lower = true}",
        )
        for ours, theirs in zip(found, newer, strict=False):
            assert_array_equal(ours, theirs)
    found = call(
        f"{vendor}solver_sytrd",
        a,
        results=f"({shape}, f32[2,4], f32[2,3], f32[2,3], s32[2], f32[9])",
        config=struct.pack("6i", 0, uplo, 2, 4, 4, 9),
    )
    newer = call(
        f"{vendor}solver_sytrd_ffi",
        a,
        results=f"({shape}, f32[2,4], f32[2,3], f32[2,3], s32[2])",
        config="{lower = true}",
    )
    for ours, theirs in zip(found, newer, strict=False):
        assert_array_equal(ours, theirs)
    positive = definite(np.float32, 2, 4, 4)
    for config in (struct.pack("iiqqi4x", 0, uplo, 2, 4, 9), struct.pack("iiqq", 0, uplo, 2, 4)):
        found = call(f"{vendor}solver_potrf", positive, results=f"({shape}, s32[2], s8[9])", config=config)
        close(np.tril(found[0]) @ adjoint(np.tril(found[0])), positive)
        assert_array_equal(np.triu(found[0], 1), np.triu(positive, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_qr_and_its_product_multiply_back(dtype):
    a, kind = matrices(dtype, 2, 6, 4), DTYPES.index(dtype)
    name = element_type_of(np.dtype(dtype)).name
    qr, tau, *_ = call(
        "cusolver_geqrf",
        a,
        results=f"({name}[2,6,4], {name}[2,4], s32[2], {name}[9])",
        config=struct.pack("5i", kind, 2, 6, 4, 9),
    )
    batched = call(
        "cublas_geqrf_batched",
        a,
        results=f"({name}[2,6,4], {name}[2,4], s8[16], s8[16])",
        config=struct.pack("4i", kind, 2, 6, 4),
    )
    assert_array_equal(batched[0], qr)
    q, *_ = call(
        "cusolver_orgqr",
        qr,
        tau,
        results=f"({name}[2,6,4], s32[2], {name}[9])",
        config=struct.pack("6i", kind, 2, 6, 4, 4, 9),
    )
    close(q @ np.triu(qr[:, :4]), a)


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 4, 6)])
@pytest.mark.parametrize("job", "NSA")
def test_older_svd_sees_wide_matrices_transposed(shape, job):
    a, (m, n), least = matrices(np.complex64, *shape), shape[1:], min(shape[1:])
    size = max(m, n) if job == "A" else least
    factors = (f"c64[2,{m},{size}]", f"c64[2,{n},{n}]") if m > n else (f"c64[2,{size},{n}]", f"c64[2,{m},{m}]")
    results = f"(c64[2,{m},{n}], f32[2,{least}], {factors[0]}, {factors[1]}, s32[2], c64[9])"
    config = struct.pack("5i2b2x", 2, 2, max(m, n), least, 9, ord(job), ord(job))
    _, s, *factored, info, _ = call("cusolver_gesvd", a, results=results, config=config)
    close(s, np.linalg.svd(a, compute_uv=False))
    assert not info.any()
    if job == "N":
        assert not np.concatenate([part.ravel() for part in factored]).any()
    else:
        u, vt = factored if m > n else factored[::-1]
        close((u[..., :least] * s[:, None]) @ vt[..., :least, :], a)


@pytest.mark.parametrize(("job", "econ"), [(0, 0), (1, 0), (1, 1)])
def test_older_jacobi_svd_gives_v_and_not_its_adjoint(job, econ):
    a = matrices(np.complex64, 6, 4)
    u_size = 4 if econ else 6
    results = f"(c64[6,4], f32[4], c64[6,{u_size}], c64[4,4], s32[], c64[9])"
    _, s, u, v, *_ = call("cusolver_gesvdj", a, results=results, config=struct.pack("7i", 2, 1, 6, 4, 9, job, econ))
    close(s, np.linalg.svd(a, compute_uv=False))
    if job:
        close((u[:, :4] * s) @ adjoint(v), a)
    else:
        assert not u.any() and not v.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_batched_triangular_solve_takes_vendors_numbers(dtype):
    a, b = np.tril(matrices(dtype, 2, 4, 4)) + 9 * np.eye(4, dtype=dtype), matrices(dtype, 2, 4, 3)
    name, kind = element_type_of(np.dtype(dtype)).name, DTYPES.index(dtype)
    results = f"({name}[2,4,3], s8[16], s8[16])"
    for vendor, base in (("cu", (0, 0, 2, 0)), ("hip", (141, 122, 113, 131))):
        config = struct.pack("8i", kind, 2, 4, 3, *base)
        x, *_ = call(f"{vendor}blas_trsm_batched", a, b, results=results, config=config)
        close(adjoint(a) @ x, b)


@pytest.mark.slow_cases("float32", "float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_geev_packs_the_vectors_of_a_real_matrix_as_jax_unpacks_them(dtype):
    a = matrices(dtype, 2, 7, 7)
    name = element_type_of(np.dtype(dtype)).name
    wide = np.result_type(dtype, np.complex64)
    complex_name = element_type_of(wide).name
    results = f"({name}[2,7,7], {complex_name}[2,7], {name}[2,7,7], {name}[2,7,7], s32[2])"
    _, w, vl, vr, info = call("cusolver_geev_ffi", a, results=results, config="{left = false, right = true}")
    assert not vl.any() and not info.any()
    if np.dtype(dtype).kind == "f":
        with jax.enable_x64(True):
            vr = np.asarray(jax._src.lax.linalg._unpack_conjugate_pairs(w, vr))
    close(a @ vr, vr * w[:, None])
    close(np.linalg.norm(vr, axis=-2), np.ones((2, 7), a.real.dtype))
    a[1, 2, 3] = np.nan
    _, w, *_, info = call("cusolver_geev_ffi", a, results=results, config="{left = false, right = true}")
    assert info.tolist() == [0, -4] and np.isnan(w[1]).all() and not np.isnan(w[0]).any()


def test_older_tridiagonal_solve_solves():
    dl, d, du = (matrices(np.float64, 5, seed=n) for n in range(3))
    b = matrices(np.float64, 5, 2, seed=3)
    x, _ = call("cusparse_gtsv2_f64", dl, d + 9, du, b, results="(f64[5,2], s8[9])", config=struct.pack("3i", 5, 2, 5))
    close((np.diag(d + 9) + np.diag(dl[1:], -1) + np.diag(du[:-1], 1)) @ x, b)


# XLA's own calls


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_xlas_cholesky_has_info_and_leaves_the_other_triangle(dtype, lower):
    a = definite(dtype, 2, 3, 5, 5)
    a[1, 2, 3, 3] = -1  # the leading minor of order 4 is the first bad one
    name = element_type_of(np.dtype(dtype)).name
    results = f"({name}[2,3,5,5], {name}[9], s32[2,3])"
    factor, work, info = call("__cusolver$cholesky", a, results=results, config=f'{{"lower":{str(lower).lower()}}}')
    assert info.tolist() == [[0, 0, 0], [0, 0, 4]] and not work.any()
    assert np.isnan(np.diagonal(factor[1, 2])).all()
    good = info == 0
    triangle, other = (np.tril, np.triu) if lower else (np.triu, np.tril)
    kept = triangle(factor[good])
    close(kept @ adjoint(kept) if lower else adjoint(kept) @ kept, a[good])
    assert_array_equal(other(factor[good], 1 if lower else -1), other(a[good], 1 if lower else -1))


@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("left", [True, False])
def test_xlas_triangular_solve_is_the_opcodes(transpose, left):
    a = np.tril(matrices(np.complex64, 2, 4, 4)) + 9 * np.eye(4, dtype=np.complex64)
    b = matrices(np.complex64, 2, 4, 4, seed=1)
    config = f'{{"left_side":{str(left).lower()},"lower":true,"unit_diagonal":false,"transpose_a":"{transpose}"}}'
    x, _ = call("__cublas$triangularSolve", a, b, results="(c64[2,4,4], s8[32])", config=config)
    op = {"NO_TRANSPOSE": a, "TRANSPOSE": np.swapaxes(a, -1, -2), "ADJOINT": adjoint(a)}[transpose]
    close(op @ x if left else x @ op, b)


# Bad input

A, B = np.eye(3, dtype=np.float32), np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("target", "config", "message"),
    [
        ("cusolver_potrf_ffi", "{}", "lacks the attribute lower"),
        ("cusolver_potrf_ffi", "{lower = 2 : i32}", "attribute lower is 2"),
        ("cusolver_potrf_ffi", "{lower = true, fast = true}", "attribute fast, which hloexec does not know"),
        ("cusolver_syevd_ffi", "{algorithm = 7 : ui8, lower = true}", "attribute algorithm is 7"),
        ("cuhybrid_eig_real", '{left = true, magma = "maybe", right = true}', "attribute magma is 'maybe'"),
        ("cusolver_syevd", b"\1\2\3", "structure of 20 bytes .*, but has 3"),
        ("cusolver_syevd", struct.pack("5i", 0, 5, 1, 3, 9), "uplo of its backend_config is 5"),
        ("cusolver_gesvd", struct.pack("5i2b2x", 0, 1, 3, 3, 9, ord("O"), ord("N")), "jobu = 'O'"),
        ("cusolver_gesvdj", struct.pack("7i", 0, 1, 3, 3, 9, 4, 0), "jobz of its backend_config is 4"),
        ("__cusolver$cholesky", '"lower"', "not JSON"),
        ("__cusolver$cholesky", "", "not JSON"),
        ("__cusolver$cholesky", '{"lower":true,"deep":1}', "field deep, which hloexec does not know"),
        ("__cublas$triangularSolve", '{"transpose_a":"SIDEWAYS"}', "transpose_a of its backend_config is 'SIDEWAYS'"),
        ("cusolver_syrk_ffi", "{}", "lacks the attribute transpose"),
        ("cu_cholesky_update_ffi", "{speed = 1 : i32}", "attribute speed"),
    ],
)
def test_configs_that_say_something_else_are_refused_before_running(target, config, message):
    with pytest.raises(UnsupportedError, match=message):
        call(target, A, results="(f32[3,3], f32[3], s32[])", config=config)


def test_matrices_that_lie_otherwise_in_memory_are_refused():
    """The library would see the transposed matrix."""
    text = """HloModule m

ENTRY e {
  p = f32[3,3] parameter(0)
  ROOT r = (f32[3,3]{LAYOUT}, s32[3], s32[]) custom-call(p), custom_call_target="cusolver_getrf_ffi", operand_layout_constraints={f32[3,3]{LAYOUT}}, backend_config={}
}
"""
    hloexec.run(hloexec.parse(text.replace("LAYOUT", "0,1")), A)
    with pytest.raises(UnsupportedError, match="expects columns"):
        hloexec.run(hloexec.parse(text.replace("LAYOUT", "1,0")), A)


@pytest.mark.parametrize(
    ("target", "operands", "results", "config", "message"),
    [
        ("cusolver_getrf_ffi", [B.astype(np.float16)], "(f16[3,2], s32[2], s32[])", "{}", "one of f32, f64, c64, c128"),
        ("cusolver_getrf_ffi", [B[0]], "(f32[2], s32[2], s32[])", "{}", "2 dimensions besides the batch"),
        ("cusolver_getrf_ffi", [B], "(f32[3,2], s32[3], s32[])", "{}", r"ipiv .* dimensions \[2\]"),
        ("cusolver_getrf_ffi", [B], "(f32[3,2], s32[2])", "{}", "must have 3 results"),
        ("cusolver_getrf_ffi", [B, B], "(f32[3,2], s32[2], s32[])", "{}", "must have 1 operands"),
        ("cusolver_potrf_ffi", [B], "(f32[3,2], s32[])", "{lower = true}", r"dimensions \[3,3\]"),
        ("cuhybrid_eig_comp", [A], "(f32[3], c64[3,3], c64[3,3], s32[])", '{left = true, magma = "on", right = true}', "one of c64, c128"),
        ("cusolver_getrf", [B], "(f32[3,2], s32[2], s32[], f32[9])", struct.pack("5i", 0, 1, 2, 3, 9), "has m = 2, but"),
        ("cusolver_getrf", [B], "(f32[3,2], s32[2], s32[], f32[9])", struct.pack("5i", 1, 1, 3, 2, 9), "has type = 1, but"),
        ("__cusolver$cholesky", [A], "(f32[3,3], f32[9])", '{"lower":true}', "must give 3 results"),
        ("__cublas$triangularSolve", [A, B.T.copy()], "(f32[2,3], s8[0])", '{"left_side":true,"transpose_a":"TRANSPOSE"}', "do not fit"),
        ("cusolver_syrk_ffi", [B, B, np.float32(1), np.float32(1)], "f32[3,2]", "{transpose = false}", "3 by 3"),
        ("cusolver_syrk_ffi", [B, A, B[0], np.float32(1)], "f32[3,3]", "{transpose = false}", "single numbers"),
        ("cu_cholesky_update_ffi", [A, B], "(f32[3,3], f32[3,2])", "{}", r"r \[n, n\] and w \[n\]"),
    ],
)  # fmt: skip
def test_operands_and_results_that_do_not_fit_are_refused(target, operands, results, config, message):
    with pytest.raises(HloError, match=message):
        call(target, *operands, results=results, config=config)


def test_every_call_that_jax_makes_of_gpu_solvers_has_an_entry():
    """The names in JAX's own lowering rules, after the vendor's prefix."""
    from jax._src.lax import linalg as rules

    names = set(re.findall(r'f"\{(?:target_name_prefix|platform)\}(\w+)"', inspect.getsource(rules)))
    assert len(names) > 15
    assert {f"{vendor}{name}" for vendor in ("cu", "hip", "oneapi") for name in names} <= CUSTOM_CALLS.keys()


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("hloexec.ops.library_calls.linalg.solver_calls.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"hloexec\[linalg\]"):
        call("cusolver_getrf_ffi", A, results="(f32[3,3], s32[3], s32[])", config="{}")
