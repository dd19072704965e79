"""Registration of a LAPACK routine under its custom-call targets on CPUs.

jaxlib's CPU calls exist in two forms. The typed one, `lapack_sgetrf_ffi`, takes arrays, and has parameters as
attributes; the older one, `lapack_sgetrf`, takes sizes, flags and letters as scalar operands before the arrays, and
returns workspaces among its results. Both are mapped to one function of one matrix (see `solver_calls`).

LAPACK's factorizations, and the linear systems that they solve, as XLA:CPU calls them.

Values are those of LAPACK (through SciPy), element by element; what it leaves unspecified or overwrites is zero here.
`info` is LAPACK's: 0 on success. Source: LAPACK Users' Guide, 3rd edition; jaxlib, jaxlib/lapack.py.

LAPACK's singular values, eigenvalues, and the reductions that precede them, as XLA:CPU calls them.

Vectors are unique only up to signs (phases, and bases of equal eigenvalues), which matters when results are compared.
Source: LAPACK Users' Guide, 3rd edition; jaxlib, jaxlib/lapack.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import DType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.configs import AttributeValue, checked_attributes
from hloexec.ops.library_calls.linalg.solver_calls import (
    PRECISIONS,
    Call,
    Field,
    MatrixRoutine,
    fields_of,
    reason_without_scipy,
    register,
)


@frozen
class Older:
    """A routine's spelling with scalar operands."""

    scalars: str
    """Their names in order."""
    options: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda scalars: {}
    """From the scalars to the typed spelling's attributes."""
    results: Mapping[str, str] | str = ""
    """The names of the results, workspaces as `_`; by default those of the typed spelling. More workspaces follow."""
    library: str = "lapack"


@frozen(eq=False)
class _Target:
    """One target."""

    routine: MatrixRoutine
    options: Mapping[str, Any]
    older: Older | None
    last: str | None = None
    """An option that calls of the typed spelling may have as a scalar behind their operands, as jaxlib 0.4.36 did."""

    @property
    def scalar_count(self) -> int:
        return len(self.older.scalars.split()) if self.older else 0

    def supports(self, instruction: Instruction) -> str | None:
        return reason_without_scipy()

    def config(self, instruction: Instruction) -> Mapping[str, object]:
        """The options of the typed spelling."""
        if self.older is not None:
            return {}
        permitted = {name: _permitted(values) for name, values in self.options.items()}
        options: Mapping[str, Any] = checked_attributes(instruction.backend_config, permitted)
        return {name: chr(value) if isinstance(self.options[name], str) else value for name, value in options.items()}

    def infer(self, *operands: Shape, shape: Shape) -> Shape:
        """The declared shape, where sizes, ranks and element types are those of the routine."""
        target, count = self.routine.target, self.scalar_count + len(self.routine.operands)
        if self.last is not None and len(operands) == count + 1:
            factor = array_shape(operands[-1], f"operand {count} of {target}")
            require(
                factor.rank == 0 and factor.element_type is array_shape(operands[0], "operand 0").element_type,
                f"operand {count} of {target} must be a scalar of the type of the others, but has shape {factor}",
            )
            operands = operands[:-1]
        require(len(operands) == count, f"{target} must have {count} operands, but has {len(operands)}")
        for number, scalar in enumerate(operands[: self.scalar_count]):
            array = array_shape(scalar, f"operand {number} of {target}")
            require(array.rank == 0, f"operand {number} of {target} must be a scalar, but has shape {array}")
        return self.routine.check(operands[self.scalar_count :], shape)

    def evaluate(self, *operands: Array, config: Mapping[str, object], shape: Shape) -> Any:
        _check(self, tuple((operand.dtype, operand.shape) for operand in operands), shape)
        options = config
        if self.last is not None and len(operands) > len(self.routine.operands):
            options = {**config, self.last: operands[-1].item()}
            operands = operands[:-1]
        if self.older is not None:
            scalars = zip(self.older.scalars.split(), operands, strict=False)
            options = self.older.options({name: value.item() for name, value in scalars})
        return self.routine.run(operands[self.scalar_count :], options, shape)


