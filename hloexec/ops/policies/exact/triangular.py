"""Triangular factors and systems in f64, an elementary operation at a time: no sum whose order anything but the size of
a matrix decides.

Complex numbers are handled in parts, since NumPy's product of complex numbers is rounded differently from processor to
processor. With γ(n) = n·2⁻⁵³ / (1 − n·2⁻⁵³), factors satisfy |l lᴴ − a| ≤ γ(n + 1) |l| |lᴴ|, solutions (l + δ) x = b
with |δ| ≤ γ(n) |l|, element by element; for complex numbers 4 γ. Source: N. J. Higham, "Accuracy and Stability of
Numerical Algorithms", theorems 10.3 and 8.5, lemma 3.5.
"""

from __future__ import annotations

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.complex_parts import from_parts


def lower_factors(matrices: Array) -> Array:
    """Lower factors of `[batch, n, n]`, of which the lower triangles are read; NaN where a pivot is not positive."""
    rest = _planes(matrices)
    size = rest.shape[-1]
    factors = np.zeros_like(rest)
    is_definite = np.ones(rest.shape[1], np.bool_)
    with np.errstate(all="ignore"):
        for k in range(size):
            pivot = rest[0, :, 0, 0]
            is_definite &= (pivot > 0) & np.isfinite(pivot)
            root = np.sqrt(pivot)
            column = rest[:, :, 1:, 0] / root[:, None]
            factors[0, :, k, k] = root
            factors[:, :, k + 1 :, k] = column
            rest = rest[:, :, 1:, 1:]
            _subtract_products(rest, column[:, :, :, None], _conjugate(column)[:, :, None, :])
    factors[:, ~is_definite] = np.nan
    return _numbers(factors)


def solution(lower: Array, right: Array, unit_diagonal: bool) -> Array:
    """x of lower · x = right, `[..., n, n]` and `[..., n, m]`, by substitution forwards."""
    matrix, rest = _planes(lower), _planes(right)
    with np.errstate(all="ignore"):
        for k in range(matrix.shape[-1]):
            row = rest[..., k, :]
            if not unit_diagonal:
                row[...] = _quotient(row, matrix[..., k, k, None])
            _subtract_products(rest[..., k + 1 :, :], matrix[..., k + 1 :, k, None], row[..., None, :])
    return _numbers(rest)


def _planes(numbers: Array) -> Array:
    """The real and, of complex numbers, the imaginary part along a new first axis, in f64."""
    parts = [numbers.real, numbers.imag] if numbers.dtype.kind == "c" else [numbers]
    return np.stack(parts).astype(np.float64)


def _numbers(planes: Array) -> Array:
    return np.asarray(planes[0]) if len(planes) == 1 else from_parts(*planes)


def _conjugate(planes: Array) -> Array:
    return np.stack([planes[0], *(-plane for plane in planes[1:])])


def _subtract_products(target: Array, left: Array, right: Array) -> None:
    target[0] -= left[0] * right[0]
    if len(target) == 2:
        target[0] += left[1] * right[1]
        target[1] -= left[0] * right[1]
        target[1] -= left[1] * right[0]


def _quotient(planes: Array, divisor: Array) -> Array:
    if len(planes) == 1:
        return np.asarray(planes / divisor)
    # Its tables take a while to compute, so that they wait until someone asks.
    from hloexec.ops.policies.exact.complex_functions import divide

    return np.stack(divide(*planes, *np.broadcast_to(divisor, planes.shape)))
