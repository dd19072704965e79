"""Cholesky decomposition and triangular systems, over any batch dimensions."""

from __future__ import annotations

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.blas import hold_blas, matmul
from hloexec.ops.common import array_shape, narrow, require, same_type_ignoring_float_width, widen
from hloexec.ops.policies.exact.triangular import lower_factors as exact_lower_factors
from hloexec.ops.policies.exact.triangular import solution as exact_solution
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating, pointwise
from hloexec.ops.rounding import Sums

_BLOCK = 32
"""Rows that are substituted one by one; the rest of the work is matrix products."""


@frozen
class CholeskyAttributes:
    lower: bool = attribute(Grammar.BOOL, default=False)


@frozen
class TriangularSolveAttributes:
    left_side: bool = attribute(Grammar.BOOL, default=False)
    lower: bool = attribute(Grammar.BOOL, default=False)
    unit_diagonal: bool = attribute(Grammar.BOOL, default=False)
    transpose_a: str = attribute(
        Grammar.ENUM,
        default="TRANSPOSE_INVALID",
        choices=("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    )


@opcode("cholesky", operands=1, attributes=CholeskyAttributes)
class Cholesky:
    """The triangular factor of Hermitian positive definite matrices: a = l lᴴ where `lower`, else a = uᴴ u.

    [batch..., n, n] of any floating or complex type; only the named triangle is read, the other of the result is zero.
    A matrix that is not positive definite gives NaN everywhere. Under `exact` f32 and narrower compute in f64 (see
    `ops.policies.exact.triangular` for the bound). Source: XLA, Cholesky.
    """

    layout_of = (0,)
    sums = Sums.PRODUCTS
    probe = Probe("T[2,2] cholesky(a0), lower=true", ("T[2,2]",))

    @staticmethod
    def relate(use: Relating) -> None:
        pointwise(use)
        use.same(use.result.axes[-1:], use.result.axes[-2:-1])

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return _square(operand, "the operand of cholesky")

    @staticmethod
    def evaluate(operand: Array, *, attributes: CholeskyAttributes, numerics: NumericsPolicy = REFERENCE) -> Array:
        matrices = widen(operand)
        if not attributes.lower:
            matrices = _adjoint(matrices)
        flat = matrices.reshape(-1, *matrices.shape[-2:])
        factors = exact_lower_factors(flat) if numerics.is_exact else _lower_factors(flat)
        factor = factors.reshape(matrices.shape)
        return narrow(factor if attributes.lower else _adjoint(factor), element_type_of(operand.dtype))


@opcode("triangular-solve", operands=2, attributes=TriangularSolveAttributes)
class TriangularSolve:
    """x with op(a) x = b (left_side) or x op(a) = b, where op is the identity, the transpose or the adjoint.

    a [batch..., n, n] is triangular: the other triangle is not read, nor is the diagonal where `unit_diagonal`. b
    [batch..., n, m], or [batch..., m, n] for the right side. Any floating or complex type. Under `exact` f32 and
    narrower compute in f64 (see `ops.policies.exact.triangular` for the bound). Source: XLA, TriangularSolve.
    """

    layout_of = (1,)
    sums = Sums.PRODUCTS
    probe = Probe("T[2,1] triangular-solve(a0, a1), left_side=true, transpose_a=NO_TRANSPOSE", ("T[2,2]", "T[2,1]"))

    @staticmethod
    def relate(use: Relating) -> None:
        matrix, right = (operand.axes for operand in use.operands)
        use.same(right, use.result.axes)
        use.same(matrix[:-2], right[:-2])
        side = right[-2] if use.attributes.left_side else right[-1]
        use.same(matrix[-2:], (side, side))

    @staticmethod
    def infer(a: Shape, b: Shape, *, attributes: TriangularSolveAttributes) -> Shape:
        matrix = _square(a, "a of triangular-solve")
        right = array_shape(b, "b of triangular-solve")
        same_type_ignoring_float_width(matrix, right, "a and b of triangular-solve")
        require(
            attributes.transpose_a != "TRANSPOSE_INVALID",
            "triangular-solve must say transpose_a: NO_TRANSPOSE, TRANSPOSE or ADJOINT",
        )
        require(
            matrix.rank == right.rank and matrix.dimensions[:-2] == right.dimensions[:-2],
            f"a and b of triangular-solve must have the same batch dimensions, but have shapes {matrix} and {right}",
        )
        side = -2 if attributes.left_side else -1
        require(
            matrix.dimensions[-1] == right.dimensions[side],
            f"a and b of triangular-solve do not fit each other on the {'left' if attributes.left_side else 'right'} "
            f"side: their shapes are {matrix} and {right}",
        )
        return ArrayShape(right.element_type, right.dimensions, dynamic_dimensions=right.dynamic_dimensions)

    @staticmethod
    def evaluate(
        a: Array, b: Array, *, attributes: TriangularSolveAttributes, numerics: NumericsPolicy = REFERENCE
    ) -> Array:
        matrix, right = widen(a), widen(b)
        dtype = np.result_type(matrix, right)
        # Everything is brought to the form l x = b with a lower triangle.
        is_transposed = attributes.transpose_a != "NO_TRANSPOSE"
        if attributes.transpose_a == "ADJOINT":
            matrix = matrix.conj()
        if is_transposed == attributes.left_side:
            matrix = matrix.swapaxes(-1, -2)
        is_lower = attributes.lower != (is_transposed == attributes.left_side)
        solution = np.array(right if attributes.left_side else right.swapaxes(-1, -2), dtype, order="C")
        lower = matrix if is_lower else matrix[..., ::-1, ::-1]
        flipped = solution if is_lower else solution[..., ::-1, :]
        if numerics.is_exact:
            flipped = exact_solution(lower, flipped, attributes.unit_diagonal)
            solution = flipped if is_lower else flipped[..., ::-1, :]
        else:
            _substitute(lower, flipped, attributes.unit_diagonal)
        return narrow(solution if attributes.left_side else solution.swapaxes(-1, -2), element_type_of(b.dtype))


def _square(shape: Shape, what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(
        array.element_type.is_floating or array.element_type.is_complex,
        f"{what} must be floating-point or complex, but has shape {array}",
    )
    require(
        array.rank >= 2 and array.dimensions[-1] == array.dimensions[-2],
        f"{what} must hold square matrices, but has shape {array}",
    )
    return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)


def _adjoint(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2).conj()


def _lower_factors(matrices: Array) -> Array:
    """Lower factors of `[batch, n, n]`; LAPACK refuses a whole batch for one bad matrix, which is then halved."""
    if matrices.size == 0:
        return np.zeros_like(matrices)
    try:
        with np.errstate(all="ignore"):
            hold_blas()
            factors = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        count = len(matrices)
        if count == 1:
            return np.full_like(matrices, np.nan)
        return np.concatenate([_lower_factors(matrices[: count // 2]), _lower_factors(matrices[count // 2 :])])
    # Not every LAPACK refuses NaNs.
    factors[np.isnan(factors).any((-2, -1))] = np.nan
    return factors


def _substitute(lower: Array, solution: Array, unit_diagonal: bool) -> None:
    """Solve lower · x = solution in place, forwards, block of rows by block of rows."""
    size = lower.shape[-1]
    with np.errstate(all="ignore"):
        for start in range(0, size, _BLOCK):
            stop = min(start + _BLOCK, size)
            if start:
                solution[..., start:stop, :] -= matmul(lower[..., start:stop, :start], solution[..., :start, :])
            for row in range(start, stop):
                current = solution[..., row, :]
                if row > start:
                    known = matmul(lower[..., row, None, start:row], solution[..., start:row, :])
                    current -= known[..., 0, :]
                if not unit_diagonal:
                    current /= lower[..., row, row, None]
