"""LAPACK calls against XLA:CPU, which calls the same library, and against what the factors must multiply to."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from conformance.xla import COMPILED_SOONEST
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, TupleShape
from hloexec.errors import EvaluationError, HloError, ShapeError, UnsupportedError
from hloexec.ops.registry import CUSTOM_CALLS
from tests.library_calls.linalg.matrices import DTYPES, adjoint, close, definite, hermitian, matrices

pytest.importorskip("scipy")
jax = pytest.importorskip("jax")
linalg = jax.lax.linalg

PRECISION = dict(zip(map(np.dtype, DTYPES), "sdcz", strict=True))


def target(name: str, dtype: Any, *, suffix: str = "_ffi", library: str = "lapack") -> str:
    """`getrf` is `lapack_sgetrf_ffi`; the names that differ for complex numbers are given as `orgqr/ungqr`."""
    real, _, complex_ = name.partition("/")
    chosen = complex_ if complex_ and np.dtype(dtype).kind == "c" else real
    return f"{library}_{PRECISION[np.dtype(dtype)]}{chosen}{suffix}"


def shape_of(array: Any) -> ArrayShape:
    array = np.asarray(array)
    return ArrayShape(element_type_of(array.dtype), array.shape)


def call(name: str, *operands: Any, results: Any, config: str | None = None) -> Any:
    """The call's results, declared with the dtypes and shapes of `results`."""
    leaves = tuple(ArrayShape(element_type_of(np.dtype(dtype)), shape) for dtype, shape in results)
    shape = TupleShape(leaves)
    entry = CUSTOM_CALLS[name]
    entry.infer(*map(shape_of, operands), shape=shape)
    operands = tuple(map(np.asarray, operands))
    before = [operand.tobytes() for operand in operands]
    assert entry.config is not None
    call = Instruction(name="r", shape=shape, opcode="custom-call", backend_config=config)
    found = entry.evaluate(*operands, config=entry.config(call), shape=shape)
    assert before == [operand.tobytes() for operand in operands]
    for ours, (dtype, dimensions) in zip(found, results, strict=True):
        assert (ours.dtype, ours.shape) == (np.dtype(dtype), dimensions)
    return found


# name, function, arguments from a dtype. Sizes beyond 32 make LAPACK work in blocks.
CALLS = {
    "cholesky": (lambda a: linalg.cholesky(a, symmetrize_input=False), definite, (2, 40, 40)),
    "lu": (linalg.lu, matrices, (2, 40, 33)),
    "geqrf": (lambda a: jax._src.lax.linalg.geqrf(a), matrices, (2, 40, 33)),
    "qr": (lambda a: linalg.qr(a, full_matrices=False), matrices, (2, 9, 40)),
    "full qr": (lambda a: linalg.qr(a, full_matrices=True), matrices, (40, 9)),
    "pivoted qr": (lambda a: linalg.qr(a, pivoting=True), matrices, (2, 7, 5)),
    "full svd": (lambda a: linalg.svd(a, full_matrices=True), matrices, (2, 9, 6)),
    "svd": (lambda a: linalg.svd(a, full_matrices=False), matrices, (2, 6, 40)),
    "singular values": (lambda a: linalg.svd(a, compute_uv=False), matrices, (9, 6)),
    "svd by qr": (lambda a: linalg.svd(a, algorithm=linalg.SvdAlgorithm.QR), matrices, (7, 6)),
    "eigh": (lambda a: linalg.eigh(a, symmetrize_input=False), hermitian, (2, 40, 40)),
    "eigh of the upper triangle": (lambda a: linalg.eigh(a, lower=False, symmetrize_input=False), hermitian, (5, 5)),
    "eig": (lambda a: linalg.eig(a), matrices, (2, 7, 7)),
    "eigenvalues": (
        lambda a: linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
        matrices,
        (7, 7),
    ),
    # In XLA, a matrix begins where the one before it ends. OpenBLAS rounds otherwise where that is no multiple of 16 bytes
    # and the processor has no AVX, and the phases of Schur vectors hang on the last bits.
    "schur": (linalg.schur, matrices, (2, 8, 8)),
    "schur without vectors": (lambda a: linalg.schur(a, compute_schur_vectors=False), matrices, (7, 7)),
    "hessenberg": (linalg.hessenberg, matrices, (2, 40, 40)),
    "tridiagonal": (linalg.tridiagonal, hermitian, (2, 40, 40)),
    "upper tridiagonal": (lambda a: linalg.tridiagonal(a, lower=False), hermitian, (7, 7)),
    "tridiagonal of one row": (linalg.tridiagonal, hermitian, (1, 1)),
    "hessenberg of one row": (linalg.hessenberg, matrices, (1, 1)),
    "tridiagonal solve": (
        lambda a: linalg.tridiagonal_solve(a[..., 0, :], a[..., 1, :], a[..., 2, :], a),
        matrices,
        (2, 7, 7),
    ),
    "triangular solve": (lambda a: linalg.triangular_solve(a, a[..., :3], left_side=True), matrices, (2, 7, 7)),
    "triangular solve from the right": (
        lambda a: linalg.triangular_solve(a, a[..., :3, :], lower=True, transpose_a=True, conjugate_a=True),
        matrices,
        (2, 7, 7),
    ),
    "triangular solve with a unit diagonal": (
        lambda a: linalg.triangular_solve(a, a, left_side=True, unit_diagonal=True, transpose_a=True),
        matrices,
        (7, 7),
    ),
    "product with q": (
        lambda a: jax._src.lax.linalg.ormqr(a, a[..., 0], a[..., :3], left=True, transpose=True),
        matrices,
        (2, 7, 7),
    ),
}


