"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.precision import part_type
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require
from hloexec.ops.policies.exact.fourier import fourier_transform
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating, Resizing
from hloexec.ops.rounding import Rounding, Summation, Sums
from hloexec.ops.threads import in_blocks

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
    fft_length: tuple[int, ...] = attribute(Grammar.INT_LIST)


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
        with np.errstate(all="ignore"):
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


def _passes(kind: str, axes: tuple[int, ...], lengths: tuple[int, ...]) -> list[tuple[_Transform, int, int]]:
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
