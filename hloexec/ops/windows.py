"""The geometry of windows, which convolution, reduce-window and select-and-scatter share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import attrs

from hloexec.core.ir import Window, WindowDimension
from hloexec.ops.common import require


def require_window(window: Window, what: str) -> None:
    """Raise ShapeError unless sizes, strides and dilations are positive; `what` names the opcode."""
    for number, dimension in enumerate(window.dimensions):
        for field in ("size", "stride", "base_dilation", "window_dilation"):
            quantity, value = field.replace("_", " "), getattr(dimension, field)
            require(
                value > 0, f"the {quantity} of window dimension {number} of {what} must be positive, but is {value}"
            )


def output_size(extent: int, dimension: WindowDimension) -> int:
    """How many places a window takes in a dimension: those where it fits into the dilated and padded input.

    Source: XLA, operation semantics, "How the padding and dilation …" of ConvWithGeneralPadding.
    """
    if extent < 0:
        return extent
    dilated = (extent - 1) * dimension.base_dilation + 1 if extent else 0
    padded = dilated + dimension.padding_low + dimension.padding_high
    window = (dimension.size - 1) * dimension.window_dilation + 1
    return (padded - window) // dimension.stride + 1 if padded >= window else 0


def visits(extent: int, size: int, dimension: WindowDimension) -> Iterator[tuple[slice, slice] | None]:
    """For each tap of one dimension, the outputs it contributes to and the inputs it reads for them; None where none.

    Output x reads the dilated input at x·stride + tap·window_dilation - padding_low, which must be a multiple of
    base_dilation within the input: both x and the input index run in steps.
    """
    stride, base = dimension.stride, dimension.base_dilation
    common = math.gcd(stride, base)
    step, input_step = base // common, stride // common
    for tap in range(dimension.size):
        offset = tap * dimension.window_dilation - dimension.padding_low
        start = next((x for x in range(min(step, size)) if (x * stride + offset) % base == 0), None)
        if start is None:
            yield None
            continue
        index = (start * stride + offset) // base
        skipped = max(0, -(index // input_step))
        start, index = start + skipped * step, index + skipped * input_step
        count = min(-(-(size - start) // step), -(-(extent - index) // input_step))
        if count <= 0:
            yield None
            continue
        yield (
            slice(start, start + (count - 1) * step + 1, step),
            slice(index, index + (count - 1) * input_step + 1, input_step),
        )


def taps(
    extents: Sequence[int], sizes: Sequence[int], dimensions: Sequence[WindowDimension]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """For each tap that meets elements, in row-major order: its position, the outputs it contributes to, and the inputs
    it reads for them."""
    per_dimension = [
        [(tap, *visit) for tap, visit in enumerate(visits(extent, size, dimension)) if visit is not None]
        for extent, size, dimension in zip(extents, sizes, dimensions, strict=True)
    ]
    for combination in product(*per_dimension):
        yield (
            tuple(tap for tap, _, _ in combination),
            tuple(outputs for _, outputs, _ in combination),
            tuple(inputs for _, _, inputs in combination),
        )


def part_of_windows(extent: int, places: range, dimension: WindowDimension) -> tuple[slice, WindowDimension]:
    """The elements that windows at some places see, and the windows on those elements alone; the base dilation is 1."""
    start = places.start * dimension.stride - dimension.padding_low
    length = (len(places) - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    low = min(max(0, start), extent)
    high = max(low, min(extent, start + length))
    return slice(low, high), attrs.evolve(dimension, padding_low=low - start, padding_high=start + length - high)