def run_both(function: Any, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """hloexec's and XLA's results of a JAX function."""
    with jax.enable_x64(True):
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(lowered.compile({**COMPILED_SOONEST})(*arguments))]
        found = jax.tree.leaves(hloexec.run(hloexec.from_jax(lowered), *arguments))
    return found, expected


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_calls_give_what_xla_gives(name, dtype):
    """Both call the same LAPACK in the same way, so nothing may differ but what surrounds the call: `eig` scales its
    vectors, `schur` and the like select. 4 ULPs of the largest element cover that."""
    function, make, shape = CALLS[name]
    found, expected = run_both(function, make(dtype, *shape))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind in "fc":
            assert_allclose(ours, theirs, rtol=0, atol=4 * np.finfo(theirs.dtype).eps * np.abs(theirs).max(initial=0))
        else:
            assert_array_equal(ours, theirs)


@pytest.mark.parametrize("uplo", "LU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_of_many_small_matrices_multiply_back(dtype, uplo):
    """As far as Cholesky's method promises of each element (Higham, Accuracy and Stability, Theorem 10.3), its
    constant doubled for complex numbers; the other triangle stays."""
    a = definite(dtype, 50, 6, 6)
    kept = np.triu if uplo == "L" else np.tril
    config = f"{{uplo = {ord(uplo)} : ui8}}"
    results = [(dtype, a.shape), (np.int32, (50,))]
    found, info = call(target("potrf", dtype), a, results=results, config=config)
    assert_array_equal(kept(found, 1 if uplo == "L" else -1), kept(a, 1 if uplo == "L" else -1))
    lower = (np.tril(found) if uplo == "L" else adjoint(np.triu(found))).astype(np.clongdouble)
    bound = 2 * 7 * np.finfo(dtype).eps * (np.abs(lower) @ np.abs(adjoint(lower))).real
    assert (np.abs(lower @ adjoint(lower) - a) <= bound).all()
    assert not info.any()
    # One that is not definite ends as it does alone, and leaves the others as they are.
    a[3, 2, 2] = -1
    mixed, info = call(target("potrf", dtype), a, results=results, config=config)
    alone, code = call(target("potrf", dtype), a[3], results=[(dtype, (6, 6)), (np.int32, ())], config=config)
    assert_array_equal(mixed[3], alone)
    assert (info[3], np.count_nonzero(info)) == (code, 1)
    assert code == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", "LLNN LUTN RLCU RUNN LLCU".split())
def test_solutions_of_many_small_systems_fulfil_them(dtype, options):
    """As far as substitution promises of each element (Higham, Theorem 8.5), its constant doubled for complex numbers."""
    side, uplo, trans, diag = options
    a, b = matrices(dtype, 50, 6, 6), matrices(dtype, 50, 6, 3 if side == "L" else 6, seed=1)
    values = zip(("diag", "side", "trans_x", "uplo"), (diag, side, trans, uplo), strict=True)
    config = "{" + ", ".join(f"{name} = {ord(letter)} : ui8" for name, letter in values) + "}"
    (x,) = call(target("trsm", dtype), a, b, results=[(dtype, b.shape)], config=config)
    triangle = (np.tril if uplo == "L" else np.triu)(a).astype(np.clongdouble)
    if diag == "U":
        triangle[:, range(6), range(6)] = 1
    applied = {"N": triangle, "T": triangle.swapaxes(-1, -2), "C": adjoint(triangle)}[trans]
    product = (lambda one, other: one @ other) if side == "L" else (lambda one, other: other @ one)
    bound = 2 * 6 * np.finfo(dtype).eps * product(np.abs(applied), np.abs(x.astype(np.clongdouble)))
    assert (np.abs(product(applied, x.astype(np.clongdouble)) - b) <= bound).all()


@pytest.mark.slow_cases("solve", "svd", "qr")
@pytest.mark.parametrize("name", "solve eigh svd qr".split())
def test_modules_that_xla_has_optimized_run_too(name):
    """LAPACK's results are the same; what surrounds them may be fused. 64 ULPs of the largest element, well conditioned."""
    a = definite(np.float32, 3, 8, 8) + 8 * np.eye(8, dtype=np.float32)
    functions = {"solve": lambda a: jax.numpy.linalg.solve(a, a[..., :3]), "eigh": jax.numpy.linalg.eigh}
    function = functions.get(name) or getattr(jax.numpy.linalg, name)
    compiled = jax.jit(function).lower(a).compile()
    found = jax.tree.leaves(hloexec.run(hloexec.from_jax(compiled), a))
    for ours, theirs in zip(found, jax.tree.leaves(compiled(a)), strict=True):
        assert_allclose(ours, theirs, rtol=0, atol=64 * 2.0**-23 * np.abs(theirs).max())


@pytest.mark.slow
def test_eigenvectors_of_tridiagonal_matrices_diagonalize_them():
    """By way of bisection and inverse iteration.

    Bisection is backward stable, inverse iteration with the value it gives leaves a residual |T v − λ v| of
    2 n ε ‖T‖₁ at most. A residual r turns a vector by r / gap, where gap is how far the next eigenvalue lies (Davis and
    Kahan), and two vectors may turn towards each other; their lengths are rounded.
    """
    generator = np.random.default_rng(0)
    d, e = generator.normal(size=9).astype(np.float32), generator.normal(size=8).astype(np.float32)
    (values, vectors), _ = run_both(jax.scipy.linalg.eigh_tridiagonal, d, e)
    whole = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    residual = 2 * 9 * 2.0**-23 * np.abs(whole).sum(axis=0).max()
    whole, vectors, values = (np.asarray(array, np.float64) for array in (whole, vectors, values))
    assert (np.linalg.norm(whole @ vectors - vectors * values, axis=0) <= residual).all()
    gaps = np.abs(values[:, None] - values) + np.diag(np.full(9, np.inf))
    turned = residual / gaps.min(axis=0)
    assert (np.abs(vectors.T @ vectors - np.eye(9)) <= turned[:, None] + turned + 9 * 2.0**-23).all()


def test_a_matrix_that_is_not_definite_gives_nan_as_in_xla():
    a = np.stack([np.eye(3), -np.eye(3)]).astype(np.float32)
    found, expected = run_both(linalg.cholesky, a)
    assert_array_equal(found[0], expected[0])
    assert np.isnan(np.diag(found[0][1])).all()


@pytest.mark.parametrize("name", ["eig", "svd", "lu"])
def test_values_that_are_not_finite_end_as_in_xla(name):
    a = matrices(np.float32, 2, 7, 7)
    a[1, 2, 3] = np.nan
    found, expected = run_both(CALLS[name][0], a)
    for ours, theirs in zip(found, expected, strict=True):
        assert_array_equal(np.isnan(ours), np.isnan(theirs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", "cholesky qr svd eigh eig schur lu".split())
@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3)])
def test_empty_matrices_and_batches_have_empty_factors(name, shape):
    found, expected = run_both(CALLS[name][0], np.zeros(shape, np.float32))
    assert [ours.shape for ours in found] == [theirs.shape for theirs in expected]


