"""The kernels of matrices that TPUs call once XLA has expanded decompositions and triangular systems.

Complex matrices are pairs of real and imaginary parts. Which factors these are shows in modules optimized for TPUs,
compared with XLA:CPU before the optimization; what is around the calls is XLA's, hlo/transforms/expanders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.values import Array
from hloexec.ops.blas import hold_blas
from hloexec.ops.common import narrow, require, widen
from hloexec.ops.library_calls.linalg.decompositions import LuDecomposition, Qr
from hloexec.ops.library_calls.shapes import CallResult, operand_shapes, shapes_of
from hloexec.ops.linalg.triangular import Cholesky, CholeskyAttributes, TriangularSolve, TriangularSolveAttributes
from hloexec.ops.registry import custom_call

_BLOCKS = 4


def _matrices(operands: Sequence[Shape], what: str, *, square: bool = True) -> list[ArrayShape]:
    """The shapes of real matrices, all alike."""
    arrays = operand_shapes(operands, what)
    first = arrays[0]
    require(
        first.rank >= 2 and first.element_type.is_floating and all(array.compatible(first) for array in arrays),
        f"{what} takes floating-point matrices, all of one shape, but is given {', '.join(map(str, arrays))}",
    )
    require(
        not square or first.dimensions[-1] == first.dimensions[-2], f"{what} takes square matrices, but not {first}"
    )
    return [ArrayShape(array.element_type, array.dimensions) for array in arrays]


def _parts(operands: Sequence[Shape], what: str, *, square: bool = True) -> list[ArrayShape]:
    """The shapes of a real matrix, or of the two parts of a complex one."""
    require(len(operands) in (1, 2), f"{what} takes a matrix or its two parts, but is given {len(operands)} operands")
    return _matrices(operands, what, square=square)


def _results(shapes: Sequence[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))


def _joined(parts: Sequence[Array]) -> Array:
    """A complex array of its parts; a real one is itself."""
    widened = [widen(part) for part in parts]
    return widened[0] if len(parts) == 1 else widened[0] + 1j * widened[1]


def _parted(array: Array, like: Sequence[Array]) -> tuple[Array, ...]:
    """What `_joined` joined, in the element type of the parts."""
    entry = element_type_of(like[0].dtype)
    parts = [array] if len(like) == 1 else [array.real, array.imag]
    return tuple(narrow(np.ascontiguousarray(part), entry) for part in parts)


def _value(parts: tuple[Array, ...]) -> CallResult:
    return parts[0] if len(parts) == 1 else parts


@custom_call("Cholesky")
class TpuCholesky:
    """l with a = l lᴴ of positive definite matrices a [..., n, n], whose lower triangle is read; zeros above.

    NaN where a is not positive definite. Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        return _results(_parts(parts, "Cholesky"))

    @staticmethod
    def evaluate(*parts: Array) -> CallResult:
        TpuCholesky.infer(*shapes_of(parts))
        return _value(_parted(Cholesky.evaluate(_joined(parts), attributes=CholeskyAttributes(lower=True)), parts))


@custom_call("InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular")
class InvertDiagBlocks:
    """The inverses of triangular matrices a [..., n, n]; the other triangle is not read, and zero in the result.

    Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        return _results(_parts(parts, "an inversion of diagonal blocks"))

    @staticmethod
    def evaluate(*parts: Array, attributes: object) -> CallResult:
        InvertDiagBlocks.infer(*shapes_of(parts))
        matrices = _joined(parts)
        is_lower = getattr(attributes, "custom_call_target", "") == "InvertDiagBlocksLowerTriangular"
        how = TriangularSolveAttributes(left_side=True, lower=is_lower, transpose_a="NO_TRANSPOSE")
        identity = np.broadcast_to(np.eye(matrices.shape[-1], dtype=matrices.dtype), matrices.shape)
        return _value(_parted(TriangularSolve.evaluate(matrices, identity, attributes=how), parts))


@custom_call("LuRealDecompositionBlock")
class LuBlock:
    """What LuDecomposition gives: factors, pivots and the permutation of a [..., m, n].

    Source: modules optimized for TPUs.
    """

    infer = LuDecomposition.infer
    evaluate = LuDecomposition.evaluate


@custom_call("LuComplexDecompositionBlock")
class ComplexLuBlock:
    """What LuDecomposition gives of complex matrices: the parts of the factors, pivots and the permutation.

    Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(real: Shape, imaginary: Shape) -> Shape:
        arrays = _matrices([real, imaginary], "LuComplexDecompositionBlock", square=False)
        _, *indices = parts_of(LuDecomposition.infer(arrays[0]))
        return TupleShape((*arrays, *indices))

    @staticmethod
    def evaluate(real: Array, imaginary: Array) -> tuple[Array, ...]:
        parts = [real, imaginary]
        ComplexLuBlock.infer(*shapes_of(parts))
        factors, *indices = LuDecomposition.evaluate(_joined(parts))
        return (*_parted(factors, parts), *indices)


