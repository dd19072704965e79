"""Shared by the convolution algorithms: views of the operands, and the patches of the input.

Every algorithm works on views with one order of dimensions, and writes to a view of the result. Padding is stored for a
block at a time, dilation of the input never: a convolution on a dilated input is split into convolutions on the
original input, one per phase of the dilation, each with the taps that meet elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.blas import matmul
from hloexec.ops.common import narrow, strided, widen
from hloexec.ops.contraction.matrix_product import (
    FloatMultiplier,
    OperandSplit,
    default_multiplier,
    float_accumulation,
)
from hloexec.ops.windows import part_of_windows, taps


@frozen
class ConvolutionViews:
    """One convolution on views."""

    inputs: Array
    """`[group, batch, spatial..., feature in]`, with one spatial dimension at least."""
    kernel: Array
    """`[group, window..., feature in, feature out]`, reversed dimensions flipped."""
    result: Array
    """`[group, batch, spatial..., feature out]` in the result's storage type, to be filled."""
    dimensions: tuple[WindowDimension, ...]
    """Their `padding_high` and `window_reversal` count no more: `result` and `kernel` are as these make them."""
    result_type: ElementType
    f32_split: OperandSplit | None = None
    is_exact: bool = False
    """Whether each output is one sum, rounded once, whatever that costs."""

    @cached_property
    def accumulation_type(self) -> ElementType:
        """The element type in which products are added up."""
        if self.result_type.is_integral:
            return element_type_of(self.result_type.compute)
        types = (element_type_of(self.inputs.dtype), element_type_of(self.kernel.dtype), self.result_type)
        return element_type_of(float_accumulation(*types))

    def preparation(self, operand: Array) -> Callable[[Array], Array] | None:
        """What is done to an operand, elementwise, before it is multiplied in the accumulation type."""
        accumulation = self.accumulation_type.storage
        if self.result_type.is_integral:
            return None if operand.dtype == accumulation else lambda block: widen(block).astype(accumulation)
        multiplier = default_multiplier(self.inputs, self.kernel, self.accumulation_type, self.f32_split)
        assert isinstance(multiplier, FloatMultiplier)
        if multiplier.split is None and operand.dtype == accumulation:
            return None
        return lambda block: multiplier.prepare(block)[0]

    def prepared(self, operand: Array) -> Array:
        prepare = self.preparation(operand)
        return operand if prepare is None else prepare(operand)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the result's spatial dimensions."""
        return tuple(self.result.shape[2:-1])

    @property
    def window(self) -> tuple[int, ...]:
        return tuple(self.kernel.shape[1:-2])

    @property
    def has_features_inside(self) -> bool:
        """Whether features of the input lie closer in memory than neighbours in space."""
        return self._lies_inside(-1)

    @property
    def has_groups_inside(self) -> bool:
        """Whether groups of the input lie closer in memory than neighbours in space."""
        return self._lies_inside(0)

    def _lies_inside(self, axis: int) -> bool:
        shape, strides = self.inputs.shape[2:-1], self.inputs.strides[2:-1]
        spatial = (abs(stride) for size, stride in zip(shape, strides, strict=True) if size > 1)
        stride = self.inputs.strides[axis]
        return abs(stride) <= min(spatial, default=abs(stride))

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap that meets elements: its position, the outputs it adds to, and the inputs it reads for them."""
        return taps(self.inputs.shape[2:-1], self.sizes, self.dimensions)

    def block(self, groups: slice, images: slice, lines: range) -> ConvolutionViews:
        """The convolution that fills part of the result; lines are those of the first spatial dimension.

        Of the input no more is left than is read for them. The base dilation is 1.
        """
        window = attrs.evolve(self.dimensions[0], size=self.window[0])
        elements, first = part_of_windows(self.inputs.shape[2], lines, window)
        return attrs.evolve(
            self,
            inputs=self.inputs[groups, images, elements],
            kernel=self.kernel[groups],
            result=self.result[groups, images, lines.start : lines.stop],
            dimensions=(first, *self.dimensions[1:]),
        )

    def seen(
        self,
        images: slice,
        places: Sequence[range],
        taps: Sequence[range],
        features: slice,
        prepare: Callable[[Array], Array] | None,
        *,
        keeps_order: bool = True,
    ) -> Array:
        """What windows see: a view `[group, image, place..., tap..., feature]` of the input, or of a block of it.

        The base dilation is 1. Where windows reach into the padding, or with `prepare`, which is applied elementwise
        and keeps zeros, the part of the input that they read is copied, zeros around it: where it `keeps_order`, with
        its dimensions in the order in which they lie in memory.
        """
        block = self.inputs[:, images, ..., features]
        shape, target, source = [], [], []
        for extent, dimension, place, tap in zip(block.shape[2:-1], self.dimensions, places, taps, strict=True):
            start = place.start * dimension.stride + tap.start * dimension.window_dilation - dimension.padding_low
            length = (len(place) - 1) * dimension.stride + (len(tap) - 1) * dimension.window_dilation + 1
            low = min(max(0, start), extent)
            high = max(low, min(extent, start + length))
            shape.append(length)
            source.append(slice(low, high))
            target.append(slice(low - start, high - start))
        every = slice(None)
        seen = block[(every, every, *source)]
        if prepare is not None:
            seen = prepare(seen)
        if any(place.stop - place.start < length for place, length in zip(target, shape, strict=True)):
            sizes = (*block.shape[:2], *shape, block.shape[-1])
            padded = _zeros_like(seen, sizes) if keeps_order else np.zeros(sizes, seen.dtype)
            padded[(every, every, *target)] = seen
            seen = padded
        return _windows(seen, places, taps, self.dimensions)


def _zeros_like(array: Array, sizes: tuple[int, ...]) -> Array:
    """Zeros of other sizes, the dimensions in memory in the order of the array's."""
    order, places = _memory_order(sizes, array.strides)
    return np.zeros([sizes[dimension] for dimension in order], array.dtype).transpose(places)


