"""LAPACK's factorizations, and the linear systems that they solve, as XLA:CPU calls them.

Values are those of LAPACK (through SciPy), element by element; what it leaves unspecified or overwrites is zero here.
`info` is LAPACK's: 0 on success. Source: LAPACK Users' Guide, 3rd edition; jaxlib, jaxlib/lapack.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.linalg.lapack_calls import Older, routine
from hloexec.ops.library_calls.linalg.matrix_routines import Call

Results = Mapping[str, Any]


def uplo_of_scalars(scalars: Mapping[str, object]) -> Mapping[str, object]:
    return {"uplo": "L" if scalars["lower"] else "U"}


@routine("getrf", "a[m,n]", "a[m,n] ipiv[r]:s32 info[]:s32", older=Older("batch m n"))
def getrf(call: Call, a: Array) -> Results:
    """a = P L U with partial pivoting: L (unit diagonal, not stored) and U in one matrix, and the pivots from 1.

    Row i was swapped with row ipiv[i], one i after the other.
    """
    factors, pivots, info = call.lapack(a)
    return {"a": factors, "ipiv": pivots + 1, "info": info}


@routine("geqrf", "a[m,n]", "a[m,n] tau[r]", older=Older("batch m n lwork", results="a tau info"))
def geqrf(call: Call, a: Array) -> Results:
    """a = Q R: R in the upper triangle, below it the vectors v of Householder's reflectors I − tau v vᴴ, v[i] = 1."""
    factors, tau, _, info = call.lapack(a, lwork=call.workspace(*a.shape))
    return {"a": factors, "tau": tau, "info": info}


@routine(
    "geqp3",
    "a[m,n] jpvt[n]:s32",
    "a[m,n] jpvt[n]:s32 tau[r]",
    older=Older("batch m n lwork", results="a jpvt tau info"),
)
def geqp3(call: Call, a: Array, fixed: Array) -> Results:
    """a P = Q R with column pivoting, stored as geqrf does; column jpvt[j] of a, from 1, became column j.

    The jpvt operand marks columns that must come first, which is not supported.
    """
    if fixed.any():
        raise EvaluationError("geqp3 with columns that must come first (jpvt other than zero) is not supported")
    factors, pivots, tau, _, info = call.lapack(a, lwork=call.workspace(a))
    return {"a": factors, "jpvt": pivots, "tau": tau, "info": info}


@routine(
    {"real": "orgqr", "complex": "ungqr"}, "a[m,n] tau[k]", "a[m,n]", older=Older("batch m n k lwork", results="a info")
)
def orgqr(call: Call, a: Array, tau: Array) -> Results:
    """The first n columns of the product of the reflectors that geqrf stored, H(1) H(2) … H(k)."""
    if not len(tau):
        return {"a": np.eye(*a.shape), "info": 0}
    product, _, info = call.lapack(a, tau, lwork=call.workspace(a, tau))
    return {"a": product, "info": info}


@routine(
    {"real": "ormqr", "complex": "unmqr"},
    "a[p,q] tau[k] c[m,n]",
    "c[m,n]",
    options={"left": (True, False), "transpose": (True, False)},
)
def ormqr(call: Call, a: Array, tau: Array, c: Array) -> Results:
    """Q c, or c Q where not `left`, with Q or (`transpose`) Qᴴ of the reflectors that geqrf stored."""
    adjoint = "C" if np.iscomplexobj(a) else "T"
    side, trans = "L" if call.options["left"] else "R", adjoint if call.options["transpose"] else "N"
    if not len(tau):
        return {"c": c}
    size = int(call.lapack(side, trans, a, tau, c, -1)[1][0].real)
    product, _, _ = call.lapack(side, trans, a, tau, c, size)
    return {"c": product}


@routine(
    "potrf",
    "a[n,n]",
    "a[n,n] info[]:s32",
    options={"uplo": "LU"},
    older=Older("lower batch n", uplo_of_scalars),
)
def potrf(call: Call, a: Array) -> Results:
    """a = L Lᴴ (uplo L) or Uᴴ U (U); the other triangle stays as it was. info > 0: a is not positive definite."""
    factor, info = call.lapack(a, lower=call.options["uplo"] == "L", clean=0)
    return {"a": factor, "info": info}


def _trsm_options(scalars: Mapping[str, Any]) -> Mapping[str, object]:
    return {
        "side": "L" if scalars["left_side"] else "R",
        "uplo": "L" if scalars["lower"] else "U",
        "trans_x": "NTC"[scalars["trans_a"] % 3],
        "diag": "U" if scalars["diag"] else "N",
        "alpha": scalars["alpha"],
    }


@routine(
    "trsm",
    "a[k,k] b[m,n]",
    "b[m,n]",
    options={"side": "LR", "uplo": "LU", "trans_x": "NTC", "diag": "NU"},
    older=Older("left_side lower trans_a diag m n batch alpha", _trsm_options, library="blas"),
    last="alpha",
)
def trsm(call: Call, a: Array, b: Array) -> Results:
    """x with op(a) x = alpha b (side L) or x op(a) = alpha b (R); op is nothing, transposition or adjunction (N, T, C).

    a is a triangle (uplo L or U), with ones on the diagonal where diag is U.
    """
    options = call.options
    if b.shape[0 if options["side"] == "L" else 1] != len(a):
        raise EvaluationError(f"trsm cannot apply a matrix of {a.shape} on side {options['side']} of one of {b.shape}")
    x = call.lapack(
        options.get("alpha", 1),
        a,
        b,
        side=options["side"] == "R",
        lower=options["uplo"] == "L",
        trans_a="NTC".index(options["trans_x"]),
        diag=options["diag"] == "U",
    )
    return {"b": x}


@routine("gtsv", "dl[n] d[n] du[n] b[n,k]", "dl[n] d[n] du[n] b[n,k] info[]:s32")
def gtsv(call: Call, dl: Array, d: Array, du: Array, b: Array) -> Results:
    """x of the tridiagonal systems with diagonals dl (its first element unused), d and du (its last unused).

    The diagonals come back as those of the factor U.
    """
    if len(d) == 1:
        with np.errstate(all="ignore"):
            return {"dl": dl, "d": d, "du": du, "b": b / d[0], "info": int(d[0] == 0)}
    second, diagonal, first, x, info = call.lapack(dl[1:], d, du[:-1], b)
    dl, du = np.concatenate([dl[:1], second]), np.concatenate([first, du[-1:]])
    return {"dl": dl, "d": diagonal, "du": du, "b": x, "info": info}
