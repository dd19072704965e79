"""Geometry that attributes carry: windows, padding, slices, convolution dimension numbers.

Names follow XLA's text: the input of a windowed operation is `lhs` (base), the window is `rhs`.
"""

from __future__ import annotations

from hloexec.core.structs import frozen
from hloexec.core.values import Ints


@frozen
class WindowDimension:
    """One dimension of a window.

    The input is dilated by `base_dilation` (`lhs_dilate`), then padded (negative padding crops), then visited every
    `stride` elements by a window of `size` taps that lie `window_dilation` (`rhs_dilate`) apart, in reversed order
    where `window_reversal`.
    """

    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    window_reversal: bool = False


@frozen
class Window:
    """A window, one entry per dimension; empty for an operation without window."""

    dimensions: tuple[WindowDimension, ...] = ()


@frozen
class PaddingDimension:
    """Padding of one dimension: `low_high_interior`; low and high may be negative (they crop)."""

    edge_padding_low: int
    edge_padding_high: int
    interior_padding: int = 0


@frozen
class SliceDimension:
    """The half-open range `[start:limit:stride]` of one dimension."""

    start: int
    limit: int
    stride: int = 1


@frozen
class ConvolutionDimensionNumbers:
    """Which dimension plays which role, e.g. `b01f_01io->b01f`.

    A dimension labelled `?` has no role (custom calls use it); the rank of each side is kept because of it.
    """

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: Ints
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: Ints
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: Ints
    input_rank: int
    kernel_rank: int
    output_rank: int
