"""Matrices for solvers and decompositions, and how near to exact what they give must be."""

from typing import Any

import numpy as np

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def matrices(dtype: Any, *shape: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.normal(size=shape)
    return values.astype(dtype)


def adjoint(a: Any) -> Any:
    return np.swapaxes(a, -1, -2).conj()


def hermitian(dtype: Any, *shape: int) -> Any:
    a = matrices(dtype, *shape)
    return a + adjoint(a)


def definite(dtype: Any, *shape: int) -> Any:
    a = matrices(dtype, *shape)
    return a @ adjoint(a) + np.eye(shape[-1], dtype=dtype)


def close(actual: Any, expected: Any, *, size: int = 12, unit: float | None = None) -> None:
    """Within 20 n² u, n being `size` or a larger side, relative to the largest element or 1.

    Errors of backward stable algorithms are a small multiple of n·u·|a|; 20 n² u covers the constants of all (LAPACK
    Users' Guide, chapter 4).
    """
    unit = unit or np.finfo(np.asarray(actual).dtype).eps / 2
    assert np.abs(actual - expected).max() <= 20 * size**2 * unit * max(np.abs(expected).max(), 1)
