"""Calls that occur only in TPU dumps.

Asynchronous collectives as TPUs represent them: fusions that start one, continue it alongside other work, and finish
it.

Each of these fusions repeats the collective. The first wraps it in `AsyncCollectiveStart`; the last takes the result of
the first, and wraps the collective in `AsyncCollectiveDone`.

Computations that SparseCores run beside a TPU's other units.

The kernels of matrices that TPUs call once XLA has expanded decompositions and triangular systems.

Complex matrices are pairs of real and imaginary parts. Which factors these are shows in modules optimized for TPUs,
compared with XLA:CPU before the optimization; what is around the calls is XLA's, hlo/transforms/expanders.

Resizing of images, `[batch, height, width, channels]`, as TensorFlow and PyTorch call it on TPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hloexec.core.dtypes import element_type, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, TupleShape, parts_of
from hloexec.core.values import Array, Arrays
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import narrow, operand_shapes, require, widen
from hloexec.ops.library_calls.configs import CallResult, shapes_of
from hloexec.ops.library_calls.linalg.decompositions import LuDecomposition, Qr
from hloexec.ops.linalg import Cholesky, CholeskyAttributes, TriangularSolve, TriangularSolveAttributes
from hloexec.ops.policies.exact.sums import ExactMultiplier, exact_matrix_product
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.resources import hold_blas
from hloexec.ops.signatures import one_or_tuple


@custom_call("AsyncCollectiveStart")
class AsyncCollectiveStart:
    """(what the collective is given, what it gives, state...), for the collective that is the operand.

    Source: modules optimized for TPUs, where the fusion around it aliases its first result with its operand.
    """

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        (collective,) = computation.operands_of(instruction)
        if not collective.operands:
            raise UnsupportedError(
                f"%{instruction.name} in computation {computation.name} starts %{collective.name}, which is no "
                "collective but given; take the computation as a whole"
            )
        return (collective.operands[0], collective.name)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        shape = instruction.shape
        if len(instruction.operands) == 1 and isinstance(shape, TupleShape) and len(shape.elements) >= 2:
            return None
        return "it does not wrap one collective"


@custom_call("AsyncCollectiveDone")
class AsyncCollectiveDone:
    """What the collective gave when it began: the second operand. The first is what it was given, then follow the
    collective once more, and its state.

    Source: modules optimized for TPUs, where the fusion around it aliases its result with this operand.
    """

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        return (instruction.operands[1],)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return None if len(instruction.operands) >= 2 else "it ends no collective that AsyncCollectiveStart began"


@custom_call("TODO(b/522284627)")
class SparseCoreCall:
    """What the computation that it calls gives for the operands: a scatter or a gather, say.

    The name is the one that TPUs' compiler gives to these calls. Source: modules optimized for TPUs.
    """

    @staticmethod
    def invokes(instruction: Instruction) -> str:
        (name,) = instruction.attributes.called_computations
        return str(name)

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return None if len(instruction.attributes.called_computations) == 1 else "it does not call one computation"


_BLOCKS = 4


def _matrices(operands: Sequence[Shape], subject: str, *, square: bool = True) -> list[ArrayShape]:
    """The shapes of real matrices, all alike."""
    arrays = operand_shapes(operands, subject)
    first = arrays[0]
    require(
        first.rank >= 2 and first.element_type.is_floating and all(array.compatible(first) for array in arrays),
        f"{subject} takes floating-point matrices, all of one shape, but is given {', '.join(map(str, arrays))}",
    )
    require(
        not square or first.dimensions[-1] == first.dimensions[-2], f"{subject} takes square matrices, but not {first}"
    )
    return [array.plain for array in arrays]


def _parts(operands: Sequence[Shape], subject: str, *, square: bool = True) -> list[ArrayShape]:
    """The shapes of a real matrix, or of the two parts of a complex one."""
    require(
        len(operands) in (1, 2), f"{subject} takes a matrix or its two parts, but is given {len(operands)} operands"
    )
    return _matrices(operands, subject, square=square)


def _joined(parts: Sequence[Array]) -> Array:
    """A complex array of its parts; a real one is itself."""
    widened = [widen(part) for part in parts]
    return widened[0] if len(parts) == 1 else widened[0] + 1j * widened[1]


def _by_parts(compute: Callable[[Array], Array], parts: Sequence[Array]) -> CallResult:
    """What a function of matrices gives for a real one, or for the two parts of a complex one."""
    found = _parted(compute(_joined(parts)), parts)
    return found[0] if len(found) == 1 else found


def _parted(array: Array, like: Sequence[Array]) -> Arrays:
    """What `_joined` joined, in the element type of the parts."""
    entry = element_type_of(like[0].dtype)
    parts = [array] if len(like) == 1 else [array.real, array.imag]
    return tuple(narrow(np.ascontiguousarray(part), entry) for part in parts)


@custom_call("Cholesky")
class TpuCholesky:
    """l with a = l lᴴ of positive definite matrices a [..., n, n], whose lower triangle is read; zeros above.

    NaN where a is not positive definite. Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        return one_or_tuple(_parts(parts, "Cholesky"))

    @staticmethod
    def evaluate(*parts: Array) -> CallResult:
        TpuCholesky.infer(*shapes_of(parts))
        return _by_parts(partial(Cholesky.evaluate, attributes=CholeskyAttributes(lower=True)), parts)


