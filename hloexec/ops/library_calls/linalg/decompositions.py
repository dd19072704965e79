"""XLA's own matrix decompositions, which TPUs run, and those that JAX calls in addition to LAPACK and cuSOLVER.

XLA represents the former as calls until a backend expands them; here they are computed by their definitions, on whole
batches of matrices. Source: XLA, hlo/builder/lib (self_adjoint_eig, qr, lu_decomposition); JAX, jax.lax.linalg.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of, part_type
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.library_calls.configs import bytes_of_config, checked_attributes, ffi_attributes, shapes_of
from hloexec.ops.library_calls.linalg.solver_calls import Descriptor
from hloexec.ops.registry import custom_call
from hloexec.ops.resources import hold_blas, matmul

_EIGH_FIELDS = 4


def _matrix_shape(shape: Shape, subject: str) -> ArrayShape:
    array = array_shape(shape, subject)
    require(
        array.rank >= 2 and array.element_type.is_inexact,
        f"{subject} must hold matrices of floating-point or complex numbers, but has shape {array}",
    )
    return array.plain


def _reads_lower(instruction: Instruction) -> bool:
    fields = (instruction.backend_config or "").split(",")
    if len(fields) != _EIGH_FIELDS or fields[0] not in "01" or fields[1] not in "01":
        raise UnsupportedError(
            f"its backend_config must be lower,sort_eigenvalues,max_iter,tol with 0 or 1 for the first two, but is "
            f"{instruction.backend_config!r}"
        )
    return fields[0] == "1"


@custom_call("Eigh", config=_reads_lower)
class Eigh:
    """(v, w) with a v = v diag(w) of Hermitian matrices [..., n, n]; w [..., n] is real and ascending.

    backend_config is `lower,sort_eigenvalues,max_iter,tol`: which triangle is read, and how far XLA's iteration goes,
    which this one (LAPACK's) does not need to be told. Source: XLA, self_adjoint_eig.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = _matrix_shape(operand, "the operand of Eigh")
        require(array.dimensions[-1] == array.dimensions[-2], f"Eigh needs square matrices, but is given {array}")
        return TupleShape((array, ArrayShape(part_type(array.element_type), array.dimensions[:-1])))

    @staticmethod
    def evaluate(operand: Array, *, config: bool) -> tuple[Array, Array]:
        Eigh.infer(*shapes_of([operand]))
        matrices = widen(operand)
        try:
            hold_blas()
            values, vectors = np.linalg.eigh(matrices, UPLO="L" if config else "U")
        except np.linalg.LinAlgError:
            values, vectors = np.full(matrices.shape[:-1], np.nan), np.full_like(matrices, np.nan)
        entry = element_type_of(operand.dtype)
        return narrow(vectors, entry), narrow(values, part_type(entry))


@custom_call("Qr")
class Qr:
    """(qr, taus) with a = Q R: R in the upper triangle, below it the vectors v of reflectors I − tau v vᴴ, v[i] = 1.

    a [..., m, n]; taus [..., min(m, n)]. The diagonal of R has the sign that LAPACK gives it. Source: XLA, qr.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = _matrix_shape(operand, "the operand of Qr")
        taus = (*array.dimensions[:-2], min(array.dimensions[-2:]))
        return TupleShape((array, ArrayShape(array.element_type, taus)))

    @staticmethod
    def evaluate(operand: Array) -> tuple[Array, Array]:
        matrices = widen(operand)
        if matrices.size == 0:
            return operand, np.zeros((*operand.shape[:-2], min(operand.shape[-2:])), operand.dtype)
        hold_blas()
        transposed, taus = np.linalg.qr(matrices, mode="raw")
        entry = element_type_of(operand.dtype)
        return narrow(np.ascontiguousarray(transposed.swapaxes(-1, -2)), entry), narrow(taus, entry)


@custom_call("ProductOfElementaryHouseholderReflectors")
class HouseholderProduct:
    """The first n columns of H(1) H(2) … H(k), the reflectors that Qr stored in a [..., m, n] and taus [..., k].

    Source: XLA, qr.
    """

    @staticmethod
    def infer(a: Shape, taus: Shape) -> Shape:
        array, factors = _matrix_shape(a, "a"), array_shape(taus, "taus")
        rows, columns = array.dimensions[-2:]
        require(rows >= columns, f"a product of reflectors needs no fewer rows than columns, but is given {array}")
        require(
            factors.dimensions[:-1] == array.dimensions[:-2] and factors.rank > 0 and factors.dimensions[-1] <= columns,
            f"taus must have the batch of {array} and at most {columns} elements, but has shape {factors}",
        )
        return array

    @staticmethod
    def evaluate(a: Array, taus: Array) -> Array:
        matrices, factors = widen(a), widen(taus)
        rows, columns = matrices.shape[-2:]
        product = np.broadcast_to(np.eye(rows, columns, dtype=matrices.dtype), matrices.shape).copy()
        for number in reversed(range(factors.shape[-1])):
            v = matrices[..., number:, number].copy()
            v[..., 0] = 1
            projection = matmul(v.conj()[..., None, :], product[..., number:, :])
            product[..., number:, :] -= (factors[..., number, None] * v)[..., None] * projection
        return narrow(product, element_type_of(a.dtype))


@custom_call("LuDecomposition")
class LuDecomposition:
    """(lu, pivots, permutation) with a[permutation] = L U, partial pivoting; L's diagonal is 1 and not stored.

    a [..., m, n]; pivots s32 [..., min(m, n)]: row i was swapped with row pivots[i], from 0; permutation s32 [..., m].
    Source: XLA, lu_decomposition.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = _matrix_shape(operand, "the operand of LuDecomposition")
        index, batch, (rows, columns) = ELEMENT_TYPES["s32"], array.dimensions[:-2], array.dimensions[-2:]
        return TupleShape((array, ArrayShape(index, (*batch, min(rows, columns))), ArrayShape(index, (*batch, rows))))

    @staticmethod
    def evaluate(operand: Array) -> tuple[Array, Array, Array]:
        rows, columns = operand.shape[-2:]
        factors = np.array(widen(operand)).reshape(-1, rows, columns)
        count, least = len(factors), min(rows, columns)
        pivots = np.zeros((count, least), np.int32)
        batch = np.arange(count)
        for step in range(least):
            column = factors[:, step:, step]
            # LAPACK measures complex numbers by |re| + |im|.
            chosen = step + (np.abs(column.real) + np.abs(column.imag)).argmax(-1)
            pivots[:, step] = chosen
            factors[batch, chosen], factors[:, step] = factors[:, step].copy(), factors[batch, chosen]
            pivot = factors[:, step, step, None]
            # A column of zeros is left as it is.
            factors[:, step + 1 :, step] /= np.where(pivot == 0, 1, pivot)
            factors[:, step + 1 :, step + 1 :] -= (
                factors[:, step + 1 :, step, None] * factors[:, step, None, step + 1 :]
            )
        pivots = pivots.reshape(*operand.shape[:-2], least)
        lu = narrow(factors, element_type_of(operand.dtype)).reshape(operand.shape)
        return lu, pivots, _permutation_of_swaps(pivots, rows)


def _permutation_sizes(instruction: Instruction) -> Mapping[str, object]:
    """The sizes that the config of an older call gives, if any."""
    text = instruction.backend_config or ""
    if text.startswith("{") and text.endswith("}"):
        is_size = {"permutation_size": lambda value: type(value) is int}
        return checked_attributes(text, is_size if ffi_attributes(text) else {})
    return Descriptor("qii", "batch_size pivot_size permutation_size").read(bytes_of_config(text)) if text else {}


@custom_call(
    "cu_lu_pivots_to_permutation",
    "cuda_lu_pivots_to_permutation",
    "hip_lu_pivots_to_permutation",
    "oneapi_lu_pivots_to_permutation",
    config=_permutation_sizes,
    is_reproducible=True,
)
class LuPivotsToPermutation:
    """The permutation [..., n] into which swapping row i with row pivots[i], for i = 0, 1, …, brings 0, 1, …, n − 1.

    pivots s32 [..., k] from 0, k ≤ n. The sizes that older configs hold must be those of the shapes: permutation_size,
    or a C structure. Source: JAX, jax.lax.linalg.lu_pivots_to_permutation; jaxlib, gpu/lu_pivot_kernels.
    """

    @staticmethod
    def infer(pivots: Shape, *, config: Mapping[str, object], shape: Shape) -> Shape:
        swaps, result = array_shape(pivots, "pivots"), array_shape(shape, "the permutation")
        require(
            swaps.rank == result.rank > 0
            and swaps.dimensions[:-1] == result.dimensions[:-1]
            and swaps.dimensions[-1] <= result.dimensions[-1]
            and swaps.element_type is result.element_type is ELEMENT_TYPES["s32"],
            f"pivots {swaps} do not permute {result}",
        )
        expected_sizes = {
            "batch_size": prod(swaps.dimensions[:-1]),
            "pivot_size": swaps.dimensions[-1],
            "permutation_size": result.dimensions[-1],
        }
        for name, size in config.items():
            require(
                size == expected_sizes[name],
                f"the backend_config has {name} = {size}, but pivots {swaps} that permute {result} "
                f"have {expected_sizes[name]}",
            )
        return result.plain

    @staticmethod
    def evaluate(pivots: Array, *, shape: ArrayShape) -> Array:
        return _permutation_of_swaps(pivots, shape.dimensions[-1])


def _permutation_of_swaps(pivots: Array, size: int) -> Array:
    """0 … size − 1 after swapping element i with element pivots[i], for each i in turn; batches before it."""
    swaps = pivots.reshape(-1, pivots.shape[-1])
    batch = np.arange(len(swaps))
    permutation = np.broadcast_to(np.arange(size, dtype=np.int32), (len(swaps), size)).copy()
    for step in range(swaps.shape[-1]):
        # An index beyond the end moves nothing.
        other = np.where((swaps[:, step] >= 0) & (swaps[:, step] < size), swaps[:, step], step)
        permutation[batch, other], permutation[:, step] = permutation[:, step].copy(), permutation[batch, other]
    return permutation.reshape(*pivots.shape[:-1], size)


@custom_call(
    "tridiagonal_solve_perturbed_ffi",
    "cu_tridiagonal_solve_perturbed",
    "hip_tridiagonal_solve_perturbed",
    "oneapi_tridiagonal_solve_perturbed",
)
class TridiagonalSolvePerturbed:
    """x of tridiagonal systems that may be singular: pivots too small to divide by are nudged away from zero.

    Diagonals dl (its first element unused), d and du (its last unused) [..., n], right-hand sides b [..., n, k]; for
    inverse iteration, where any large x along the null space will do. Source: LAPACK, xLAGTF and xLAGTS; JAX.
    """

    @staticmethod
    def infer(dl: Shape, d: Shape, du: Shape, b: Shape) -> Shape:
        right = _matrix_shape(b, "b")
        for diagonal in (dl, d, du):
            array = array_shape(diagonal, "a diagonal")
            require(
                array.dimensions == right.dimensions[:-1] and array.element_type is right.element_type,
                f"a diagonal of a system with right-hand sides {right} cannot have shape {array}",
            )
        return right

    @staticmethod
    def evaluate(dl: Array, d: Array, du: Array, b: Array) -> Array:
        """Rows are eliminated over the whole batch, with pivoting scaled by the rows' sizes.

        Going back up, a pivot p with which x = rhs / p would overflow gets eps · max|U| added, of its own sign, doubled
        until it is large enough.
        """
        size, columns = b.shape[-2:]
        if b.size == 0:
            return np.zeros_like(b)
        x = np.array(b).reshape(-1, size, columns)
        lower, diagonal, upper = (part.reshape(-1, size) for part in (dl, d, du))
        _substitute(_eliminate(lower, diagonal, upper, x), x)
        return x.reshape(b.shape)


def _eliminate(lower: Array, diagonal: Array, upper: Array, x: Array) -> Array:
    """Make the system upper triangular with two diagonals above the main one, `[batch, n, 3]`; x follows."""
    count, size = diagonal.shape
    u = np.zeros((count, size, 3), diagonal.dtype)
    u[:, :, 0], u[:, :-1, 1] = diagonal, upper[:, :-1]
    scale = np.abs(u[:, 0, 0]) + np.abs(u[:, 0, 1])
    for row in range(size - 1):
        below = row + 1
        this, sub, beyond = u[:, row, 0].copy(), lower[:, below], u[:, below, 1].copy()
        next_scale = np.abs(sub) + np.abs(diagonal[:, below]) + np.abs(beyond)
        own_weight = np.where(this == 0, 0, np.abs(this) / scale)
        swaps = (sub != 0) & (np.abs(sub) / next_scale > own_weight)
        ratio = np.where(sub == 0, 0, np.where(swaps, this / sub, sub / this))
        first, second = u[:, row, 1].copy(), diagonal[:, below]
        u[:, row, 0] = np.where(swaps, sub, this)
        u[:, row, 1] = np.where(swaps, second, first)
        u[:, row, 2] = np.where(swaps, beyond, 0)
        u[:, below, 0] = np.where(swaps, first - ratio * second, second - ratio * first)
        u[:, below, 1] = np.where(swaps, -ratio * beyond, beyond)
        above, right = x[:, row].copy(), x[:, below].copy()
        x[:, row] = np.where(swaps[:, None], right, above)
        x[:, below] = np.where(
            swaps[:, None], above - ratio[:, None] * right, right - np.where(sub == 0, 0, ratio)[:, None] * above
        )
        scale = np.where(swaps, np.abs(u[:, below, 0]) + np.abs(u[:, below, 1]), next_scale)
    return u


def _substitute(u: Array, x: Array) -> None:
    """Solve the triangular system in place, from the last row up."""
    size = x.shape[1]
    nudge = np.abs(u).max((1, 2)) * np.finfo(u.real.dtype).eps
    for row in reversed(range(size)):
        rhs = x[:, row].copy()
        for offset in (1, 2):
            if row + offset < size:
                rhs -= u[:, row, offset, None] * x[:, row + offset]
        pivot, rhs = _safe_pivot(u[:, row, 0].copy(), rhs, nudge)
        x[:, row] = rhs * (1 / pivot)[:, None]


def _safe_pivot(pivot: Array, rhs: Array, nudge: Any) -> tuple[Array, Array]:
    """Pivots, moved where neither rhs / pivot nor 1 / pivot may overflow otherwise, and the right-hand sides."""
    tiny = np.finfo(pivot.real.dtype).tiny
    huge = 1 / tiny
    step = np.copysign(np.maximum(nudge, tiny), pivot.real)
    most = np.abs(rhs).max(-1, initial=0)
    open_ = np.abs(pivot) < 1
    while open_.any():
        magnitude = np.abs(pivot)
        is_tiny = magnitude < tiny
        overflows = np.where(is_tiny, (magnitude == 0) | (most * tiny > magnitude), most > magnitude * huge)
        rescaled = open_ & is_tiny & ~overflows
        pivot = np.where(rescaled, pivot * huge, pivot)
        rhs = np.where(rescaled[:, None], rhs * huge, rhs)
        moved = open_ & overflows
        pivot = np.where(moved, pivot + step, pivot)
        step = np.where(moved, step * 2, step)
        open_ = moved & (np.abs(pivot) < 1)
    return pivot.astype(rhs.dtype), rhs
