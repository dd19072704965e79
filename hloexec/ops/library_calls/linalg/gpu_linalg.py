"""Linear algebra on GPUs that is not a LAPACK routine: XLA's own calls, and symmetric updates."""

from __future__ import annotations

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.values import Array
from hloexec.ops.blas import matmul
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.backend_config import checked_json, enumerator
from hloexec.ops.library_calls.ffi import checked_attributes, no_attributes
from hloexec.ops.library_calls.linalg.solver_calls import reason_against_layouts
from hloexec.ops.library_calls.shapes import shapes_of, zeros_of
from hloexec.ops.linalg.triangular import Cholesky, CholeskyAttributes, TriangularSolve, TriangularSolveAttributes
from hloexec.ops.registry import custom_call


def _cholesky_options(instruction: Instruction) -> CholeskyAttributes:
    return CholeskyAttributes(**checked_json(instruction.backend_config, {"lower": (True, False)}))


@custom_call("__cusolver$cholesky", config=_cholesky_options)
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
        return TupleShape((ArrayShape(matrix.element_type, matrix.dimensions), parts[1], info))

    @staticmethod
    def evaluate(operand: Array, *, config: CholeskyAttributes, shape: TupleShape) -> tuple[Array, ...]:
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
    found = checked_json(instruction.backend_config, permitted)
    transposition = {"transpose_a": enumerator(found["transpose_a"], words)} if "transpose_a" in found else {}
    return TriangularSolveAttributes(**found | transposition)


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
    def evaluate(a: Array, b: Array, *, config: TriangularSolveAttributes, shape: TupleShape) -> tuple[Array, ...]:
        XlaTriangularSolve.infer(*shapes_of([a, b]), config=config, shape=shape)
        solution = TriangularSolve.evaluate(a, b, attributes=config)
        return solution, zeros_of(shape.elements[1])


def _syrk_transposes(instruction: Instruction) -> bool:
    return bool(checked_attributes(instruction.backend_config, {"transpose": (True, False)})["transpose"])


@custom_call("cusolver_syrk_ffi", "hipsolver_syrk_ffi", "oneapisolver_syrk_ffi", config=_syrk_transposes)
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
        return ArrayShape(added.element_type, added.dimensions)

    @staticmethod
    def evaluate(a: Array, c: Array, alpha: Array, beta: Array, *, config: bool) -> Array:
        SymmetricUpdate.infer(*shapes_of([a, c, alpha, beta]), config=config)
        left = a.swapaxes(-1, -2) if config else a
        with np.errstate(all="ignore"):
            total = alpha.reshape(()) * matmul(left, left.swapaxes(-1, -2)) + beta.reshape(()) * c
        return np.where(np.tri(c.shape[-1], dtype=bool), total, c)


@custom_call("cu_cholesky_update_ffi", "hip_cholesky_update_ffi", "oneapi_cholesky_update_ffi", config=no_attributes)
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
        return TupleShape(tuple(ArrayShape(part.element_type, part.dimensions) for part in (matrix, vector)))

    @staticmethod
    def evaluate(r: Array, w: Array) -> tuple[Array, Array]:
        CholeskyUpdate.infer(*shapes_of([r, w]))
        result, vector = np.array(r), np.array(w)
        with np.errstate(all="ignore"):
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