@custom_call("InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular")
class InvertDiagBlocks:
    """The inverses of triangular matrices a [..., n, n]; the other triangle is not read, and zero in the result.

    Source: modules optimized for TPUs.
    """

    @staticmethod
    def infer(*parts: Shape) -> Shape:
        return one_or_tuple(_parts(parts, "an inversion of diagonal blocks"))

    @staticmethod
    def evaluate(*parts: Array, attributes: object) -> CallResult:
        InvertDiagBlocks.infer(*shapes_of(parts))
        is_lower = getattr(attributes, "custom_call_target", "") == "InvertDiagBlocksLowerTriangular"
        how = TriangularSolveAttributes(left_side=True, lower=is_lower, transpose_a="NO_TRANSPOSE")

        def inverses(matrices: Array) -> Array:
            identity = np.broadcast_to(np.eye(matrices.shape[-1], dtype=matrices.dtype), matrices.shape)
            return TriangularSolve.evaluate(matrices, identity, attributes=how)

        return _by_parts(inverses, parts)


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
    def evaluate(real: Array, imaginary: Array) -> Arrays:
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
    def evaluate(*parts: Array) -> Arrays:
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
        return one_or_tuple(_parts(parts, "CompactWyHelper"))

    @staticmethod
    def evaluate(*parts: Array) -> CallResult:
        CompactWy.infer(*shapes_of(parts))
        how = TriangularSolveAttributes(lower=False, unit_diagonal=True, transpose_a="NO_TRANSPOSE")

        def factors(matrices: Array) -> Array:
            diagonal = matrices * np.eye(matrices.shape[-1], dtype=matrices.dtype)
            return TriangularSolve.evaluate(-matrices, diagonal, attributes=how)

        return _by_parts(factors, parts)


@custom_call("EighTpu")
class EighBlocks:
    """(w of the upper half, w of the lower half, the blocks of vᵀ), with a v = v diag(w), of symmetric matrices.

    a [..., 2 n, 2 n] is given by its four blocks [..., n, n], row by row. Eigenvalues are in no order (XLA sorts them
    afterwards), but where a row and a column are zero off the diagonal, as those are with which matrices are padded,
    they are not touched: the eigenvalue is the one in that place, and the eigenvector that of the identity.
    Source: modules optimized for TPUs.
    """

    supports = staticmethod(
        lambda call: None if len(call.operands) == _BLOCKS else "it does not take the four blocks of real matrices"
    )

    @staticmethod
    def infer(*blocks: Shape) -> Shape:
        arrays = _matrices(blocks, "EighTpu")
        values = ArrayShape(arrays[0].element_type, arrays[0].dimensions[:-1])
        return TupleShape((values, values, *arrays))

    @staticmethod
    def evaluate(*blocks: Array) -> Arrays:
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


_RANK = 4
_PRODUCT = ExactMultiplier(lambda operand: (operand,))
_CONFIG = re.compile(r'"?([01])([01])"?')


def _flags(instruction: Instruction) -> tuple[bool, bool]:
    """align_corners and half_pixel_centers."""
    digits = _CONFIG.fullmatch((instruction.backend_config or "").strip())
    if digits is None:
        raise UnsupportedError(
            f"its backend_config must be two digits, align_corners and half_pixel_centers, but is "
            f"{instruction.backend_config!r}"
        )
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.rank != _RANK:
        raise UnsupportedError(f"its result is {shape} and no [batch, height, width, channels]")
    averages = instruction.attributes.custom_call_target != "ResizeNearest"
    if averages and not shape.element_type.is_floating:
        raise UnsupportedError(f"its result is {shape}, but sums of weighted elements are floating-point numbers")
    return digits[1] == "1", digits[2] == "1"


