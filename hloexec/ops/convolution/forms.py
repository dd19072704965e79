"""The algorithms for convolution, and the choice between them.

The choice depends on shapes, strides and element types alone. Most convolutions become products of matrices whose rows
are patches: the elements that a window covers, all taps side by side. Patches are copied for a block of outputs at a
time, so that they stay in the cache until they are multiplied; they are not copied if they are contiguous already (one
tap).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from hloexec.core.ir import WindowDimension
from hloexec.core.values import Array
from hloexec.ops.common import narrow
from hloexec.ops.contraction.matrix_product import default_multiplier, exactly, matrix_product, multiply_into
from hloexec.ops.contraction.product_blocks import LEAST_SHARED
from hloexec.ops.convolution.by_channel import by_channel, kernel_gradient_by_channel
from hloexec.ops.convolution.kernel_gradient import kernel_gradient
from hloexec.ops.convolution.views import ConvolutionViews, merges_into_rows, phases, store
from hloexec.ops.threads import for_each
from hloexec.ops.windows import visits

_BLOCK_BYTES = 1 << 20
"""Patches of one block: they stay in a core's own cache until they are multiplied."""
_BLOCK_ROWS, _LARGE_BLOCK_ROWS = 192, 256
"""Rows that keep BLAS busy, even if their patches take more; more where it copies more of the kernel for each block."""
_COPIED_ELEMENTS = 1 << 16
"""Elements of the kernel that are more."""
_BLOCK_COLUMNS = 256
"""Columns that do, where there are too few rows for several blocks."""
_FEW_BLOCKS = 4
"""So many keep cores busy that have more to do than to call for it."""
_PHASE_PRODUCTS = 1 << 25
"""Products of a phase of a dilated input that all cores share evenly; smaller phases take a core each."""
_LARGE_KERNEL = 1 << 20
"""Kernels with this many elements are copied at negligible cost only if it is done for many outputs at once."""
_STORAGE_BLOCK_BYTES = 32 << 20
"""Patches of one block that are prepared for multiplication only afterwards."""


def convolve(work: ConvolutionViews) -> None:
    """Fill `work.result`."""
    if not work.result.size:
        return
    if not work.inputs.size or not work.kernel.size:
        work.result[...] = 0
        return
    with np.errstate(all="ignore"):
        # The largest first, so that no core is left with one that the others don't share.
        parts = sorted(phases(work), key=_products, reverse=True)
        if any(_products(part) >= _PHASE_PRODUCTS for part in parts):
            for part in parts:
                _convolve_undilated(part)
        else:
            for_each(_convolve_undilated, parts)


def _products(work: ConvolutionViews) -> int:
    """How many products make the result, of padding, too."""
    return work.result.size * work.kernel[0, ..., 0].size


def _convolve_undilated(work: ConvolutionViews) -> None:
    groups, batch = work.inputs.shape[:2]
    features, outputs = work.kernel.shape[-2:]
    taps, places = math.prod(work.window), math.prod(work.sizes)
    matrices = None if work.is_exact else _matrices(work)
    if matrices is not None:
        inputs, kernel, result = matrices
        usual = default_multiplier(inputs, kernel, work.result_type, work.f32_split)
        multiply_into(result, inputs, kernel, work.result_type, usual)
    elif work.is_exact:
        _by_patches_in_storage_type(work)
    elif groups > 1 and features * outputs <= 4 and taps <= places:
        by_channel(work)
    elif 2 * _pairs(work) < places * taps:
        _by_taps(work)
    elif work.result_type.is_integral:
        _by_patches_in_storage_type(work)
    elif taps <= places:
        _by_patches(work)
    elif groups > 1 and batch * outputs <= 4:
        kernel_gradient_by_channel(work)
    else:
        kernel_gradient(work)


def _matrices(work: ConvolutionViews) -> tuple[Array, Array, Array] | None:
    """Inputs, kernel and result as matrices, where each output is one input times a kernel that is large.

    BLAS copies the kernel into an order of its own once for all outputs then, not once for each block of them.
    """
    is_one_to_one = all(
        dimension.size == dimension.stride == 1 and dimension.padding_low == dimension.padding_high == 0
        for dimension in work.dimensions
    )
    if work.kernel.shape[0] > 1 or not is_one_to_one or work.kernel.size < _LARGE_KERNEL:
        return None
    inputs, result = work.inputs[0], work.result[0]
    order = sorted(range(inputs.ndim - 1), key=lambda dim: -abs(inputs.strides[dim]))
    views = [view.transpose(*order, -1) for view in (inputs, result)]
    if not all(map(merges_into_rows, views)):
        return None
    rows = math.prod(inputs.shape[:-1])
    lhs, target = (view.reshape(rows, view.shape[-1]) for view in views)
    return lhs, work.kernel.reshape(work.kernel.shape[-2:]), target


def _pairs(work: ConvolutionViews) -> int:
    """How many pairs of output and tap there are that read the input."""
    return math.prod(map(_pairs_along, work.inputs.shape[2:-1], work.sizes, work.dimensions))


