"""LAPACK's routines for many small matrices at once, where calling LAPACK for each would take longer.

Each function takes the options and stacks of matrices, and returns the results by name as the routine of the same name
does for one matrix, or None where one of the matrices is not to be had this way. Values are LAPACK's but for rounding.
Those that compute step by step have the matrices' rows and columns first and the matrices last, so that each step is a
few operations on long rows.
Source: LAPACK Users' Guide, 3rd edition, whose names these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.linalg.triangular import TriangularSolve, TriangularSolveAttributes

Options = Mapping[str, Any]
Results = Mapping[str, Any]


def _getrf(options: Options, a: Array) -> Results | None:
    """None where a matrix is singular or not finite: then comparisons are LAPACK's own."""
    factors = np.array(a.transpose(1, 2, 0), order="C")
    steps = min(factors.shape[:2])
    pivots = np.empty((len(a), steps), np.int32)
    with np.errstate(all="ignore"):
        for step in range(steps):
            column = factors[step:, step]
            # LAPACK measures complex numbers so.
            size = abs(column.real) + abs(column.imag) if np.iscomplexobj(a) else abs(column)
            chosen = size.argmax(0)[None, None] + step
            pivots[:, step] = chosen[0, 0] + 1
            top = np.take_along_axis(factors, chosen, 0)
            np.put_along_axis(factors, chosen, factors[step : step + 1], 0)
            factors[step] = top
            if not factors[step, step].all():
                return None
            column[1:] /= column[0]
            factors[step + 1 :, step + 1 :] -= column[1:, None] * factors[step, step + 1 :]
    return {"a": factors.transpose(2, 0, 1), "ipiv": pivots} if np.isfinite(factors).all() else None


def _geqrf(options: Options, a: Array) -> Results | None:
    reflectors, tau = np.linalg.qr(a, mode="raw")
    return {"a": reflectors.swapaxes(-1, -2), "tau": tau}


def _orgqr(options: Options, a: Array, tau: Array) -> Results | None:
    vectors = np.ascontiguousarray(a.transpose(1, 2, 0))
    product = np.zeros_like(vectors)
    diagonal = np.arange(min(vectors.shape[:2]))
    product[diagonal, diagonal] = 1
    with np.errstate(all="ignore"):
        for step in reversed(range(tau.shape[1])):
            vector = vectors[step:, step].copy()
            vector[0] = 1
            below = product[step:, step:]
            below -= (tau[:, step] * vector)[:, None] * (vector.conj()[:, None] * below).sum(0)
    return {"a": product.transpose(2, 0, 1)}


def _potrf(options: Options, a: Array) -> Results | None:
    """None where one of the matrices is not positive definite."""
    is_lower = options["uplo"] == "L"
    try:
        with np.errstate(all="ignore"):
            factors = np.linalg.cholesky(a if is_lower else a.swapaxes(-1, -2).conj())
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(factors).all():
        return None
    places = np.tri(a.shape[-1], dtype=bool)
    return {"a": np.where(places, factors, a) if is_lower else np.where(places.T, factors.swapaxes(-1, -2).conj(), a)}


def _trsm(options: Options, a: Array, b: Array) -> Results | None:
    """None where the matrices do not fit each other."""
    is_left = options["side"] == "L"
    if b.shape[1 if is_left else 2] != a.shape[1]:
        return None
    attributes = TriangularSolveAttributes(
        left_side=is_left,
        lower=options["uplo"] == "L",
        unit_diagonal=options["diag"] == "U",
        transpose_a={"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[options["trans_x"]],
    )
    scaled = b if "alpha" not in options else (options["alpha"] * b).astype(b.dtype)
    return {"b": TriangularSolve.evaluate(a, scaled, attributes=attributes)}


STACKS: Mapping[str, Callable[..., Results | None]] = {
    "geqrf": _geqrf,
    "getrf": _getrf,
    "orgqr": _orgqr,
    "potrf": _potrf,
    "trsm": _trsm,
    "ungqr": _orgqr,
}
"""By LAPACK's name, without the letter of the element type."""
