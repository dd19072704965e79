"""Convolution with few features per group, such as depthwise convolution: elementwise products, added up.

A block of the result stays in a core's private cache while all taps are added to it. Padding is skipped, not
multiplied. Arrays of one image are viewed as `[spatial..., group, feature]`, whatever their order in memory.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import WindowDimension
from hloexec.core.values import Array
from hloexec.ops.common import narrow
from hloexec.ops.convolution.views import ConvolutionViews
from hloexec.ops.threads import for_each

_BLOCK_BYTES = 128 << 10
"""The sums of a block; its inputs, and products on their way to the sums, take as much each."""
_LONG_LOOP = 512
"""Number of elements from which NumPy's innermost loop is long enough."""


def by_channel(work: ConvolutionViews) -> None:
    """Fill `work.result`, tap by tap in row-major order of the window; the base dilation is 1."""
    kernel = np.moveaxis(work.prepared(work.kernel), 0, -3)[..., None, :, :, :]
    if work.has_groups_inside and len(work.sizes) > 1 and kernel.shape[-3] < _LONG_LOOP:
        # Columns and groups are one loop where the kernel has columns, too.
        kernel = np.repeat(kernel, work.sizes[-1], axis=-4)
    prepare = work.preparation(work.inputs)

    def add(place: tuple[slice, slice, range]) -> None:
        block, groups = work.block(*place), place[0]
        inputs = block.inputs if prepare is None else prepare(block.inputs)
        _add_taps(attrs.evolve(block, inputs=inputs), kernel[..., groups, :, :])

    for_each(add, _blocks(work))


def _add_taps(work: ConvolutionViews, kernel: Array) -> None:
    """Fill the result for one image; the kernel is prepared, `[window..., column, group, feature in, feature out]`."""
    inputs, result = _image(work.inputs), _image(work.result)
    products = _scratch(work, result.shape[:-1])
    for feature_out in range(result.shape[-1]):
        total = _scratch(work, result.shape[:-1])
        total[...] = 0
        for position, places, read in work.taps():
            for feature_in in range(inputs.shape[-1]):
                chosen = inputs[read][..., feature_in]
                factor = kernel[position][: chosen.shape[-2], :, feature_in, feature_out]
                part = products[places]
                np.multiply(chosen, factor, out=part)
                total[places] += part
        result[..., feature_out] = narrow(total, work.result_type)


def kernel_gradient_by_channel(work: ConvolutionViews) -> None:
    """Fill `work.result` where the window is larger than it, an image; only groups and places are many.

    For each place of the result, products over a block of an image are added up; then the sums of the blocks are.
    """
    # The same sums, seen as those of a convolution whose kernel is to be found: images are its features.
    moved = attrs.evolve(
        work,
        inputs=work.inputs.swapaxes(1, -1),
        kernel=np.moveaxis(work.result, 1, -2),
        result=np.moveaxis(work.kernel, -2, 1),
        dimensions=tuple(
            WindowDimension(size, d.window_dilation, d.padding_low, window_dilation=d.stride)
            for size, d in zip(work.sizes, work.dimensions, strict=True)
        ),
    )
    blocks = _blocks(moved)
    images = len(range(0, work.kernel.shape[0], blocks[0][0].stop))
    prepares = work.preparation(work.inputs), work.preparation(work.kernel)
    # [block, place..., group, batch, feature out]
    sums = np.zeros((len(blocks) // images, *np.moveaxis(moved.kernel, 0, -3).shape), work.accumulation_type.storage)

    def add(number: int) -> None:
        block, groups = moved.block(*blocks[number]), blocks[number][0]
        inputs, factors = (
            _image(array if prepare is None else prepare(array))
            for array, prepare in zip((block.inputs, block.result), prepares, strict=True)
        )
        products = _scratch(block, factors.shape[:-1])
        for position, places, read in block.taps():
            part = products[places]
            for batch, feature in product(range(inputs.shape[-1]), range(factors.shape[-1])):
                np.multiply(inputs[read][..., batch], factors[places][..., feature], out=part)
                line = np.add.reduce(part, axis=0)
                total = np.add.reduce(line, axis=tuple(range(line.ndim - 1)))
                where: tuple[Any, ...] = (number // images, *position, groups, batch, feature)
                sums[where] = total

    for_each(add, range(len(blocks)))
    total = narrow(np.add.reduce(sums, axis=0), work.result_type)
    work.result[...] = np.moveaxis(total, (-3, -2), (0, 1))


def _image(array: Array) -> Array:
    """`[spatial..., group, feature]` of `[group, 1, spatial..., feature]`."""
    return np.moveaxis(array[:, 0], 0, -2)


def _scratch(work: ConvolutionViews, shape: tuple[int, ...]) -> Array:
    """An array `[spatial..., group]` of the accumulation type that lies in memory as the input does."""
    dtype = work.accumulation_type.storage
    if work.has_groups_inside:
        return np.empty(shape, dtype)
    return np.moveaxis(np.empty((shape[-1], *shape[:-1]), dtype), 0, -1)


def _blocks(work: ConvolutionViews) -> list[tuple[slice, slice, range]]:
    """Groups, one image, and lines (along the first spatial dimension) of blocks that lie together in memory."""
    groups, batch, lines = work.result.shape[:3]
    image_bytes = groups * math.prod(work.result.shape[2:-1]) * work.accumulation_type.storage.itemsize
    line_step, group_step = lines, groups
    if work.has_groups_inside:
        line_step = min(lines, max(1, _BLOCK_BYTES * lines // image_bytes))
    else:
        group_step = min(groups, max(1, _BLOCK_BYTES * groups // image_bytes))
    return [
        (slice(group, min(groups, group + group_step)), slice(image, image + 1), range(lines)[line : line + line_step])
        for image, line, group in product(range(batch), range(0, lines, line_step), range(0, groups, group_step))
    ]
