"""jax.numpy.linalg and jax.scipy.linalg.

Factors are unique up to signs, phases and order only, so decompositions are compared by what they are for: their product
is the matrix again, and the factors that should be orthogonal are. Eigenvalues and singular values are compared, sorted.
"""

from typing import Any

import numpy as np
import pytest

from tests.jax_functions.cases import LONG, Case, complex_normal, normal, positive, row

jax: Any = pytest.importorskip("jax")
pytest.importorskip("jax.scipy.stats")
jnp = jax.numpy
linalg, scipy = jnp.linalg, jax.scipy.linalg


def _positive_definite(x: Any) -> Any:
    return x @ jnp.conj(x).swapaxes(-1, -2) + 2 * jnp.eye(x.shape[-1], dtype=x.dtype)


def _symmetric(x: Any) -> Any:
    return (x + jnp.conj(x).swapaxes(-1, -2)) / 2


def _dominant(x: Any) -> Any:
    """Far from singular."""
    return x + 4 * jnp.eye(x.shape[-1], dtype=x.dtype)


def _transposed(x: Any) -> Any:
    return np.conj(np.swapaxes(x, -1, -2))


def _gram(x: Any) -> Any:
    """The identity where the columns are orthonormal; one more, so that errors of zeros are measured against one."""
    return _transposed(x) @ x + 1


def _of_eigh(results: list[Any], _: Any) -> Any:
    values, vectors = results
    return values, (vectors * values[..., None, :]) @ _transposed(vectors), _gram(vectors)


def _of_svd(results: list[Any], _: Any) -> Any:
    u, values, v = results
    return values, (u * values[..., None, :]) @ v, _gram(u), _gram(_transposed(v))


def _of_product(results: list[Any], _: Any) -> Any:
    """For factors of which the first should be orthogonal, and whose product is the matrix."""
    return results[0] @ results[1], _gram(results[0])


def _of_similarity(results: list[Any], _: Any) -> Any:
    """`middle, basis` with a = basis @ middle @ basis^H."""
    middle, basis = results
    return basis @ middle @ _transposed(basis), _gram(basis)


def _of_eig(results: list[Any], arguments: list[Any]) -> Any:
    values, vectors = results
    residual = arguments[0].astype(vectors.dtype) @ vectors - vectors * values[..., None, :]
    # Against the size of what cancels in it.
    return _sorted(values), np.linalg.norm(vectors, axis=-2), residual + np.abs(values).max()


def _sorted(values: Any) -> Any:
    return np.sort_complex(np.round(values.astype(np.complex128), 12)).astype(values.dtype)


def _calling(name: str, function: Any, *arguments: Any, **options: Any) -> Case:
    """A row whose module calls LAPACK or BLAS: in f32 only; some n roundings in each of n steps, most of which cancel."""
    settings = {"types": ("f32",), "roundings": LONG} | options
    return row(name, function, *arguments, **settings)


