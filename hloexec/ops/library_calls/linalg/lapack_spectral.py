"""LAPACK's singular values, eigenvalues, and the reductions that precede them, as XLA:CPU calls them.

Vectors are unique only up to signs (phases, and bases of equal eigenvalues), which matters when results are compared.
Source: LAPACK Users' Guide, 3rd edition; jaxlib, jaxlib/lapack.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.ffi import AttributeValue
from hloexec.ops.library_calls.linalg.lapack import Results, uplo_of_scalars
from hloexec.ops.library_calls.linalg.lapack_calls import Older, routine
from hloexec.ops.library_calls.linalg.matrix_routines import Call

_NOT_FINITE = -4
"""jaxlib's `info` where a matrix holds an infinity or a NaN, on which LAPACK's iterations might never end."""


def _svd(call: Call, a: Array) -> Results:
    wants_vectors, is_full = call.options["mode"] != "N", call.options["mode"] == "A"
    size = call.workspace(*a.shape, compute_uv=wants_vectors, full_matrices=is_full)
    u, s, vt, info = call.lapack(a, compute_uv=wants_vectors, full_matrices=is_full, lwork=size)
    return {"s": s, "u": u, "vt": vt, "info": info} if wants_vectors else {"s": s, "info": info}


_SVD = "a[m,n] s[r]:real u[m,p] vt[q,n] info[]:s32"


@routine(
    "gesdd",
    "a[m,n]",
    _SVD,
    options={"mode": "ASN"},
    older=Older(
        "full_matrices compute_uv batch m n lwork",
        lambda scalars: {"mode": "N" if not scalars["compute_uv"] else "A" if scalars["full_matrices"] else "S"},
    ),
)
def gesdd(call: Call, a: Array) -> Results:
    """a = u diag(s) vt, s descending, by divide and conquer; all of u and vt (mode A), the first min(m, n) columns and
    rows (S), or none (N). The first result is where a was, destroyed: zeros here."""
    return _svd(call, a)


@routine("gesvd", "a[m,n]", _SVD, options={"mode": "ASN"})
def gesvd(call: Call, a: Array) -> Results:
    """a = u diag(s) vt by QR iteration; see gesdd."""
    return _svd(call, a)


@routine(
    {"real": "syevd", "complex": "heevd"},
    "a[n,n]",
    "a[n,n] w[n]:real info[]:s32",
    options={"mode": "NV", "uplo": "LU"},
    older=Older("lower batch n", lambda scalars: {"mode": "V", **uplo_of_scalars(scalars)}),
)
def syevd(call: Call, a: Array) -> Results:
    """a v = v diag(w), w ascending, of a Hermitian matrix of which one triangle is read; v where a was (mode V)."""
    lower, wants_vectors = call.options["uplo"] == "L", call.options["mode"] == "V"
    w, v, info = call.lapack(a, compute_v=wants_vectors, lower=lower)
    return {"a": v, "w": w, "info": info} if wants_vectors else {"w": w, "info": info}


_EIGENVECTORS = "vl[n,n]:complex vr[n,n]:complex info[]:s32"


@routine(
    "geev",
    "a[n,n]",
    {"real": f"wr[n] wi[n] {_EIGENVECTORS}", "complex": f"w[n] {_EIGENVECTORS}"},
    options={"compute_left": "NV", "compute_right": "NV"},
    older=Older(
        "batch n jobvl jobvr",
        lambda scalars: {f"compute_{side}": chr(scalars[f"jobv{side[0]}"] & 127) for side in ("left", "right")},
        {"real": "_ _ _ wr wi vl vr info", "complex": "_ _ w vl vr info"},
    ),
)
def geev(call: Call, a: Array) -> Results:
    """a vr = vr diag(w) and vlᴴ a = diag(w) vlᴴ, vectors of length 1, each complex; w = wr + i wi of a real matrix.

    Vectors that are not asked for are zero. A matrix that is not finite gives NaN and info −4.
    """
    if not np.isfinite(a).all():
        vectors = dict.fromkeys(("vl", "vr"), np.full(a.shape, np.nan))
        return {name: np.full(len(a), np.nan) for name in ("w", "wr", "wi")} | vectors | {"info": _NOT_FINITE}
    values, vectors, info = eigenvalues(call, a)
    if len(values) == 1:
        return {"w": values[0], **vectors, "info": info}
    vectors = {name: _unpacked(part, values[1]) for name, part in vectors.items()}
    return {"wr": values[0], "wi": values[1], **vectors, "info": info}


def eigenvalues(call: Call, a: Array) -> tuple[Sequence[Array], dict[str, Array], int]:
    """What LAPACK gives of a finite matrix: eigenvalues (of a real one in two parts), the vectors wanted, and info."""
    flags = {"compute_vl": call.options["compute_left"] == "V", "compute_vr": call.options["compute_right"] == "V"}
    *values, vl, vr, info = call.lapack(a, **flags, lwork=call.workspace(len(a), **flags))
    return values, {name: part for name, part in (("vl", vl), ("vr", vr)) if flags[f"compute_{name}"]}, info


def _unpacked(vectors: Array, imaginary: Array) -> Array:
    """Complex vectors from LAPACK's real storage: a conjugate pair's are the two columns' re ± i im, in this order."""
    first = imaginary > 0
    second = imaginary < 0
    result = vectors.astype(np.result_type(vectors, np.complex64))
    result[:, first] = vectors[:, first] + 1j * vectors[:, second]
    result[:, second] = result[:, first].conj()
    return result


