"""What decompositions have to give back: results that are not unique are compared by what they stand for.

Each check takes the inputs and the outputs of a program, as f64, and gives residuals: ‖what should vanish‖ relative to
the matrix. Backward stable algorithms leave c·n·u of them in the Frobenius norm, with a small constant c (Higham,
Accuracy and Stability of Numerical Algorithms, theorems 10.3, 19.4, 9.3, 8.5; Golub and Van Loan, sections 8.3, 8.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray[Any, Any]]

_CONSTANT = 8.0
UNIQUE = {"eigh": (0,), "svd": (1,)}
"""Which outputs are unique all the same: eigenvalues and singular values, within the same bound (Weyl's theorem)."""


def allowed(inputs: Arrays) -> float:
    """The relative residual that f32 may leave: c·n·u."""
    return _CONSTANT * max(inputs[0].shape) * 2.0**-24


def _relative(difference: Any, *sizes: Any) -> float:
    return float(np.linalg.norm(difference) / np.prod([np.linalg.norm(size) for size in sizes]))


def _orthogonal(columns: Any) -> float:
    identity = np.eye(columns.shape[1])
    return _relative(columns.T @ columns - identity, identity)


def _cholesky(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a,), (factor,) = inputs, outputs
    return [_relative(factor @ factor.T - a, a), _relative(np.triu(factor, 1), a)]


def _qr(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a,), (q, r) = inputs, outputs
    return [_relative(q @ r - a, a), _orthogonal(q), _relative(np.tril(r, -1), a)]


def _eigh(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a,), (values, vectors) = inputs, outputs
    ordered = np.inf if np.any(np.diff(values) < 0) else 0.0
    return [_relative(a @ vectors - vectors * values, a), _orthogonal(vectors), ordered]


def _svd(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a,), (left, values, right) = inputs, outputs
    ordered = np.inf if np.any(np.diff(values) > 0) or np.any(values < 0) else 0.0
    return [_relative((left * values) @ right - a, a), _orthogonal(left), _orthogonal(right.T), ordered]


def _lu(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a,), (factors, permutation) = inputs, outputs
    lower, upper = np.tril(factors, -1) + np.eye(len(a)), np.triu(factors)
    pivoted = np.inf if np.any(np.abs(lower) > 1 + 2.0**-20) else 0.0
    return [_relative(lower @ upper - a[permutation.astype(int)], lower, upper), pivoted]


def _triangular_solve(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a, b), (x,) = inputs, outputs
    return [_relative(np.tril(a) @ x - b, np.tril(a), x)]


def _solve(inputs: Arrays, outputs: Arrays) -> list[float]:
    (a, b), (x,) = inputs, outputs
    return [_relative(a @ x - b, a, x)]


RECONSTRUCTIONS: dict[str, Callable[[Arrays, Arrays], list[float]]] = {
    "cholesky": _cholesky,
    "eigh": _eigh,
    "lu": _lu,
    "qr": _qr,
    "solve": _solve,
    "svd": _svd,
    "triangular_solve": _triangular_solve,
}
