"""cuSOLVER's dense routines and their equivalents in other libraries, implemented with LAPACK's.

Values are those of LAPACK; factors that are unique only up to signs, phases or the bases of equal eigenvalues may
differ from a GPU's accordingly. `info` is LAPACK's: 0 on success. Operands that a library overwrites are returned as
zeros. Source: jaxlib, gpu/solver_kernels_ffi, gpu/hybrid_kernels, gpu/blas_kernels; NVIDIA, cuSOLVER and cuBLAS; AMD,
hipSOLVER.

Linear algebra on GPUs that is not a LAPACK routine: XLA's own calls, and symmetric updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.values import Array, Arrays
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.configs import (
    checked_attributes,
    checked_json,
    enumerator,
    no_attributes,
    shapes_of,
    zeros_of,
)
from hloexec.ops.library_calls.linalg import lapack
from hloexec.ops.library_calls.linalg.solver_calls import (
    FLAGS,
    VENDORS,
    Call,
    Descriptor,
    Options,
    Spelling,
    enumeration,
    reason_against_layouts,
    register_solver,
)
from hloexec.ops.linalg import Cholesky, CholeskyAttributes, TriangularSolve, TriangularSolveAttributes
from hloexec.ops.registry import custom_call
from hloexec.ops.resources import matmul

_INFO = "info[]:s32"

_UPLO = enumeration({0: "L", 1: "U", 121: "U", 122: "L"})
_SIDE = enumeration({0: "L", 1: "R", 141: "L", 142: "R"})
_TRANS = enumeration({0: "N", 1: "T", 2: "C", 111: "N", 112: "T", 113: "C"})
_DIAG = enumeration({0: "N", 1: "U", 131: "N", 132: "U"})
_WANTS_VECTORS = enumeration({0: False, 1: True, 201: False, 202: True})
_JACOBI_MODE = enumeration({0: "A", 1: "S"})


def _uplo(options: Options) -> Options:
    return {"uplo": "L" if options["lower"] else "U"}


def _older_uplo(options: Options) -> Options:
    return {"uplo": _UPLO(options, "uplo")}


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
    compute=lapack.syevd,
)

_TRIDIAGONAL = f"a[n,n] d[n]:real e[n-1]:real tau[n-1] {_INFO}"

register_solver(
    {"real": "sytrd", "complex": "hetrd"},
    "a[n,n]",
    Spelling("solver_sytrd_ffi", _TRIDIAGONAL, {"lower": FLAGS}, _uplo),
    Spelling("solver_sytrd", _TRIDIAGONAL, Descriptor("iiiiii", "type uplo batch n lda lwork"), _older_uplo),
    compute=lapack.sytrd,
)


# Singular values


def _svd_options(options: Options) -> Options:
    mode = "N" if not options["compute_uv"] else "A" if options["full_matrices"] else "S"
    return {"mode": mode, "is_transposed": options.get("transposed", False)}


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


def _older_svd_options(options: Options) -> Options:
    mode, other = (chr(options[name] & 127) for name in ("jobu", "jobvt"))
    if mode != other or mode not in "NSA":
        raise UnsupportedError(f"its backend_config has jobu = {mode!r} and jobvt = {other!r}")
    return {"mode": mode}


def _gesvd(call: Call, a: Array) -> Mapping[str, object]:
    """a = u diag(s) vt, s descending; all of u and vt (full_matrices), the first min(m, n) columns and rows, or none
    (where not compute_uv). The first result is where a was, destroyed: zeros here.

    cuSOLVER wants m ≥ n, and is given the transposed matrix otherwise: vt comes before u then.
    """
    found = dict(lapack.gesvd(call, a))
    if "u" in found:
        names = ("vt", "u") if a.shape[0] < a.shape[1] else ("u", "vt")
        found |= {"first": found[names[0]], "second": found[names[1]]}
    return found


def _gesvdj(call: Call, a: Array) -> Mapping[str, object]:
    """a = u diag(s) vᴴ, s descending; all of u and v (full_matrices), the first min(m, n) columns of them, or none
    (where not compute_uv). The first result is where a was, destroyed: zeros here."""
    found = dict(lapack.gesdd(call, a))
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
    "gesdd", "a[m,n]", Spelling("solver_gesdd_ffi", _svd_results, _MAYBE_TRANSPOSED, _svd_options), compute=lapack.gesdd
)

register_solver(
    "gesdd",
    "a[m,n]",
    Spelling("solver_gesvdj_ffi", _jacobi_results, _SVD_ATTRIBUTES, _svd_options),
    Spelling("solver_gesvdp_ffi", _jacobi_results, _SVD_ATTRIBUTES, _svd_options),
    Spelling(
        "solver_gesvdj",
        _jacobi_results,
        Descriptor("iiiiiii", "type batch m n lwork jobz econ"),
        lambda found: {"mode": _JACOBI_MODE(found, "econ") if _WANTS_VECTORS(found, "jobz") else "N"},
    ),
    compute=_gesvdj,
)


# Eigenvalues of general matrices, and what JAX computes on the host beside a GPU


def _eig_options(options: Options) -> Options:
    return {f"compute_{side}": "V" if options[side] else "N" for side in ("left", "right")}


def _geev(call: Call, a: Array) -> Mapping[str, object]:
    """a vr = vr diag(w) and vlᴴ a = diag(w) vlᴴ, vectors of length 1; those that are not asked for are zero.

    Vectors of a real matrix are packed: a conjugate pair's are re ± i im of the two columns. A matrix that is not
    finite gives NaN and info −4. The first result is where a was, destroyed: zeros here.
    """
    if not np.isfinite(a).all():
        return {name: part for name, part in lapack.geev(call, a).items() if name in ("w", "info")}
    values, vectors, info = lapack.eigenvalues(call, a)
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
        compute=lapack.geev,
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


def _trsm_options(options: Options) -> Options:
    side, uplo = _SIDE(options, "side"), _UPLO(options, "uplo")
    return {"side": side, "uplo": uplo, "trans_x": _TRANS(options, "trans"), "diag": _DIAG(options, "diag")}


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


@custom_call(
    "__cusolver$cholesky",
    config=lambda call: CholeskyAttributes(**checked_json(call.backend_config, {"lower": FLAGS})),
)
class XlaCholesky:
    """(l, workspace, info): a = l lᴴ, or a = uᴴ u where not `lower`; the other triangle stays as it was.

    a [..., n, n]; info s32 [...] is 0, or k where the leading minor of order k is the first that is not positive
    definite: the matrix is NaN then, as XLA makes it. Source: XLA, cusolver_rewriter; cuSOLVER, potrf.
    """

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        matrix = array_shape(Cholesky.infer(operand), "the operand of __cusolver$cholesky")
        parts = _parts(shape, 3, "__cusolver$cholesky")
        info = ArrayShape(ELEMENT_TYPES["s32"], matrix.dimensions[:-2])
        return TupleShape((matrix.plain, parts[1], info))

    @staticmethod
    def evaluate(operand: Array, *, config: CholeskyAttributes, shape: TupleShape) -> Arrays:
        XlaCholesky.infer(*shapes_of([operand]), shape=shape)
        factor = Cholesky.evaluate(operand, attributes=config)
        triangle = np.tri(operand.shape[-1], dtype=bool)
        failed = np.asarray(np.isnan(factor).any((-2, -1)))
        kept = (triangle if config.lower else triangle.T) | failed[..., None, None]
        info = np.zeros(failed.shape, np.int32)
        for place in np.argwhere(failed):
            info[tuple(place)] = _first_bad_minor(operand[tuple(place)], config)
        return np.where(kept, factor, operand), zeros_of(shape.elements[1]), info


def _first_bad_minor(matrix: Array, options: CholeskyAttributes) -> int:
    """The smallest order of a leading minor that has no factor, by bisection; the whole matrix has none."""
    good, bad = 0, len(matrix)
    while bad - good > 1:
        middle = (good + bad) // 2
        factor = Cholesky.evaluate(np.ascontiguousarray(matrix[:middle, :middle]), attributes=options)
        good, bad = (good, middle) if np.isnan(factor).any() else (middle, bad)
    return bad


def _triangular_options(instruction: Instruction) -> TriangularSolveAttributes:
    flags = dict.fromkeys(("left_side", "lower", "unit_diagonal"), (True, False))
    words = ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
    permitted = {**flags, "transpose_a": (*words[1:], 1, 2, 3)}
    options = checked_json(instruction.backend_config, permitted)
    transposition = {"transpose_a": enumerator(options["transpose_a"], words)} if "transpose_a" in options else {}
    return TriangularSolveAttributes(**options | transposition)


@custom_call("__cublas$triangularSolve", config=_triangular_options)
class XlaTriangularSolve:
    """(x, workspace): x with op(a) x = b or x op(a) = b; the options are those of the opcode triangular-solve.

    Source: XLA, triangular_solve_rewriter; cuBLAS, trsm.
    """

    @staticmethod
    def infer(a: Shape, b: Shape, *, config: TriangularSolveAttributes, shape: Shape) -> Shape:
        solution = TriangularSolve.infer(a, b, attributes=config)
        return TupleShape((solution, *_parts(shape, 2, "__cublas$triangularSolve")[1:]))

    @staticmethod
    def evaluate(a: Array, b: Array, *, config: TriangularSolveAttributes, shape: TupleShape) -> Arrays:
        XlaTriangularSolve.infer(*shapes_of([a, b]), config=config, shape=shape)
        solution = TriangularSolve.evaluate(a, b, attributes=config)
        return solution, zeros_of(shape.elements[1])


@custom_call(
    *(f"{vendor}solver_syrk_ffi" for vendor in VENDORS),
    config=lambda call: bool(checked_attributes(call.backend_config, {"transpose": FLAGS})["transpose"]),
)
class SymmetricUpdate:
    """The lower triangle of alpha a aᵀ + beta c (`transpose`: of alpha aᵀ a + beta c); above it c stays as it was.

    a [..., n, k] (or [..., k, n]), c [..., n, n], scalars alpha and beta, all of one type; nothing is conjugated. What
    cuBLAS calls the upper triangle is the lower one here, since it goes by columns. Source: jaxlib,
    gpu/solver_kernels_ffi; cuBLAS, syrk.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return reason_against_layouts(instruction, by_columns=False)

    @staticmethod
    def infer(a: Shape, c: Shape, alpha: Shape, beta: Shape, *, config: bool) -> Shape:
        matrix, added = array_shape(a, "a of syrk"), array_shape(c, "c of syrk")
        scalars = [array_shape(part, "alpha or beta of syrk") for part in (alpha, beta)]
        require(
            matrix.element_type.name in ("f32", "f64", "c64", "c128") and matrix.rank >= 2,
            f"a of syrk must hold matrices of f32, f64, c64 or c128, but has shape {matrix}",
        )
        for part in (added, *scalars):
            require(
                part.element_type is matrix.element_type,
                f"a, c, alpha and beta of syrk must have one type, but have shapes {matrix} and {part}",
            )
        size = matrix.dimensions[-1 if config else -2]
        require(
            added.dimensions == (*matrix.dimensions[:-2], size, size),
            f"c of syrk must be {size} by {size} with the batch of a, but they have shapes {added} and {matrix}",
        )
        for scalar in scalars:
            require(scalar.element_count == 1, f"alpha and beta of syrk must be single numbers, not {scalar}")
        return added.plain

    @staticmethod
    def evaluate(a: Array, c: Array, alpha: Array, beta: Array, *, config: bool) -> Array:
        SymmetricUpdate.infer(*shapes_of([a, c, alpha, beta]), config=config)
        left = a.swapaxes(-1, -2) if config else a
        total = alpha.reshape(()) * matmul(left, left.swapaxes(-1, -2)) + beta.reshape(()) * c
        return np.where(np.tri(c.shape[-1], dtype=bool), total, c)