def _gees_options(scalars: Mapping[str, Any]) -> Mapping[str, object]:
    if chr(scalars["sort"] & 127) != "N":
        raise EvaluationError("gees that sorts eigenvalues is not supported")
    return {"mode": chr(scalars["jobvs"] & 127), "sort": "N"}


@routine(
    "gees",
    "a[n,n]",
    {
        "real": "t[n,n] vs[n,n] wr[n] wi[n] sdim[]:s32 info[]:s32",
        "complex": "t[n,n] vs[n,n] w[n] sdim[]:s32 info[]:s32",
    },
    options={"mode": "NV", "sort": "N"},
    older=Older("batch n jobvs sort", _gees_options, {"real": "t wr wi vs sdim info", "complex": "t _ w vs sdim info"}),
)
def gees(call: Call, a: Array) -> Results:
    """a = vs t vsᴴ: the Schur form t (of a real matrix with 2 by 2 blocks for conjugate pairs), its diagonal's
    eigenvalues, and the unitary vs (mode V, else zeros). Eigenvalues are not sorted: sdim is 0."""
    wants_vectors = call.options["mode"] == "V"

    def run(size: int) -> Any:
        return call.lapack(lambda *_: 0, a, compute_v=wants_vectors, sort_t=0, lwork=size)

    t, _, *values, vs, _, info = run(int(run(-1)[-2][0].real))
    found = dict(zip(("wr", "wi") if len(values) == 2 else ("w",), values, strict=True))
    return found | {"t": t, "info": info} | ({"vs": vs} if wants_vectors else {})


def _is_row(value: AttributeValue) -> bool:
    return isinstance(value, int) and value >= 0


@routine(
    "gehrd",
    "a[n,n]",
    "a[n,n] tau[n-1] info[]:s32",
    options={"low": _is_row, "high": _is_row},
    older=Older("n ilo ihi lda batch lwork", lambda scalars: {"low": scalars["ilo"], "high": scalars["ihi"]}),
)
def gehrd(call: Call, a: Array) -> Results:
    """a = Q h Qᴴ with h upper Hessenberg; below it the reflectors' vectors, as geqrf stores them one row further up.

    Rows and columns from `low` to `high`, counted from 1, are reduced; the others must be triangular already.
    """
    size = len(a)
    low, high = call.options["low"], call.options["high"]
    if not 1 <= low <= high <= size:
        raise EvaluationError(f"gehrd reduces rows {low} to {high} of {size}, which there are not")
    if size == 1:
        return {"a": a, "info": 0}
    rows = {"lo": low - 1, "hi": high - 1}
    reduced, tau, info = call.lapack(a, **rows, lwork=call.workspace(size, **rows))
    return {"a": reduced, "tau": tau, "info": info}


@routine(
    {"real": "sytrd", "complex": "hetrd"},
    "a[n,n]",
    "a[n,n] d[n]:real e[n-1]:real tau[n-1] info[]:s32",
    options={"uplo": "LU"},
    older=Older("n lower lda batch lwork", uplo_of_scalars),
)
def sytrd(call: Call, a: Array) -> Results:
    """a = Q T Qᴴ with T real, symmetric and tridiagonal, of diagonal d and off-diagonal e, of a Hermitian matrix.

    One triangle is read; where it was are T and the reflectors' vectors.
    """
    if len(a) == 1:
        return {"a": a, "d": a[0].real, "info": 0}
    lower = call.options["uplo"] == "L"
    reduced, d, e, tau, info = call.lapack(a, lower=lower, lwork=call.workspace(len(a), lower=lower))
    return {"a": reduced, "d": d, "e": e, "tau": tau, "info": info}
