"""Sparse products against XLA:CPU, and that nothing that jaxlib brings for CPUs is missing."""

import functools
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from conformance.xla import COMPILED_SOONEST
from hloexec.errors import EvaluationError, ShapeError
from hloexec.ops.library_calls.linalg.sparse import CsrTimesDense
from hloexec.ops.registry import CUSTOM_CALLS
from tests.library_calls.calls import by_jax

jax = pytest.importorskip("jax")


def test_every_cpu_target_of_jaxlib_has_an_entry():
    from jaxlib import cpu_sparse, lapack

    targets = {name for module in (lapack, cpu_sparse) for name, *_ in module.registrations()["cpu"]}
    assert targets
    assert targets <= CUSTOM_CALLS.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
@pytest.mark.parametrize("columns", [None, 3])
def test_products_are_xlas(dtype, columns):
    """Sums of at most 9 products of whole numbers are exact."""
    from jax.experimental import sparse

    generator = np.random.default_rng(0)
    dense = generator.integers(-3, 4, (7, 9)) * (generator.random((7, 9)) < 0.4)
    dense[2] = 0
    matrix: Any = by_jax(functools.partial(sparse.BCSR.fromdense, nse=40), dense.astype(dtype))
    rhs = generator.integers(-3, 4, (9,) if columns is None else (9, columns)).astype(dtype)
    lowered = jax.jit(lambda matrix, rhs: matrix @ rhs).lower(matrix, rhs)
    module = hloexec.from_jax(lowered)
    assert "cpu_csr_sparse_dense_ffi" in hloexec.format(module)
    found = hloexec.run(module, *(np.asarray(leaf) for leaf in jax.tree.leaves((matrix, rhs))))
    assert_array_equal(found, np.asarray(lowered.compile({**COMPILED_SOONEST})(matrix, rhs)))
    assert_array_equal(found, dense.astype(dtype) @ rhs)


DATA, INNER, RHS = np.ones(3, np.float32), np.arange(3, dtype=np.int32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("outer", "inner", "rhs", "error"),
    [
        ([0, 4], INNER, RHS, EvaluationError),
        ([1, 3], INNER, RHS, EvaluationError),
        ([0, 2, 1], INNER, RHS, EvaluationError),
        ([0, 3], INNER + 1, RHS, EvaluationError),
        ([0, 3], INNER - 1, RHS, EvaluationError),
        ([], INNER, RHS, ShapeError),
        ([0, 3], INNER[:2], RHS, ShapeError),
        ([0, 3], INNER, RHS.astype(np.float64), ShapeError),
        ([0, 3], INNER, RHS[0], ShapeError),
        ([0, 3], INNER.astype(np.float32), RHS, ShapeError),
    ],
)
def test_matrices_that_are_none_are_refused(outer, inner, rhs, error):
    with pytest.raises(error):
        CsrTimesDense.evaluate(DATA, np.asarray(outer, np.int32), inner, np.asarray(rhs))
