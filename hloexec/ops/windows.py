"""The geometry of windows that convolution, reduce-window and select-and-scatter share."""

from __future__ import annotations

from hloexec.ir import Window, WindowDimension
from hloexec.ops.common import require

__all__ = ["output_size", "require_window"]


def require_window(window: Window, what: str) -> None:
    """Raise ShapeError unless sizes, strides and dilations are positive; `what` names the opcode."""
    for number, dimension in enumerate(window.dimensions):
        for quantity, value in (
            ("size", dimension.size),
            ("stride", dimension.stride),
            ("base dilation", dimension.base_dilation),
            ("window dilation", dimension.window_dilation),
        ):
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