@custom_call("ResizeNearest", config=_flags, is_reproducible=True)
class ResizeNearest:
    """out[b, y, x, c] = operand[b, y', x', c], with y' = (y + h)·s rounded down, with aligned corners to the nearest.

    The config is that of ResizeBilinear.
    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, config: tuple[bool, bool]) -> Array:
        _check(operand, shape)
        rows, columns = (
            _nearest(size, result, *config)
            for size, result in zip(operand.shape[1:3], shape.dimensions[1:3], strict=True)
        )
        return operand[:, rows[:, None], columns]


def _check(operand: Array, shape: ArrayShape) -> None:
    same = operand.ndim == _RANK and (operand.shape[0], operand.shape[3]) == (shape.dimensions[0], shape.dimensions[3])
    if not same or 0 in operand.shape[1:3] or 0 in shape.dimensions[1:3]:
        raise EvaluationError(f"an image of dimensions {list(operand.shape)} cannot be resized to {shape}")


def _weighted(matrix: Array, values: Array, axis: int, numerics: NumericsPolicy) -> Array:
    """The product of a matrix and an array along one of its axes; under `exact` in f64, whatever the BLAS."""
    if not numerics.is_exact:
        return np.moveaxis(np.tensordot(matrix.astype(values.dtype), values, (1, axis)), 0, axis)
    columns = np.moveaxis(values, axis, 0)
    product = exact_matrix_product(matrix, columns.reshape(len(columns), -1), element_type("f64"), _PRODUCT)
    return np.moveaxis(product.reshape(len(matrix), *columns.shape[1:]), 0, axis)


def _samples(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    """The coordinates of the result's elements in the operand, not yet shifted back by half a pixel."""
    ratio = (size - 1) / (result - 1) if align_corners and result > 1 else size / result
    index = np.arange(result, dtype=np.float32) + np.float32(0.5 if half_pixel_centers else 0)
    return np.asarray(index * np.float32(ratio))


def _nearest(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    samples = _samples(size, result, align_corners, half_pixel_centers)
    chosen = np.floor(samples + np.float32(0.5)) if align_corners else np.floor(samples)
    return np.clip(chosen, 0, size - 1).astype(np.int64)


def _bilinear_weights(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    """[result, size]: two neighbours' weights per row, which add up to 1."""
    samples = _samples(size, result, align_corners, half_pixel_centers)
    place = np.clip(samples - np.float32(0.5 if half_pixel_centers else 0), 0, size - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    part = (place - low).astype(np.float32)
    weights = np.zeros((result, size), np.float32)
    rows = np.arange(result)
    weights[rows, low] = 1 - part
    weights[rows, high] += part
    return weights


class _WeightedResize:
    """The operand times the weights of its rows, then of its columns; rounded once."""

    weights: Callable[[int, int, bool, bool], Array]
    """From the sizes before and after, align_corners and half_pixel_centers to a matrix [after, before]."""
    is_gradient = False

    @classmethod
    def evaluate(
        cls, operand: Array, *, shape: ArrayShape, config: tuple[bool, bool], numerics: NumericsPolicy
    ) -> Array:
        _check(operand, shape)
        values = widen(operand)
        for axis in (1, 2):
            size, result = operand.shape[axis], shape.dimensions[axis]
            matrix = cls.weights(result, size, *config).T if cls.is_gradient else cls.weights(size, result, *config)
            values = _weighted(matrix, values, axis, numerics)
        return narrow(np.ascontiguousarray(values), shape.element_type)


@custom_call("ResizeBilinear", config=_flags, is_reproducible=True)
class ResizeBilinear(_WeightedResize):
    """out[b, y, x, c] = linear interpolation of the operand at the coordinates (y', x'), which are clamped to its
    edges.

    backend_config is two digits: align_corners and half_pixel_centers. y' = (y + h)·s − h, where h is ½ with half pixel
    centers, else 0, and s is the ratio of the heights, of the heights less 1 with aligned corners; computed in f32.
    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    weights = staticmethod(_bilinear_weights)


@custom_call("ResizeBilinearGrad", config=_flags, is_reproducible=True)
class ResizeBilinearGrad(ResizeBilinear):
    """The gradient of ResizeBilinear: each element of the operand goes, with its weights, to where it came from.

    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    is_gradient = True


@custom_call("ResizeNearestGrad", config=_flags, is_reproducible=True)
class ResizeNearestGrad(_WeightedResize):
    """The gradient of ResizeNearest: each element of the operand is added to where it came from.

    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    weights = staticmethod(lambda size, *others: np.eye(size, dtype=np.float32)[_nearest(size, *others)])
    is_gradient = True
