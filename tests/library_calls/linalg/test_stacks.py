"""LAPACK's routines on many small matrices at once: what the factors must multiply to, and LAPACK's own choices.

Bounds are those of N. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, with γₙ taken as 2 n u (4 n u
for complex numbers, whose products round more often).
"""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.ops.library_calls.linalg import solver_calls
from hloexec.ops.library_calls.linalg.solver_calls import STACKS
from tests.library_calls.linalg.test_lapack import CALLS, DTYPES, adjoint, call, matrices, run_both, target

COUNT = 60
SIZES = ((1, 1), (3, 3), (5, 3), (3, 5), (9, 9))


@pytest.fixture
def used(monkeypatch):
    """The names of the routines that have computed stacks."""
    names: list[str] = []

    def watched(name: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            names.append(name)
            return function(*arguments)

        return run

    stacks = {name: watched(name, function) for name, function in STACKS.items()}
    monkeypatch.setattr(solver_calls, "STACKS", stacks)
    return names


def _gamma(dtype: Any, terms: int) -> float:
    return float((4 if np.dtype(dtype).kind == "c" else 2) * terms * np.finfo(dtype).eps / 2)


def _in_double(array: Any) -> Any:
    return np.asarray(array, np.complex128 if np.iscomplexobj(array) else np.float64)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_factors_multiply_to_the_permuted_matrix(dtype, sizes, used):
    """|L U − P A| ≤ γₙ |L| |U| for each element (theorem 9.3), and the pivots are those that XLA finds."""
    (lu, pivots, permutation), (_, expected, _) = run_both(CALLS["lu"][0], matrices(dtype, COUNT, *sizes))
    assert used == ["getrf"]
    assert_array_equal(pivots, expected)
    steps = min(sizes)
    lower = _in_double(np.tril(lu, -1)[..., :steps] + np.eye(sizes[0], steps))
    upper = _in_double(np.triu(lu)[..., :steps, :])
    permuted = np.take_along_axis(_in_double(matrices(dtype, COUNT, *sizes)), permutation[..., None], 1)
    bound = _gamma(dtype, steps) * (np.abs(lower) @ np.abs(upper))
    assert (np.abs(lower @ upper - permuted) <= bound).all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_factors_multiply_to_the_matrix(dtype, sizes, used):
    """‖Q R − A‖ ≤ √n γ ‖A‖ for each column, and Q is unitary to as much (theorem 19.4, with c = 4 in γ = γ(c m n))."""
    a = matrices(dtype, COUNT, *sizes)
    (q, r), (_, expected) = run_both(CALLS["qr"][0], a)
    assert used == ["geqrf", "ungqr" if np.dtype(dtype).kind == "c" else "orgqr"]
    q, r, steps = _in_double(q), _in_double(r), min(sizes)
    bound = np.sqrt(steps) * _gamma(dtype, 4 * sizes[0] * steps)
    errors = np.linalg.norm(q @ r - _in_double(a), axis=1)
    assert (errors <= bound * np.linalg.norm(_in_double(a), axis=1)).all()
    assert (np.linalg.norm(adjoint(q) @ q - np.eye(steps), axis=1) <= bound).all()
    signs = np.sign(np.diagonal(r.real, axis1=1, axis2=2)), np.sign(np.diagonal(expected.real, axis1=1, axis2=2))
    assert_array_equal(*signs)


@pytest.mark.parametrize("spoilt", [0, np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_where_a_matrix_is_singular_or_not_finite_all_are_lapacks(dtype, spoilt, used):
    a = matrices(dtype, COUNT, 4, 4)
    a[7] *= spoilt
    name = target("getrf", dtype)
    kinds = [(dtype, (4, 4)), (np.int32, (4,)), (np.int32, ())]
    with np.errstate(all="ignore"):
        found = call(name, a, results=[(kind, (COUNT, *shape)) for kind, shape in kinds])
        assert used == ["getrf"] * len(used)
        for number in range(COUNT):
            for ours, alone in zip(found, call(name, a[number], results=kinds), strict=True):
                assert_array_equal(ours[number], alone)
    if spoilt == 0:
        assert found[2][7] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_reflectors_of_fewer_columns_give_the_first_of_the_product(dtype):
    """orgqr with fewer reflectors than columns: H(1) H(2) I, by its definition in double precision."""
    a, tau = matrices(dtype, COUNT, 5, 4), matrices(dtype, COUNT, 2, seed=1)
    (found,) = call(target("orgqr/ungqr", dtype), a, tau, results=[(dtype, a.shape)])
    product = np.broadcast_to(np.eye(5, 4), a.shape).astype(_in_double(a).dtype)
    size = np.abs(product)
    for step in (1, 0):
        vector = np.zeros((COUNT, 5), product.dtype)
        vector[:, step + 1 :], vector[:, step] = a[:, step + 1 :, step], 1
        reflector = np.einsum("b,bi,bj->bij", _in_double(tau)[:, step], vector, vector.conj())
        product = product - reflector @ product
        size = size + np.abs(reflector) @ size
    # Sums of up to five terms, a product before and one behind, and a subtraction, for each of the reflectors.
    assert (np.abs(found - product) <= _gamma(dtype, 2 * (5 + 3)) * size).all()
