"""How the dimensions that windows slide over depend on one another, and windows that fit other sizes.

A window of few taps stays as it is: the result is then as much longer or shorter than the input as before. A window as
long as the input grows with it, as in cumulative sums, global pooling, products of matrices that are written as
convolutions, and gradients of kernels.
"""

from __future__ import annotations

from typing import Any

import attrs

from hloexec.core.ir import Window, WindowDimension
from hloexec.ops.relations.rules import Relating, Resizing


def _kind_of_window(window: WindowDimension, extent: int, places: int) -> str:
    """What the size of a window depends on: `extent` is that of the input, `places` that of the result."""
    size, padding = window.size, (window.padding_low, window.padding_high)
    is_plain = window.stride == window.base_dilation == window.window_dilation == 1
    if size == 1:
        return "fixed"
    if window.stride == size - 1 and window.base_dilation == size == extent == places:
        return "matched"
    if size == extent == places and is_plain and padding in ((size - 1, 0), (0, size - 1)):
        return "prefix"
    if is_plain and extent == 1 and padding == (size - 1, size - 1) and places == size:
        return "spread"
    if size == extent and places == 1 and padding == (0, 0):
        return "global"
    is_gradient = size > places and window.stride == window.base_dilation == 1
    return "gradient" if is_gradient else "fixed"


def relate_window(use: Relating, window: WindowDimension, extent: int, places: int, taps: int | None = None) -> None:
    """The input's and the result's dimension, and that of the window where it is one of an operand."""
    kind = _kind_of_window(window, use.size(extent), use.size(places))
    kernel = [] if taps is None else [taps]
    if kind in ("matched", "prefix"):
        for other in (places, *kernel):
            use.same([extent], [other])
    elif kind == "spread":
        use.same([places], kernel or [places])
        if taps is None:
            use.keep([places], "it is the size of a window")
    elif kind == "global":
        use.same([extent], kernel or [extent])
    elif kind == "gradient" and taps is not None:
        use.keep([places], "it is the number of places of a window")
        use.equation({extent: window.base_dilation, taps: -window.window_dilation})
    else:
        use.keep(kernel, "it is the size of a window")
        use.at_least(extent, 1)
        if window.stride == window.base_dilation:
            use.equation({extent: 1, places: -1})
        else:
            use.equation({extent: window.base_dilation, places: -window.stride})
        if window.stride == window.size and window.base_dilation == window.window_dilation == 1:
            use.relations.tiled[places] = extent


def _resized(window: WindowDimension, extents: tuple[int, int], places: tuple[int, int], taps: int) -> WindowDimension:
    """The window for new sizes of input and result, with so many taps where it is a kernel's."""
    kind = _kind_of_window(window, extents[0], places[0])
    size = extents[1] if kind in ("matched", "prefix", "global") else taps
    if size == window.size:
        return window
    if kind == "matched":
        return attrs.evolve(window, size=size, stride=max(1, size - 1), base_dilation=size)
    padding = [size - 1 if pad == window.size - 1 else pad for pad in (window.padding_low, window.padding_high)]
    if kind not in ("prefix", "spread"):
        padding = [window.padding_low, window.padding_high]
    return attrs.evolve(window, size=size, padding_low=padding[0], padding_high=padding[1])


def resized_windows(
    window: Window, extents: tuple[tuple[int, ...], tuple[int, ...]], places: tuple[tuple[int, ...], tuple[int, ...]]
) -> Window:
    """The windows of a reduction for new sizes, each given before and after."""
    sizes = zip(window.dimensions, zip(*extents, strict=True), zip(*places, strict=True), strict=True)
    return Window(tuple(_resized(entry, input_, output, entry.size) for entry, input_, output in sizes))


def relate_convolution(use: Relating) -> None:
    """Batch and features as in a product of matrices; groups of one feature each grow with the features."""
    attributes, labels = use.attributes, use.attributes.dim_labels
    lhs, rhs, result = use.operands[0].axes, use.operands[1].axes, use.result.axes
    batch, features = lhs[labels.input_batch_dimension], lhs[labels.input_feature_dimension]
    inputs, outputs = rhs[labels.kernel_input_feature_dimension], rhs[labels.kernel_output_feature_dimension]
    use.same([outputs], [result[labels.output_feature_dimension]])
    _relate_groups(use, attributes.feature_group_count, features, inputs, outputs)
    _relate_groups(use, attributes.batch_group_count, batch, result[labels.output_batch_dimension], outputs)
    spatial = zip(
        attributes.window.dimensions,
        labels.input_spatial_dimensions,
        labels.output_spatial_dimensions,
        labels.kernel_spatial_dimensions,
        strict=True,
    )
    for window, extent, places, taps in spatial:
        relate_window(use, window, lhs[extent], result[places], rhs[taps])


def _relate_groups(use: Relating, groups: int, whole: int, part: int, outputs: int) -> None:
    """A dimension that is divided into groups, what each has of it, and the outputs, which are divided as well."""
    if groups == 1:
        use.same([whole], [part])
    elif use.size(part) == 1:
        use.multiple(outputs, whole)
    else:
        use.multiple(whole, part)
        use.whole(outputs, use.size(outputs) // groups)


def resized_convolution(change: Resizing) -> dict[str, Any]:
    """The window and the numbers of groups of a convolution for new sizes."""
    attributes, labels = change.attributes, change.attributes.dim_labels
    lhs, rhs, result = change.sizes(0), change.sizes(1), change.result_sizes
    windows = []
    for number, window in enumerate(attributes.window.dimensions):
        extent, places = labels.input_spatial_dimensions[number], labels.output_spatial_dimensions[number]
        taps = rhs[1][labels.kernel_spatial_dimensions[number]]
        extents = lhs[0][extent], lhs[1][extent]
        windows.append(_resized(window, extents, (result[0][places], result[1][places]), taps))
    features = lhs[1][labels.input_feature_dimension] // max(1, rhs[1][labels.kernel_input_feature_dimension])
    batches = lhs[1][labels.input_batch_dimension] // max(1, result[1][labels.output_batch_dimension])
    return {
        "window": Window(tuple(windows)),
        "feature_group_count": features if attributes.feature_group_count > 1 else 1,
        "batch_group_count": batches if attributes.batch_group_count > 1 else 1,
    }