CASES = [
    _calling("linalg.cholesky", lambda x: linalg.cholesky(_positive_definite(x)), normal(2, 5, 5), gradient=True),
    _calling("linalg.cholesky_complex", lambda z: linalg.cholesky(_positive_definite(z)), complex_normal(4, 4)),
    _calling("linalg.solve", lambda a, b: linalg.solve(_dominant(a), b), normal(5, 5), normal(5, 3), gradient=True),
    _calling("linalg.solve_batched", lambda a, b: linalg.solve(_dominant(a), b), normal(2, 4, 4), normal(2, 4, 1)),
    _calling("linalg.inv", lambda a: linalg.inv(_dominant(a)), normal(5, 5), gradient=True),
    _calling("linalg.inv_complex", lambda a: linalg.inv(_dominant(a)), complex_normal(4, 4)),
    _calling("linalg.det", lambda a: linalg.det(a), normal(5, 5), gradient=True),
    _calling("linalg.slogdet", lambda a: linalg.slogdet(a), normal(5, 5), gradient=True),
    _calling("linalg.qr", linalg.qr, normal(6, 4), invariants=_of_product),
    _calling("linalg.qr_complete", lambda a: linalg.qr(a, mode="complete"), normal(5, 3), invariants=_of_product),
    _calling("linalg.qr_complex", linalg.qr, complex_normal(4, 4), invariants=_of_product),
    _calling("linalg.qr_batched", linalg.qr, normal(3, 4, 4), invariants=_of_product),
    _calling("linalg.svd", lambda a: linalg.svd(a, full_matrices=False), normal(6, 4), invariants=_of_svd),
    _calling("linalg.svd_wide", lambda a: linalg.svd(a, full_matrices=False), normal(3, 5), invariants=_of_svd),
    _calling("linalg.svd_complex", lambda a: linalg.svd(a, full_matrices=False), complex_normal(4, 4), invariants=_of_svd),
    _calling("linalg.svdvals", linalg.svdvals, normal(5, 4), gradient=True),
    _calling("linalg.eigh", lambda a: linalg.eigh(_symmetric(a)), normal(5, 5), invariants=_of_eigh),
    _calling("linalg.eigh_batched", lambda a: linalg.eigh(_symmetric(a)), normal(2, 4, 4), invariants=_of_eigh),
    _calling("linalg.eigh_complex", lambda a: linalg.eigh(_symmetric(a)), complex_normal(4, 4), invariants=_of_eigh),
    _calling("linalg.eigvalsh", lambda a: linalg.eigvalsh(_symmetric(a)), normal(5, 5), gradient=True),
    _calling("linalg.eig", linalg.eig, normal(4, 4), invariants=_of_eig),
    _calling("linalg.eigvals", linalg.eigvals, normal(4, 4), invariants=lambda results, _: _sorted(results[0])),
    _calling("linalg.lstsq", lambda a, b: linalg.lstsq(a, b)[0], normal(7, 3), normal(7, 2)),
    _calling("linalg.pinv", linalg.pinv, normal(5, 3)),
    _calling("linalg.matrix_rank", linalg.matrix_rank, normal(5, 3)),
    _calling("linalg.cond", lambda a: linalg.cond(_dominant(a)), normal(4, 4)),
    _calling("linalg.norm_spectral", lambda a: (linalg.norm(a, 2), linalg.norm(a, "nuc")), normal(4, 5), gradient=True),
    row("linalg.norm", lambda a: (linalg.norm(a), linalg.norm(a, 1), linalg.norm(a, axis=1), linalg.norm(a[0], 3)), normal(4, 5), gradient=True, roundings=LONG),
    row("linalg.matrix_power", lambda a: linalg.matrix_power(a, 5), normal(3, 3), gradient=True, roundings=LONG),
    row("linalg.multi_dot", lambda a, b, c: linalg.multi_dot([a, b, c]), normal(2, 5), normal(5, 3), normal(3, 4), gradient=True),
    _calling("scipy.lu", lambda a: scipy.lu(a), normal(5, 5), invariants=lambda r, _: (r[0] @ r[1] @ r[2], _gram(r[0]))),
    _calling("scipy.lu_solve", lambda a, b: scipy.lu_solve(scipy.lu_factor(_dominant(a)), b), normal(5, 5), normal(5), gradient=True),
    _calling("scipy.cho_solve", lambda a, b: scipy.cho_solve(scipy.cho_factor(_positive_definite(a)), b), normal(4, 4), normal(4, 2), gradient=True),
    _calling("scipy.solve_triangular", lambda a, b: (scipy.solve_triangular(_dominant(a), b, lower=True), scipy.solve_triangular(_dominant(a), b, trans=1)), normal(5, 5), normal(5, 2), gradient=True),
    _calling("scipy.solve_triangular_complex", lambda a, b: scipy.solve_triangular(_dominant(a), b, trans=2, unit_diagonal=True), complex_normal(4, 4), complex_normal(4, 2)),
    _calling("scipy.expm", lambda a: scipy.expm(a / 4), normal(4, 4), gradient=True),
    _calling("scipy.sqrtm", lambda a: scipy.sqrtm(_positive_definite(a)), normal(3, 3)),
    _calling("scipy.schur", lambda a: scipy.schur(a), normal(4, 4), invariants=_of_similarity),
    _calling("scipy.hessenberg", lambda a: scipy.hessenberg(a, calc_q=True), normal(5, 5), invariants=_of_similarity),
    _calling("scipy.polar", lambda a: scipy.polar(_dominant(a), method="svd"), normal(4, 4)),
    row("scipy.block_diag", lambda a, b: scipy.block_diag(a, b), normal(2, 3), normal(1, 2), gradient=True),
    row("scipy.toeplitz", lambda a, b: (scipy.toeplitz(a, b), scipy.hilbert(3)), normal(4), normal(3), gradient=True),
    _calling("scipy.eigh_tridiagonal", lambda d, e: scipy.eigh_tridiagonal(d, e, eigvals_only=True), normal(5), normal(4)),
    _calling("lax.tridiagonal_solve", lambda a, b: jax.lax.linalg.tridiagonal_solve(a[0], a[1] + 8, a[2], b), normal(3, 6), normal(6, 2)),
    row("lax.householder_product", lambda a, t: jax.lax.linalg.householder_product(a, t), normal(5, 3), positive(3), types=("f32",), roundings=LONG),
    _calling("stats.multivariate_normal", lambda x, a: jax.scipy.stats.multivariate_normal.logpdf(x, jnp.zeros(3, x.dtype), _positive_definite(a)), normal(6, 3), normal(3, 3), gradient=True),
    _calling("stats.gaussian_kde", lambda x, p: jax.scipy.stats.gaussian_kde(x).evaluate(p), normal(9), normal(4)),
    _calling("jnp.polyfit", lambda x, y: jnp.polyfit(x, y, 2), normal(9), normal(9)),
    _calling("jnp.roots", lambda p: jnp.roots(p, strip_zeros=False), normal(5), invariants=lambda results, _: _sorted(results[0])),
]  # fmt: skip
