"""cuSOLVER's dense routines and their equivalents in other libraries, implemented with LAPACK's.

Values are those of LAPACK; factors that are unique only up to signs, phases or the bases of equal eigenvalues may
differ from a GPU's accordingly. `info` is LAPACK's: 0 on success. Operands that a library overwrites are returned as
zeros. Source: jaxlib, gpu/solver_kernels_ffi, gpu/hybrid_kernels, gpu/blas_kernels; NVIDIA, cuSOLVER and cuBLAS; AMD,
hipSOLVER.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.linalg import lapack, lapack_spectral
from hloexec.ops.library_calls.linalg.matrix_routines import Call
from hloexec.ops.library_calls.linalg.solver_calls import (
    FLAGS,
    Descriptor,
    Options,
    Spelling,
    enumeration,
    register_solver,
)

_INFO = "info[]:s32"

_UPLO = enumeration({0: "L", 1: "U", 121: "U", 122: "L"})
_SIDE = enumeration({0: "L", 1: "R", 141: "L", 142: "R"})
_TRANS = enumeration({0: "N", 1: "T", 2: "C", 111: "N", 112: "T", 113: "C"})
_DIAG = enumeration({0: "N", 1: "U", 131: "N", 132: "U"})
_WANTS_VECTORS = enumeration({0: False, 1: True, 201: False, 202: True})
_JACOBI_MODE = enumeration({0: "A", 1: "S"})


def _uplo(found: Options) -> Options:
    return {"uplo": "L" if found["lower"] else "U"}


def _older_uplo(found: Options) -> Options:
    return {"uplo": _UPLO(found, "uplo")}


_LU = f"a[m,n] ipiv[r]:s32 {_INFO}"

register_solver(
    "getrf",
    "a[m,n]",
    Spelling("solver_getrf_ffi", _LU),
    Spelling("solver_getrf", _LU, Descriptor("iiiii", "type batch m n lwork")),
    Spelling("blas_getrf_batched", _LU, Descriptor("iii", "type batch n")),
    compute=lapack.getrf,
)

register_solver(
    "geqrf",
    "a[m,n]",
    Spelling("solver_geqrf_ffi", "a[m,n] tau[r]"),
    Spelling("solver_geqrf", f"a[m,n] tau[r] {_INFO}", Descriptor("iiiii", "type batch m n lwork")),
    Spelling("blas_geqrf_batched", "a[m,n] tau[r]", Descriptor("iiii", "type batch m n")),
    compute=lapack.geqrf,
)

register_solver(
    {"real": "orgqr", "complex": "ungqr"},
    "a[m,n] tau[k]",
    Spelling("solver_orgqr_ffi", "a[m,n]"),
    Spelling("solver_orgqr", f"a[m,n] {_INFO}", Descriptor("iiiiii", "type batch m n k lwork")),
    compute=lapack.orgqr,
)

register_solver(
    {"real": "ormqr", "complex": "unmqr"},
    "a[p,q] tau[k] c[m,n]",
    Spelling("solver_ormqr_ffi", "c[m,n]", {"left": FLAGS, "transpose": FLAGS}, dict),
    compute=lapack.ormqr,
)

register_solver(
    "potrf",
    "a[n,n]",
    Spelling("solver_potrf_ffi", f"a[n,n] {_INFO}", {"lower": FLAGS}, _uplo),
    Spelling(
        "solver_potrf",
        f"a[n,n] {_INFO}",
        Descriptor("iiqqi", "type uplo batch n lwork", shorter=("iiqq",)),
        _older_uplo,
    ),
    compute=lapack.potrf,
)


def _eigenvectors(uplo: Callable[[Options], Options]) -> Callable[[Options], Options]:
    return lambda found: {"mode": "V", **uplo(found)}


_EIGENVALUES = f"a[n,n] w[n]:real {_INFO}"
_OLDER_EIGENVALUES = Descriptor("iiiii", "type uplo batch n lwork"), _eigenvectors(_older_uplo)

register_solver(
    {"real": "syevd", "complex": "heevd"},
    "a[n,n]",
    # The algorithm (0: by size, 1: QR, 2: Jacobi's) changes errors, not what is computed.
    Spelling("solver_syevd_ffi", _EIGENVALUES, {"algorithm": (0, 1, 2), "lower": FLAGS}, _eigenvectors(_uplo)),
    Spelling("solver_syevd", _EIGENVALUES, *_OLDER_EIGENVALUES),
    Spelling("solver_syevj", _EIGENVALUES, *_OLDER_EIGENVALUES),
    compute=lapack_spectral.syevd,
)

_TRIDIAGONAL = f"a[n,n] d[n]:real e[n-1]:real tau[n-1] {_INFO}"

register_solver(
    {"real": "sytrd", "complex": "hetrd"},
    "a[n,n]",
    Spelling("solver_sytrd_ffi", _TRIDIAGONAL, {"lower": FLAGS}, _uplo),
    Spelling("solver_sytrd", _TRIDIAGONAL, Descriptor("iiiiii", "type uplo batch n lda lwork"), _older_uplo),
    compute=lapack_spectral.sytrd,
)


# Singular values


def _svd_options(found: Options) -> Options:
    mode = "N" if not found["compute_uv"] else "A" if found["full_matrices"] else "S"
    return {"mode": mode, "is_transposed": found.get("transposed", False)}


def _svd_results(options: Options) -> str:
    """Where the library is given the transposed matrix, the factors come in the reverse order."""
    if options["mode"] == "N":
        return f"a[m,n] s[r]:real _ _ {_INFO}"
    u, vt = ("u[m,m]", "vt[n,n]") if options["mode"] == "A" else ("u[m,r]", "vt[r,n]")
    factors = f"{vt} {u}" if options["is_transposed"] else f"{u} {vt}"
    return f"a[m,n] s[r]:real {factors} {_INFO}"


def _jacobi_results(options: Options) -> str:
    """The factors have room for all vectors even where none are wanted."""
    factors = {"A": "u[m,m] v[n,n]", "S": "u[m,r] v[n,r]"}.get(options["mode"], "_ _")
    return f"a[m,n] s[r]:real {factors} {_INFO}"


def _older_svd_options(found: Options) -> Options:
    mode, other = (chr(found[name] & 127) for name in ("jobu", "jobvt"))
    if mode != other or mode not in "NSA":
        raise UnsupportedError(f"its backend_config has jobu = {mode!r} and jobvt = {other!r}")
    return {"mode": mode}


def _older_jacobi_options(found: Options) -> Options:
    return {"mode": _JACOBI_MODE(found, "econ") if _WANTS_VECTORS(found, "jobz") else "N"}


def _gesvd(call: Call, a: Array) -> Mapping[str, object]:
    """a = u diag(s) vt, s descending; all of u and vt (full_matrices), the first min(m, n) columns and rows, or none
    (where not compute_uv). The first result is where a was, destroyed: zeros here.

    cuSOLVER wants m ≥ n, and is given the transposed matrix otherwise: vt comes before u then.
    """
    found = dict(lapack_spectral.gesvd(call, a))
    if "u" in found:
        names = ("vt", "u") if a.shape[0] < a.shape[1] else ("u", "vt")
        found |= {"first": found[names[0]], "second": found[names[1]]}
    return found


def _gesvdj(call: Call, a: Array) -> Mapping[str, object]:
    """a = u diag(s) vᴴ, s descending; all of u and v (full_matrices), the first min(m, n) columns of them, or none
    (where not compute_uv). The first result is where a was, destroyed: zeros here."""
    found = dict(lapack_spectral.gesdd(call, a))
    if "vt" in found:
        found["v"] = found["vt"].conj().T
    return found


_SVD_ATTRIBUTES = {"compute_uv": FLAGS, "full_matrices": FLAGS}

_MAYBE_TRANSPOSED = {**_SVD_ATTRIBUTES, "transposed": FLAGS}

register_solver(
    "gesvd",
    "a[m,n]",
    Spelling("solver_gesvd_ffi", _svd_results, _MAYBE_TRANSPOSED, _svd_options),
    # The sizes in the structure are those of the matrix that the library sees, transposed where m < n.
    Spelling(
        "solver_gesvd",
        f"a[m,n] s[r]:real first[p,q] second[x,y] {_INFO}",
        Descriptor("iiiiibb", "type batch more fewer lwork jobu jobvt"),
        _older_svd_options,
    ),
    compute=_gesvd,
)

register_solver(
    "gesdd",
    "a[m,n]",
    Spelling("solver_gesdd_ffi", _svd_results, _MAYBE_TRANSPOSED, _svd_options),
    compute=lapack_spectral.gesdd,
)

register_solver(
    "gesdd",
    "a[m,n]",
    Spelling("solver_gesvdj_ffi", _jacobi_results, _SVD_ATTRIBUTES, _svd_options),
    Spelling("solver_gesvdp_ffi", _jacobi_results, _SVD_ATTRIBUTES, _svd_options),
    Spelling(
        "solver_gesvdj", _jacobi_results, Descriptor("iiiiiii", "type batch m n lwork jobz econ"), _older_jacobi_options
    ),
    compute=_gesvdj,
)


# Eigenvalues of general matrices, and what JAX computes on the host beside a GPU


def _eig_options(found: Options) -> Options:
    return {f"compute_{side}": "V" if found[side] else "N" for side in ("left", "right")}


def _geev(call: Call, a: Array) -> Mapping[str, object]:
    """a vr = vr diag(w) and vlᴴ a = diag(w) vlᴴ, vectors of length 1; those that are not asked for are zero.

    Vectors of a real matrix are packed: a conjugate pair's are re ± i im of the two columns. A matrix that is not
    finite gives NaN and info −4. The first result is where a was, destroyed: zeros here.
    """
    if not np.isfinite(a).all():
        return {name: part for name, part in lapack_spectral.geev(call, a).items() if name in ("w", "info")}
    values, vectors, info = lapack_spectral.eigenvalues(call, a)
    return {"w": values[0] if len(values) == 1 else values[0] + 1j * values[1], **vectors, "info": info}


_SIDES = {"left": FLAGS, "right": FLAGS}
_MAGMA = ("auto", "off", "on")
"""Which library computes: MAGMA on a GPU, or LAPACK on its host."""

register_solver(
    "geev",
    "a[n,n]",
    Spelling("solver_geev_ffi", f"a[n,n] w[n]:complex vl[n,n] vr[n,n] {_INFO}", _SIDES, _eig_options),
    compute=_geev,
)

for _kind, _values in (("real", "wr[n] wi[n]"), ("complex", "w[n]")):
    register_solver(
        {_kind: "geev"},
        "a[n,n]",
        Spelling(
            f"hybrid_eig_{_kind[:4]}",
            f"{_values} vl[n,n]:complex vr[n,n]:complex {_INFO}",
            {**_SIDES, "magma": _MAGMA},
            _eig_options,
        ),
        compute=lapack_spectral.geev,
        source="LAPACK, xGEEV; jaxlib, gpu/hybrid_kernels; MAGMA.",
    )

register_solver(
    "geqp3",
    "a[m,n] jpvt[n]:s32",
    Spelling("hybrid_geqp3", "a[m,n] jpvt[n]:s32 tau[r]", {"magma": _MAGMA}),
    compute=lapack.geqp3,
    source="LAPACK, xGEQP3; jaxlib, gpu/hybrid_kernels; MAGMA.",
)


# Systems of equations


def _trsm_options(found: Options) -> Options:
    side, uplo = _SIDE(found, "side"), _UPLO(found, "uplo")
    return {"side": side, "uplo": uplo, "trans_x": _TRANS(found, "trans"), "diag": _DIAG(found, "diag")}


register_solver(
    "trsm",
    "a[k,k] b[m,n]",
    Spelling(
        "blas_trsm_batched", "b[m,n]", Descriptor("iiiiiiii", "type batch m n side uplo trans diag"), _trsm_options
    ),
    compute=lapack.trsm,
    source="NVIDIA, cublas<t>trsmBatched; jaxlib, gpu/blas_kernels.",
)

register_solver(
    "gtsv",
    "dl[n] d[n] du[n] b[n,k]",
    Spelling("sparse_gtsv2_ffi", "b[n,k]"),
    Spelling("sparse_gtsv2_f32", "b[n,k]", Descriptor("iii", "n k ldb")),
    Spelling("sparse_gtsv2_f64", "b[n,k]", Descriptor("iii", "n k ldb")),
    compute=lapack.gtsv,
    source="NVIDIA, cusparse<t>gtsv2; LAPACK, xGTSV; jaxlib, gpu/sparse_kernels.",
)