# What factors must multiply to


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd_multiplies_back_with_orthonormal_factors(dtype):
    a = matrices(dtype, 3, 12, 8)
    real = a.real.dtype
    for name, mode, columns in (("gesdd", "A", 12), ("gesdd", "S", 8), ("gesvd", "A", 12), ("gesvd", "S", 8)):
        results = [(dtype, a.shape), (real, (3, 8)), (dtype, (3, 12, columns)), (dtype, (3, 8, 8)), (np.int32, (3,))]
        _, s, u, vt, info = call(target(name, dtype), a, results=results, config=f"{{mode = {ord(mode)} : ui8}}")
        close((u[..., :8] * s[:, None]) @ vt, a)
        close(adjoint(u) @ u, np.broadcast_to(np.eye(columns), (3, columns, columns)))
        close(vt @ adjoint(vt), np.broadcast_to(np.eye(8), (3, 8, 8)))
        assert not info.any()
        assert (np.diff(s) <= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvectors_satisfy_their_equations_on_both_sides(dtype):
    a = matrices(dtype, 2, 12, 12)
    wide = np.result_type(dtype, np.complex64)
    values = [(dtype, (2, 12))] * (1 if np.dtype(dtype).kind == "c" else 2)
    results = [*values, (wide, a.shape), (wide, a.shape), (np.int32, (2,))]
    config = "{compute_left = 86 : ui8, compute_right = 86 : ui8}"
    *parts, vl, vr, info = call(target("geev", dtype), a, results=results, config=config)
    w = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
    close(a @ vr, vr * w[:, None])
    close(adjoint(vl) @ a, w[..., None] * adjoint(vl))
    close(np.linalg.norm(vr, axis=-2), np.ones((2, 12)))
    assert not info.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_schur_form_multiplies_back(dtype):
    a = matrices(dtype, 2, 12, 12)
    values = [(dtype, (2, 12))] * (1 if np.dtype(dtype).kind == "c" else 2)
    results = [(dtype, a.shape), (dtype, a.shape), *values, (np.int32, (2,)), (np.int32, (2,))]
    config = "{mode = 86 : ui8, sort = 78 : ui8}"
    t, vs, *_ = call(target("gees", dtype), a, results=results, config=config)
    close(vs @ t @ adjoint(vs), a)
    assert not np.tril(t, -2).any()


# The older spelling: scalars before the arrays, workspaces among the results.

OLDER: dict[str, Any] = {
    "getrf": (matrices, (2, 5, 3), [2, 5, 3], "a ipiv info", ""),
    "geqrf": (matrices, (2, 5, 3), [2, 5, 3, 9], "a tau info work", ""),
    "potrf": (definite, (2, 4, 4), [1, 2, 4], "a info", "{uplo = 76 : ui8}"),
    "gesdd": (matrices, (2, 5, 3), [1, 1, 2, 5, 3, 9], "a s u vt info work work", "{mode = 65 : ui8}"),
    "syevd/heevd": (hermitian, (2, 4, 4), [0, 2, 4], "a w info work work", "{mode = 86 : ui8, uplo = 85 : ui8}"),
    "gehrd": (matrices, (2, 4, 4), [4, 1, 4, 4, 2, 9], "a tau info work", "{high = 4 : i32, low = 1 : i32}"),
    "sytrd/hetrd": (hermitian, (2, 4, 4), [4, 1, 4, 2, 9], "a d e tau info work", "{uplo = 76 : ui8}"),
}


def _declared(names: str, dtype: Any, shape: tuple[int, ...]) -> list[tuple[Any, tuple[int, ...]]]:
    batch, m, n = shape
    real, least = np.empty(0, dtype).real.dtype, min(m, n)
    table = {
        "a": (dtype, shape), "ipiv": (np.int32, (batch, least)), "info": (np.int32, (batch,)),
        "tau": (dtype, (batch, least - (m == n))), "work": (dtype, (9,)),
        "s": (real, (batch, least)), "u": (dtype, (batch, m, m)), "vt": (dtype, (batch, n, n)),
        "w": (real, (batch, n)), "d": (real, (batch, n)), "e": (real, (batch, n - 1)),
    }  # fmt: skip
    return [table[name] for name in names.split()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OLDER)
def test_the_older_spelling_says_the_same(name, dtype):
    make, shape, scalars, results, config = OLDER[name]
    a = make(dtype, *shape)
    older = call(target(name, dtype, suffix=""), *map(np.int32, scalars), a, results=_declared(results, dtype, shape))
    kept = [part for part in results.split() if part != "work" and not (name == "geqrf" and part == "info")]
    typed = call(target(name, dtype), a, results=_declared(" ".join(kept), dtype, shape), config=config or "{}")
    by_name = dict(zip(results.split(), older, strict=True))
    for part, value in zip(kept, typed, strict=True):
        assert_array_equal(by_name[part], value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_triangular_solve_scales_by_alpha(dtype):
    a, b = matrices(dtype, 2, 4, 4), matrices(dtype, 2, 4, 3)
    scalars = [np.int32(value) for value in (1, 1, 2, 0, 4, 3, 2)]
    name = target("trsm", dtype, suffix="", library="blas")
    (x,) = call(name, *scalars, np.asarray(2, dtype), a, b, results=[(dtype, b.shape)])
    # a is not well conditioned: the residual is what is small.
    close(adjoint(np.tril(a)) @ x, 2 * b, size=max(4, int(np.abs(x).max())))


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular_solve_may_have_alpha_behind_its_operands(dtype):
    """As jaxlib 0.4.36 to 0.4.38 calls it."""
    a, b = matrices(dtype, 2, 4, 4) + 4 * np.eye(4, dtype=dtype), matrices(dtype, 2, 4, 3)
    config = "{diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8}"
    name, results = target("trsm", dtype), [(dtype, b.shape)]
    (plain,) = call(name, a, b, results=results, config=config)
    (x,) = call(name, a, b, np.asarray(2, dtype), results=results, config=config)
    assert_array_equal(x, 2 * plain)
    for factor in (np.ones(1, dtype), np.int32(1)):
        with pytest.raises(HloError, match="must be a scalar of the type of the others"):
            call(name, a, b, factor, results=results, config=config)


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_eig_and_schur_have_workspaces_first(dtype):
    a = matrices(dtype, 1, 4, 4)
    is_complex = np.dtype(dtype).kind == "c"
    real, wide = a.real.dtype, np.result_type(dtype, np.complex64)
    jobs = [np.int32(1), np.int32(4), np.uint8(ord("N")), np.uint8(ord("V"))]
    works = [(dtype, (4, 4)), (real, (8,))] if is_complex else [(dtype, (4, 4))] * 3
    values = [(dtype, (1, 4))] * (1 if is_complex else 2)
    results = [*works, *values, (wide, (1, 4, 4)), (wide, (1, 4, 4)), (np.int32, (1,))]
    found = call(target("geev", dtype, suffix=""), *jobs, a, results=results)[len(works) :]
    w = found[0] if is_complex else found[0] + 1j * found[1]
    close(a @ found[-2], found[-2] * w[:, None])
    assert not found[-3].any()
    jobs = [np.int32(1), np.int32(4), np.uint8(ord("V")), np.uint8(ord("N"))]
    works = [(real, (4,))] if is_complex else []
    results = [(dtype, (1, 4, 4)), *works, *values, (dtype, (1, 4, 4)), (np.int32, (1,)), (np.int32, (1,))]
    t, *_, vs, _, _ = call(target("gees", dtype, suffix=""), *jobs, a, results=results)
    close(vs @ t @ adjoint(vs), a)
    jobs[-1] = np.uint8(ord("S"))
    with pytest.raises(EvaluationError, match="sorts"):
        call(target("gees", dtype, suffix=""), *jobs, a, results=results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_householder_products_follow_pivoted_factors(dtype):
    a = matrices(dtype, 1, 6, 4)
    scalars = [np.int32(value) for value in (1, 6, 4, 9)]
    real = a.real.dtype
    results = [(dtype, a.shape), (np.int32, (1, 4)), (dtype, (1, 4)), (np.int32, (1,)), (dtype, (9,)), (real, (9,))]
    jpvt = np.zeros((1, 4), np.int32)
    qr, pivots, tau, _, *_ = call(target("geqp3", dtype, suffix=""), *scalars, a, jpvt, results=results)
    scalars = [np.int32(value) for value in (1, 6, 4, 4, 9)]
    results = [(dtype, a.shape), (np.int32, (1,)), (dtype, (9,))]
    q, *_ = call(target("orgqr/ungqr", dtype, suffix=""), *scalars, qr, tau, results=results)
    close(q @ np.triu(qr[:, :4]), a[:, :, pivots[0] - 1])
    with pytest.raises(EvaluationError, match="must come first"):
        call(
            target("geqp3", dtype),
            a,
            jpvt + 1,
            results=[(dtype, a.shape), (np.int32, (1, 4)), (dtype, (1, 4))],
            config="{}",
        )


# Bad input

A = "a = f32[3,3] parameter(0)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi"', "lacks the attribute uplo"),
        (
            '(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 88 : ui8}',
            "attribute uplo is 88",
        ),
        (
            '(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8, depth = 3 : i32}',
            "attribute depth, which hloexec does not know",
        ),
        (
            '(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config="uplo"',
            "must be a dictionary",
        ),
        (
            '(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = [76]}',
            "cannot be read",
        ),
        (
            '(f32[3,3], f32[3], f32[3,3], f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_sgesdd_ffi", backend_config={mode = 79 : ui8}',
            "attribute mode is 79",
        ),
    ],
)
def test_what_cannot_be_run_is_said_before_running(line, message):
    module = hloexec.parse(f"HloModule m\n\nENTRY e {{\n  {A}\n  ROOT r = {line}\n}}\n")
    with pytest.raises(UnsupportedError, match=message):
        hloexec.run(module, np.eye(3, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "operands", "results", "message"),
    [
        ("lapack_sgetrf_ffi", [np.zeros((3, 2), np.float64)], [], "results"),
        (
            "lapack_sgetrf_ffi",
            [np.zeros((3, 2))],
            [(np.float32, (3, 2)), (np.int32, (2,)), (np.int32, ())],
            "element type f32",
        ),
        ("lapack_sgetrf_ffi", [], [(np.float32, (3, 2))] * 3, "must have 1 operands"),
        (
            "lapack_sgetrf_ffi",
            [np.zeros(3, np.float32)],
            [(np.float32, (3,)), (np.int32, (2,)), (np.int32, ())],
            "2 dimensions",
        ),
        (
            "lapack_sgetrf_ffi",
            [np.zeros((3, 2), np.float32)],
            [(np.float32, (3, 2)), (np.int32, (3,)), (np.int32, ())],
            r"ipiv .* must have dimensions \[2\]",
        ),
        (
            "lapack_spotrf_ffi",
            [np.zeros((3, 2), np.float32)],
            [(np.float32, (3, 2)), (np.int32, ())],
            r"dimensions \[3,3\]",
        ),
        (
            "lapack_spotrf",
            [np.zeros(2, np.int32)] * 3 + [np.zeros((3, 3), np.float32)],
            [(np.float32, (3, 3)), (np.int32, ())],
            "must be a scalar",
        ),
    ],
)
def test_operands_and_results_that_do_not_fit_are_refused(name, operands, results, message):
    with pytest.raises(ShapeError, match=message):
        call(name, *operands, results=results)


def test_sizes_that_only_the_scalars_give_away_are_errors_in_words():
    eye, scalars = np.eye(3, dtype=np.float32), [np.int32(n) for n in (3, 0, 3, 3, 1, 9)]
    results = [(np.float32, (3, 3)), (np.float32, (2,)), (np.int32, ()), (np.float32, (9,))]
    with pytest.raises(EvaluationError, match="rows 0 to 3 of 3"):
        call("lapack_sgehrd", *scalars, eye, results=results)
    with pytest.raises(EvaluationError, match="are declared"):
        call(
            "lapack_sgesdd_ffi",
            np.zeros((4, 3), np.float32),
            results=[
                (np.float32, (4, 3)),
                (np.float32, (3,)),
                (np.float32, (4, 3)),
                (np.float32, (3, 3)),
                (np.int32, ()),
            ],
            config="{mode = 65 : ui8}",
        )
    with pytest.raises(HloError, match="on side"):
        call(
            "lapack_strsm_ffi",
            eye,
            np.zeros((2, 2), np.float32),
            results=[(np.float32, (2, 2))],
            config="{diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8}",
        )


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("hloexec.ops.library_calls.linalg.solver_calls.find_spec", lambda name: None)
    line = '(f32[3,3], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}'
    module = hloexec.parse(f"HloModule m\n\nENTRY e {{\n  {A}\n  ROOT r = {line}\n}}\n")
    with pytest.raises(UnsupportedError, match=r"hloexec\[linalg\]"):
        hloexec.run(module, np.eye(3, dtype=np.float32))