@custom_call(*(f"{vendor}_cholesky_update_ffi" for vendor in VENDORS), config=no_attributes)
class CholeskyUpdate:
    """(r′, w′) with r′ upper triangular and r′ᵀ r′ = rᵀ r + w wᵀ; its diagonal is positive. w′ is w, destroyed: zeros.

    r [n, n], w [n], f32 or f64. Rotations mix w into one row after the other: row k becomes c·row + s·w and w becomes
    c·w − s·row, with (c, s) = (r_kk, w_k) / √(r_kk² + w_k²). Source: jaxlib, gpu/cholesky_update_kernel; JAX,
    jax.lax.linalg.cholesky_update; Golub, Van Loan, "Matrix Computations", 6.5.4.
    """

    @staticmethod
    def infer(r: Shape, w: Shape) -> Shape:
        matrix, vector = array_shape(r, "r of a Cholesky update"), array_shape(w, "w of a Cholesky update")
        require(
            matrix.element_type is vector.element_type
            and matrix.element_type.name in ("f32", "f64")
            and matrix.dimensions == vector.dimensions * 2
            and vector.rank == 1,
            f"a Cholesky update needs r [n, n] and w [n] of f32 or f64, but they have shapes {matrix} and {vector}",
        )
        return TupleShape(tuple(part.plain for part in (matrix, vector)))

    @staticmethod
    def evaluate(r: Array, w: Array) -> tuple[Array, Array]:
        CholeskyUpdate.infer(*shapes_of([r, w]))
        result, vector = np.array(r), np.array(w)
        for k, row in enumerate(result):
            if vector[k] == 0:
                continue
            cosine, sine = np.stack([row[k], vector[k]]) / np.hypot(row[k], vector[k])
            result[k], vector = cosine * row + sine * vector, cosine * vector - sine * row
        return result, np.zeros_like(w)


def _parts(shape: Shape, count: int, target: str) -> tuple[Shape, ...]:
    parts = parts_of(shape)
    require(len(parts) == count, f"{target} must give {count} results, but is declared as {shape}")
    return parts