@lru_cache(maxsize=1024)
def _check(target: _Target, operands: tuple[tuple[DType, Dimensions], ...], shape: Shape) -> None:
    """Raise ShapeError for what `infer` refuses; a loop asks about the same shapes in each iteration."""
    target.infer(*(ArrayShape(element_type_of(dtype), sizes) for dtype, sizes in operands), shape=shape)


def routine(
    names: Mapping[str, str] | str,
    operands: str,
    results: Mapping[str, str] | str,
    *,
    options: Mapping[str, object] | None = None,
    older: Older | None = None,
    last: str | None = None,
) -> Callable[[Callable[..., Mapping[str, Any]]], Callable[..., Mapping[str, Any]]]:
    """Register the decorated function, of one matrix, as the entries of a routine in all precisions and spellings.

    `names` and `results` may differ between `real` and `complex`. `options` gives the values that each attribute may
    have, as `checked_attributes` does, or the letters in a string. Operands and results are written `a[m,n] tau[r]`,
    where a letter is a size that an earlier one fixes and `r` is min(m, n), with `:real`, `:complex` or an element type
    where it is not the routine's own. The function is given a `Call` and the operands, and returns the results by name;
    what it leaves out is zero. `last` names an option that may come as a scalar behind the operands.
    """

    def decorate(function: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        documentation = inspect.getdoc(function) or ""
        for precision, scalar in PRECISIONS.items():
            kind = "complex" if precision in "cz" else "real"
            name, fields = _for(names, kind), fields_of(_for(results, kind))
            sourced = f"{documentation}\n\nSource: LAPACK, {precision.upper()}{name.upper()}; jaxlib, jaxlib/lapack.py."
            typed = MatrixRoutine(
                target=f"lapack_{precision}{name}_ffi",
                scipy_name=f"{precision}{name}",
                scalar=scalar,
                operands=fields_of(operands),
                results=fields,
                compute=function,
            )
            wide = _WIDER.get(precision)
            wider = None if wide is None else f"lapack_{wide}{name}_ffi"
            register(typed.target, _Target(typed, options or {}, None, last), sourced, wider)
            if older is not None:
                ordered = _in_order(_for(older.results, kind), fields)
                target = f"{older.library}_{precision}{name}"
                with_scalars = attrs.evolve(typed, target=target, results=ordered, allows_workspaces=True)
                register(
                    target,
                    _Target(with_scalars, {}, older),
                    sourced,
                    None if wide is None else f"{older.library}_{wide}{name}",
                )
        return function

    return decorate


_WIDER = {"s": "d", "c": "z"}
"""The letters of the routines for 64 bits."""


def _for(texts: Mapping[str, str] | str, kind: str) -> str:
    return texts if isinstance(texts, str) else texts[kind]


def _in_order(names: str, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The results in the older spelling's order; `info` may be new to it."""
    by_name = {field.name: field for field in (*fields_of("_ info[]:s32"), *fields)}
    return tuple(by_name[name] for name in names.split()) or fields


def _permitted(values: Any) -> Any:
    """What `checked_attributes` asks about an option: letters are written as their numbers."""
    if not isinstance(values, str):
        return values
    return lambda value: type(value) is int and value in map(ord, values)


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


@routine("potrf", "a[n,n]", "a[n,n] info[]:s32", options={"uplo": "LU"}, older=Older("lower batch n", uplo_of_scalars))
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
        return {"dl": dl, "d": d, "du": du, "b": b / d[0], "info": int(d[0] == 0)}
    second, diagonal, first, x, info = call.lapack(dl[1:], d, du[:-1], b)
    dl, du = np.concatenate([dl[:1], second]), np.concatenate([first, du[-1:]])
    return {"dl": dl, "d": diagonal, "du": du, "b": x, "info": info}


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
    results = dict(zip(("wr", "wi") if len(values) == 2 else ("w",), values, strict=True))
    return results | {"t": t, "info": info} | ({"vs": vs} if wants_vectors else {})


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