@custom_call("QrDecompositionBlock")
class QrBlock:
    """What Qr gives: factors and taus of a [..., m, n]; of complex matrices first the parts of the factors.

    Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        arrays = _parts(parts, "QrDecompositionBlock", square=False)
        first = arrays[0]
        taus = ArrayShape(first.element_type, (*first.dimensions[:-2], min(first.dimensions[-2:])))
        return TupleShape((*arrays, *(taus for _ in arrays)))

    @staticmethod
    def evaluate(*parts: Array) -> tuple[Array, ...]:
        QrBlock.infer(*shapes_of(parts))
        factors, taus = Qr.evaluate(_joined(parts))
        return (*_parted(factors, parts), *_parted(taus, parts))


@custom_call("CompactWyHelper")
class CompactWy:
    """t = diag(m) (1 − n)⁻¹ of m [..., k, k], where n is the part of m above its diagonal.

    With m = −(1 + s) diag(taus) and s the part of vᴴ v above its diagonal, the product of the reflectors 1 − tau v vᴴ,
    one after the other, is 1 + v t vᴴ: the compact WY representation (Schreiber and Van Loan, 1989).
    Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        return _results(_parts(parts, "CompactWyHelper"))

    @staticmethod
    def evaluate(*parts: Array) -> CallResult:
        CompactWy.infer(*shapes_of(parts))
        matrices = _joined(parts)
        how = TriangularSolveAttributes(lower=False, unit_diagonal=True, transpose_a="NO_TRANSPOSE")
        diagonal = matrices * np.eye(matrices.shape[-1], dtype=matrices.dtype)
        return _value(_parted(TriangularSolve.evaluate(-matrices, diagonal, attributes=how), parts))


def _four_blocks(instruction: Instruction) -> str | None:
    return None if len(instruction.operands) == _BLOCKS else "it does not take the four blocks of real matrices"


@custom_call("EighTpu")
class EighBlocks:
    """(w of the upper half, w of the lower half, the blocks of vᵀ), with a v = v diag(w), of symmetric matrices.

    a [..., 2 n, 2 n] is given by its four blocks [..., n, n], row by row. Eigenvalues are in no order (XLA sorts them
    afterwards), but where a row and a column are zero off the diagonal, as those are with which matrices are padded,
    they are not touched: the eigenvalue is the one in that place, and the eigenvector that of the identity.
    Source: modules optimized for TPUs.
    """

    supports = staticmethod(_four_blocks)

    @staticmethod
    def infer(*blocks: Shape) -> Shape:
        arrays = _matrices(blocks, "EighTpu")
        values = ArrayShape(arrays[0].element_type, arrays[0].dimensions[:-1])
        return TupleShape((values, values, *arrays))

    @staticmethod
    def evaluate(*blocks: Array) -> tuple[Array, ...]:
        EighBlocks.infer(*shapes_of(blocks))
        half = blocks[0].shape[-1]
        upper_left, upper_right, lower_left, lower_right = map(widen, blocks)
        matrices = np.block([[upper_left, upper_right], [lower_left, lower_right]])
        flat = matrices.reshape(-1, 2 * half, 2 * half)
        values, vectors = np.zeros(flat.shape[:-1], flat.dtype), np.zeros_like(flat)
        for number, matrix in enumerate(flat):
            values[number], vectors[number] = _eigenpairs(matrix)
        entry = element_type_of(blocks[0].dtype)
        values = narrow(values, entry).reshape(matrices.shape[:-1])
        vectors = narrow(vectors, entry).reshape(matrices.shape)
        rows = (vectors[..., :half, :], vectors[..., half:, :])
        halves = [np.ascontiguousarray(part) for row in rows for part in (row[..., :half], row[..., half:])]
        return np.ascontiguousarray(values[..., :half]), np.ascontiguousarray(values[..., half:]), *halves


def _eigenpairs(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, and eigenvectors as rows; where a row and a column are zero but for the diagonal, it stays there."""
    values, vectors = matrix.diagonal().copy(), np.eye(len(matrix), dtype=matrix.dtype)
    others = matrix.astype(np.bool_)
    np.fill_diagonal(others, False)
    coupled = np.flatnonzero(others.any(0) | others.any(1))
    grid = np.ix_(coupled, coupled)
    try:
        hold_blas()
        values[coupled], columns = np.linalg.eigh(matrix[grid])
        vectors[grid] = columns.T
    except np.linalg.LinAlgError:
        values[coupled], vectors[grid] = np.nan, np.nan
    return values, vectors
