"""Fourier transforms by DUCC, which older versions of JAX called on CPUs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.common import array_shape
from hloexec.ops.policies.exact.fourier import fourier_transform
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_C2C, _C2R, _R2C = range(3)
_LARGEST_RANK = 64


@frozen
class _Descriptor:
    """What to transform; `scale` multiplies a transform without any factor of its own."""

    kind: int
    axes: tuple[int, ...]
    forward: bool
    scale: float

    @property
    def is_inverse(self) -> bool:
        return self.kind == _C2R or (self.kind == _C2C and not self.forward)


@custom_call("ducc_fft", is_reproducible=True)
class DuccFft:
    """The discrete Fourier transform of the second operand, along the axes that the first, a descriptor, says.

    The descriptor (u8) is a FlatBuffer: complex to complex (forward or backward), complex to real, or real to complex,
    and a factor, which is 1/N for inverses. Source: jaxlib, cpu/ducc_fft.fbs; DUCC, pypocketfft.
    """

    @staticmethod
    def evaluate(descriptor: Array, operand: Array, *, shape: ArrayShape, numerics: NumericsPolicy) -> Array:
        if descriptor.dtype != np.uint8 or descriptor.ndim != 1:
            raise EvaluationError(
                f"the descriptor of ducc_fft must be u8[n], but is {descriptor.dtype}{descriptor.shape}"
            )
        plan = _read(descriptor.tobytes())
        result = array_shape(shape, "the result of ducc_fft")
        axes = plan.axes
        if not axes or len(set(axes)) != len(axes) or not all(axis < operand.ndim == result.rank for axis in axes):
            raise EvaluationError(f"ducc_fft cannot transform dimensions {list(axes)} of an array of {operand.shape}")
        points = result.dimensions if plan.kind == _C2R else operand.shape
        transform = _transform_exactly if numerics.is_exact else _transform
        value = transform(operand, plan, [points[axis] for axis in axes])
        if value.shape != result.dimensions:
            raise EvaluationError(f"ducc_fft gives dimensions {list(value.shape)}, but is declared as {result}")
        return value.astype(result.element_type.storage)


def _transform(operand: Array, plan: _Descriptor, sizes: Sequence[int]) -> Array:
    """NumPy's "forward" norm divides forward transforms, "backward" the others: each time the other is taken."""
    complex_transform = np.fft.ifftn if plan.is_inverse else np.fft.fftn
    transform: Any = {_R2C: np.fft.rfftn, _C2R: np.fft.irfftn, _C2C: complex_transform}[plan.kind]
    with np.errstate(all="ignore"):
        value = transform(operand, sizes, plan.axes, norm="forward" if plan.is_inverse else "backward")
        return np.asarray(value if plan.scale == 1 else value * value.real.dtype.type(plan.scale))


def _transform_exactly(operand: Array, plan: _Descriptor, sizes: Sequence[int]) -> Array:
    """`_transform` by the transforms of the `exact` policy, whose inverses divide by the number of points."""
    last = range(operand.ndim - len(sizes), operand.ndim)
    moved = np.moveaxis(operand, plan.axes, last)
    kind = {_R2C: "RFFT", _C2R: "IRFFT", _C2C: "IFFT" if plan.is_inverse else "FFT"}[plan.kind]
    value = np.ascontiguousarray(np.moveaxis(fourier_transform(moved, kind, sizes), last, plan.axes))
    factor = plan.scale * prod(sizes) if plan.is_inverse else plan.scale
    # As real numbers: NumPy does not round products of complex ones alike on all processors.
    return np.asarray((value.view(np.float64) * factor).view(value.dtype))


# A FlatBuffer table starts with the distance back to its list of fields: u16 sizes, then where in the table each field
# is, in the order of the schema, 0 where it has its default. Vectors are reached through a relative offset.

_FIELDS = {"fft_type": 1, "axes": 5, "forward": 6, "scale": 7}


def _read(data: bytes) -> _Descriptor:
    try:
        table = _number(data, "<I", 0)
        fields = table - _number(data, "<i", table)
        count = (_number(data, "<H", fields) - 4) // 2

        def place(name: str) -> int:
            index = _FIELDS[name]
            offset = _number(data, "<H", fields + 4 + 2 * index) if index < count else 0
            return table + offset if offset else 0

        axes: tuple[int, ...] = ()
        if start := place("axes"):
            start += _number(data, "<I", start)
            length = _number(data, "<I", start)
            if length > _LARGEST_RANK:
                raise ValueError(f"{length} axes")
            axes = struct.unpack_from(f"<{length}I", data, start + 4)
        kind = data[place("fft_type")] if place("fft_type") else _C2C
        forward = bool(data[place("forward")]) if place("forward") else False
        scale = struct.unpack_from("<d", data, place("scale"))[0] if place("scale") else 0.0
        if kind not in (_C2C, _C2R, _R2C):
            raise ValueError(f"type {kind}")
    except (struct.error, IndexError, ValueError) as error:
        raise EvaluationError(f"the descriptor of ducc_fft cannot be read ({error})") from None
    return _Descriptor(kind, axes, forward, scale)


def _number(data: bytes, form: str, place: int) -> int:
    if place < 0:
        raise ValueError("an offset before the start")
    return int(struct.unpack_from(form, data, place)[0])
