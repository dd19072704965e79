"""Linear algebra: Fourier transforms, Cholesky decompositions and triangular systems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import element_type, element_type_of, part_type
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, same_type_ignoring_float_width, widen
from hloexec.ops.policies.exact.linear import fourier_transform
from hloexec.ops.policies.exact.linear import lower_factors as exact_lower_factors
from hloexec.ops.policies.exact.linear import solution as exact_solution
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating, Resizing, pointwise
from hloexec.ops.resources import empty, hold_blas, in_blocks, matmul
from hloexec.ops.traits import Probe, Rounding, Summation, Sums

_LARGEST_RANK = 3
_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "FFT": np.fft.fft,
    "IFFT": np.fft.ifft,
    "RFFT": np.fft.rfft,
    "IRFFT": np.fft.irfft,
}
_BLOCK_POINTS, _CONVERTED_POINTS = 1 << 17, 1 << 15
"""How much a thread transforms at a time; less where a whole block is converted to double precision and back, which
NumPy uses for single precision, but for the inverse."""


@frozen
class FftAttributes:
    """`fft_length` are the sizes of the transformed dimensions, for RFFT and IRFFT on the real side."""

    fft_type: str = attribute(Grammar.ENUM, choices=tuple(_TRANSFORMS))
    fft_length: Dimensions = attribute()


@opcode("fft", operands=1, attributes=FftAttributes, overwrites=0, rounding=Rounding.SUM)
class Fft:
    """The discrete Fourier transform over the last one to three dimensions, of any lengths.

    FFT: y[k] = sum of x[n] · exp(-2πi·k·n/N); IFFT: the inverse, divided by the number of points. RFFT takes reals and
    gives the first N // 2 + 1 points of the last dimension; IRFFT is its inverse. c64 and c128 (f32 and f64 on the real
    side). Under `exact` a real or an imaginary part is within 0.5 + 2⁻²⁰ ULP, plus 2⁻⁹⁰ of the sum of magnitudes.
    Source: XLA, Fft.
    """

    layout_of = (0,)
    sums = Sums.LINES
    probe = Probe(
        "T[2] fft(a0), fft_type=FFT, fft_length={2}",
        ("T[2]",),
        otherwise=Probe("C[2] fft(a0), fft_type=RFFT, fft_length={2}", ("T[2]",)),
    )

    @staticmethod
    def relate(use: Relating) -> None:
        operand, result = use.operands[0].axes, use.result.axes
        use.same(operand[:-1], result[:-1])
        length = use.attributes.fft_length[-1]
        if use.attributes.fft_type == "RFFT" and length % 2 == 0:
            use.equation({result[-1]: 2, operand[-1]: -1})
        elif use.attributes.fft_type == "IRFFT" and length % 2 == 0:
            use.equation({operand[-1]: 2, result[-1]: -1})
            use.whole(result[-1], length // 2)
        elif use.attributes.fft_type in ("RFFT", "IRFFT"):
            use.keep((operand[-1], result[-1]), "it is the odd length of a transform of reals")
        else:
            use.same(operand, result)

    @staticmethod
    def resize(change: Resizing) -> object:
        _, sizes = change.result_sizes if change.attributes.fft_type == "IRFFT" else change.sizes(0)
        return attrs.evolve(change.attributes, fft_length=sizes[len(sizes) - len(change.attributes.fft_length) :])

    @staticmethod
    def infer(operand: Shape, *, attributes: FftAttributes) -> Shape:
        array = array_shape(operand, "the operand of fft")
        lengths, kind = attributes.fft_length, attributes.fft_type
        require(
            1 <= len(lengths) <= min(_LARGEST_RANK, array.rank),
            f"fft transforms 1 to {_LARGEST_RANK} of its operand's dimensions, but fft_length has {len(lengths)} "
            f"and the operand is {array}",
        )
        types = ("f32", "f64") if kind == "RFFT" else ("c64", "c128")
        require(
            array.element_type.name in types,
            f"the operand of {kind} must be {' or '.join(types)}, but has shape {array}",
        )
        # A dimension of no points has no half either.
        half = lengths[-1] // 2 + 1 if lengths[-1] else 0
        expected = (*lengths[:-1], half if kind == "IRFFT" else lengths[-1])
        dimensions = array.dimensions[array.rank - len(lengths) :]
        require(
            dimensions == expected and all(length >= 0 for length in lengths),
            f"the last dimensions of the operand of {kind} must be {list(expected)}, but it has shape {array}",
        )
        result = part_type(array.element_type) if kind == "IRFFT" else array.element_type
        if kind == "RFFT":
            result = element_type(f"c{2 * result.bits}")
        sizes = (*array.dimensions[:-1], half if kind == "RFFT" else lengths[-1])
        return ArrayShape(result, sizes, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(
        operand: Array,
        *,
        attributes: FftAttributes,
        shape: ArrayShape,
        numerics: NumericsPolicy = REFERENCE,
        out: Array | None = None,
    ) -> Array:
        lengths = attributes.fft_length
        if operand.size == 0:
            return np.zeros((*operand.shape[:-1], shape.dimensions[-1]), shape.element_type.storage)
        if numerics.is_exact:
            return narrow(fourier_transform(operand, attributes.fft_type, lengths), shape.element_type)
        axes = tuple(range(operand.ndim - len(lengths), operand.ndim))
        for transform, axis, length in _passes(attributes.fft_type, axes, lengths):
            # What one transform makes, the next may overwrite.
            operand = out = _along(transform, operand, axis, length, out)
        return operand.astype(shape.element_type.storage, copy=False)

    @staticmethod
    def summed(*, attributes: FftAttributes) -> Summation:
        """Each of the log₂ N levels multiplies by a rounded root of unity, and adds."""
        terms = tuple(4 * math.log2(max(2, length)) for length in attributes.fft_length)
        return Summation(4 * math.log2(max(2, math.prod(attributes.fft_length))), transformed=terms)


_Transform = Callable[..., Array]


def _passes(kind: str, axes: Dimensions, lengths: Dimensions) -> list[tuple[_Transform, int, int]]:
    """The transforms along one dimension that make up one along several, in order, each with its length."""
    forward = kind in ("FFT", "RFFT")
    *others, last = zip(axes, lengths, strict=True)
    along: list[tuple[_Transform, int, int]] = [(np.fft.fft if forward else np.fft.ifft, *other) for other in others]
    whole = _TRANSFORMS[kind]
    # The real side of the last dimension is the first to be read or the last to be written.
    return [*along, (whole, *last)] if kind == "IRFFT" else [(whole, *last), *reversed(along)]


def _along(transform: _Transform, operand: Array, axis: int, length: int, out: Array | None) -> Array:
    """`transform(operand, length, axis)`, whose lines do not depend on one another, on all cores.

    In `out`, the operand's memory, if the result fits there.
    """
    sizes = list(operand.shape)
    sizes[axis] = length // 2 + 1 if transform is np.fft.rfft else length
    dtype = np.result_type(operand, np.complex64)
    kind = dtype.type(0).real.dtype if transform is np.fft.irfft else dtype
    fits = out is not None and out.flags.c_contiguous and out.shape == tuple(sizes) and out.dtype == kind
    result = out if out is not None and fits else empty(sizes, kind)
    # The longest other dimension is cut.
    cut = max((other for other in range(operand.ndim) if other != axis), key=sizes.__getitem__, default=None)
    if cut is None:
        return transform(operand, length, axis, out=result)
    before = (slice(None),) * cut
    is_converted = dtype == np.complex64 and transform in (np.fft.fft, np.fft.rfft)

    def work(start: int, stop: int) -> None:
        lines = (*before, slice(start, stop))
        if is_converted and transform is np.fft.fft:
            # NumPy would have an array in double precision for what it reads, and one for what it writes.
            wide = operand[lines].astype(np.complex128)
            result[lines] = transform(wide, length, axis, out=wide)
        else:
            transform(operand[lines], length, axis, out=result[lines])

    points = _CONVERTED_POINTS if is_converted else _BLOCK_POINTS
    in_blocks(work, sizes[cut], max(1, points * sizes[cut] // operand.size))
    return result


_BLOCK = 32
"""Rows that are substituted one by one; the rest of the work is matrix products."""


@frozen
class CholeskyAttributes:
    lower: bool = attribute(default=False)


@frozen
class TriangularSolveAttributes:
    left_side: bool = attribute(default=False)
    lower: bool = attribute(default=False)
    unit_diagonal: bool = attribute(default=False)
    transpose_a: str = attribute(
        Grammar.ENUM, default="TRANSPOSE_INVALID", choices=("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
    )


@opcode("cholesky", operands=1, attributes=CholeskyAttributes)
class Cholesky:
    """The triangular factor of Hermitian positive definite matrices: a = l lᴴ where `lower`, else a = uᴴ u.

    [batch..., n, n] of any floating or complex type; only the named triangle is read, the other of the result is zero.
    A matrix that is not positive definite gives NaN everywhere. Under `exact` f32 and narrower compute in f64 (see
    `ops.policies.exact.linear` for the bound). Source: XLA, Cholesky.
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
    narrower compute in f64 (see `ops.policies.exact.linear` for the bound). Source: XLA, TriangularSolve.
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


def _square(shape: Shape, subject: str) -> ArrayShape:
    array = array_shape(shape, subject)
    require(
        array.element_type.is_floating or array.element_type.is_complex,
        f"{subject} must be floating-point or complex, but has shape {array}",
    )
    require(
        array.rank >= 2 and array.dimensions[-1] == array.dimensions[-2],
        f"{subject} must hold square matrices, but has shape {array}",
    )
    return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)


def _adjoint(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2).conj()


def _lower_factors(matrices: Array) -> Array:
    """Lower factors of `[batch, n, n]`; LAPACK refuses a whole batch for one bad matrix, which is then halved."""
    if matrices.size == 0:
        return np.zeros_like(matrices)
    try:
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
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        if start:
            solution[..., start:stop, :] -= matmul(lower[..., start:stop, :start], solution[..., :start, :])
        for row in range(start, stop):
            current = solution[..., row, :]
            if row > start:
                products = matmul(lower[..., row, None, start:row], solution[..., start:row, :])
                current -= products[..., 0, :]
            if not unit_diagonal:
                current /= lower[..., row, row, None]