@lru_cache(maxsize=1024)
def _pairs_along(extent: int, size: int, dimension: WindowDimension) -> int:
    return sum(len(range(size)[visit[0]]) for visit in visits(extent, size, dimension) if visit is not None)


def _by_patches(work: ConvolutionViews) -> None:
    """One matrix product per block of outputs, on all cores."""
    (groups, batch), (features, outputs) = work.inputs.shape[:2], work.kernel.shape[-2:]
    length, rank = math.prod(work.window) * features, len(work.sizes)
    places, taps = tuple(range(1, rank + 2)), tuple(range(rank + 2, 2 * rank + 2))
    has_rows = work.has_features_inside
    if has_rows:
        kernel, order = work.kernel, (0, *places, *taps, 2 * rank + 2)
    else:
        # Neighbours in memory stay neighbours, and patches are the columns of a matrix.
        kernel, order = np.moveaxis(work.kernel, -2, 1), (0, 2 * rank + 2, *taps, *places)
    weights = work.prepared(kernel.reshape(groups, length, outputs))
    prepare = work.preparation(work.inputs)
    every_tap = [range(size) for size in work.window]
    row_bytes = groups * length * work.accumulation_type.storage.itemsize

    def multiply(block: tuple[slice, range, slice]) -> None:
        images, lines, columns = block
        seen = work.seen(images, [lines, *map(range, work.sizes[1:])], every_tap, slice(None), prepare)
        target = work.result[:, images, lines.start : lines.stop, ..., columns]
        rows = math.prod(target.shape[1:-1])
        if has_rows:
            patches = seen.transpose(order).reshape(groups, rows, length)
        else:
            patches = seen.transpose(order).reshape(groups, length, rows).swapaxes(-1, -2)
        store(patches, weights[..., columns], target, work.result_type)

    least = _LARGE_BLOCK_ROWS if length * outputs >= _COPIED_ELEMENTS else _BLOCK_ROWS
    rows = batch * math.prod(work.sizes)
    most = -(-rows // _FEW_BLOCKS) if rows * length * outputs >= LEAST_SHARED // 2 else rows
    for_each(multiply, _blocks(work, max(least, min(_BLOCK_BYTES // row_bytes, most))))


def _blocks(work: ConvolutionViews, rows: int) -> list[tuple[slice, range, slice]]:
    """The images, lines (along the first spatial dimension) and output features of blocks of about `rows` outputs."""
    batch, lines = work.result.shape[1:3]
    outputs = work.result.shape[-1]
    per_line = math.prod(work.sizes[1:])
    line_step, image_step, column_step = min(lines, max(1, rows // per_line)), 1, outputs
    if line_step < lines:
        line_step = -(-lines // -(-lines // line_step))
    elif work.has_features_inside:
        blocks = -(-batch // max(1, rows // (per_line * lines)))
        # An even number, so that none is left to a core alone.
        image_step = -(-batch // max(1, blocks // 2 * 2))
    if image_step >= batch and line_step == lines:
        image_step, column_step = batch, max(_BLOCK_COLUMNS, -(-outputs // 2))
    return [
        (slice(b, b + image_step), range(lines)[y : y + line_step], slice(o, o + column_step))
        for b, y, o in product(range(0, batch, image_step), range(0, lines, line_step), range(0, outputs, column_step))
    ]


def _by_patches_in_storage_type(work: ConvolutionViews) -> None:
    """Patches in the input's own type, prepared for multiplication, whichever it is, block by block."""
    groups, (features, outputs) = work.kernel.shape[0], work.kernel.shape[-2:]
    length = math.prod(work.window) * features
    weights = work.kernel.reshape(groups, length, outputs)
    every_tap = [range(size) for size in work.window]
    for images, lines, _ in _blocks(work, max(1, _STORAGE_BLOCK_BYTES // (groups * length * work.inputs.itemsize))):
        seen = work.seen(images, [lines, *map(range, work.sizes[1:])], every_tap, slice(None), None)
        target = work.result[:, images, lines.start : lines.stop]
        patches = seen.reshape(groups, math.prod(target.shape[1:-1]), length)
        usual = default_multiplier(patches, weights, work.result_type, work.f32_split)
        multiplier = exactly(usual) if work.is_exact else usual
        target[...] = matrix_product(patches, weights, work.result_type, multiplier).reshape(target.shape)


def _by_taps(work: ConvolutionViews) -> None:
    """One matrix product per tap, for the outputs only that read the input at it, added up."""
    groups, outputs = work.kernel.shape[0], work.kernel.shape[-1]
    accumulation = work.accumulation_type
    total = np.zeros(work.result.shape, accumulation.storage)
    for position, places, read in work.taps():
        chosen = work.inputs[(slice(None), slice(None), *read)]
        rows = chosen.reshape(groups, -1, chosen.shape[-1])
        tap: tuple[Any, ...] = (slice(None), *position)
        weights = work.kernel[tap]
        multiplier = default_multiplier(rows, weights, accumulation, work.f32_split)
        product = matrix_product(rows, weights, accumulation, multiplier)
        total[(slice(None), slice(None), *places)] += product.reshape(*chosen.shape[:-1], outputs)
    work.result[...] = narrow(total, work.result_type)