@lru_cache(maxsize=1024)
def _memory_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The dimensions from the outermost to the innermost, and the place of each among them.

    Those of size 1, which may lie anywhere, are the outermost: arrays are in row-major order then more often, of which
    NumPy makes views faster.
    """
    order = sorted(range(len(strides)), key=lambda dimension: (sizes[dimension] != 1, -abs(strides[dimension])))
    return order, sorted(range(len(strides)), key=order.__getitem__)


def _windows(
    padded: Array, places: Sequence[range], taps: Sequence[range], dimensions: Sequence[WindowDimension]
) -> Array:
    """Windows as a view `[group, image, place..., tap..., feature]` of what they see."""
    group, image, *strides, feature = padded.strides
    shape = (*padded.shape[:2], *map(len, places), *map(len, taps), padded.shape[-1])
    moves = (stride * dimension.stride for stride, dimension in zip(strides, dimensions, strict=True))
    shifts = (stride * dimension.window_dilation for stride, dimension in zip(strides, dimensions, strict=True))
    return strided(padded, shape, (group, image, *moves, *shifts, feature))


def store(lhs: Array, rhs: Array, target: Array, result_type: ElementType) -> None:
    """Fill `target[group, row..., column]` with `lhs[group, row, length]` times `rhs[group, length, column]`."""
    if merges_into_rows(target[0]) and target.dtype == lhs.dtype:
        matmul(lhs, rhs, target.reshape(*lhs.shape[:2], rhs.shape[-1]))
    else:
        target[...] = narrow(matmul(lhs, rhs), result_type).reshape(target.shape)


def merges_into_rows(view: Array) -> bool:
    """Whether all dimensions but the last become one without a copy."""
    counted = [(size, stride) for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(counted))


def phases(work: ConvolutionViews) -> Iterator[ConvolutionViews]:
    """The convolutions on the undilated input that together fill the result; where no tap meets an element, zeros.

    Output x and tap t meet an element of the input dilated by d where x·stride + t·window_dilation − padding_low is a
    multiple of d: along each dimension, every so many outputs share every so many taps.
    """
    if all(dimension.base_dilation == 1 for dimension in work.dimensions):
        yield work
        return
    per_dimension = [
        list(_phases_along(dimension, size, taps))
        for dimension, size, taps in zip(work.dimensions, work.sizes, work.window, strict=True)
    ]
    every = slice(None)
    for combination in product(*per_dimension):
        places = tuple(place for place, _, _ in combination)
        taps: tuple[Any, ...] = tuple(tap for _, tap, _ in combination)
        part = work.result[(every, every, *places)]
        if not part.size:
            continue
        kernel = work.kernel[(every, *taps)]
        if math.prod(kernel.shape[1:-2]) == 0:
            part[...] = 0
            continue
        yield attrs.evolve(work, kernel=kernel, result=part, dimensions=tuple(found for _, _, found in combination))


def _phases_along(dimension: WindowDimension, size: int, taps: int) -> Iterator[tuple[slice, slice, WindowDimension]]:
    """The outputs of a phase, its taps, and the window that they are on the undilated input."""
    base = dimension.base_dilation
    period = base // math.gcd(dimension.stride, base)
    spacing = base // math.gcd(dimension.window_dilation, base)
    for phase in range(min(period, size)):
        offsets = (
            phase * dimension.stride + tap * dimension.window_dilation - dimension.padding_low for tap in range(taps)
        )
        first, offset = next(((tap, offset) for tap, offset in enumerate(offsets) if offset % base == 0), (taps, 0))
        met = len(range(first, taps, spacing))
        window = WindowDimension(
            max(1, met),
            stride=dimension.stride * period // base,
            padding_low=-(offset // base),
            window_dilation=dimension.window_dilation * spacing // base,
        )
        yield slice(phase, None, period), slice(first, None, spacing), window
