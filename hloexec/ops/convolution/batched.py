"""Spatial dimensions along which each output meets one element of the window: they make a convolution of a product.

Compilers for TPUs write the batch dimensions of products as windows with a dilated input
(`size=16 stride=15 lhs_dilate=16`: output x meets tap x at element x), and dimensions that the kernel alone has as
windows in padding (`size=16 pad=15_15 rhs_reversal=1`). As groups, and as output features, they take one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import attrs
import numpy as np

from hloexec.core.ir import WindowDimension
from hloexec.core.values import Array
from hloexec.ops.convolution.algorithms import ConvolutionViews
from hloexec.ops.relations.parts import visits
from hloexec.ops.resources import empty


@lru_cache(maxsize=1024)
def _meetings(extent: int, size: int, dimension: WindowDimension) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The tap that each output meets, and the element of the input; None where an output meets none, or several."""
    if min(size, dimension.size) < 2:
        return None
    taps, elements = [-1] * size, [-1] * size
    for tap, visit in enumerate(visits(extent, size, dimension)):
        if visit is None:
            continue
        for place, element in zip(range(size)[visit[0]], range(extent)[visit[1]], strict=True):
            if taps[place] >= 0:
                return None
            taps[place], elements[place] = tap, element
    return None if min(taps) < 0 else (tuple(taps), tuple(elements))


def without_batches(work: ConvolutionViews) -> tuple[ConvolutionViews, Array] | None:
    """The convolution without such dimensions, which fills a result of its own, and that in the order of the result
    that was asked for; None where there are none."""
    inputs, kernel = work.inputs, work.kernel
    batches: list[int] = []
    copies: list[int] = []
    for axis, dimension in enumerate(work.dimensions):
        window = attrs.evolve(dimension, size=work.window[axis])
        meetings = _meetings(inputs.shape[axis + 2], work.sizes[axis], window)
        if meetings is None:
            continue
        taps, elements = meetings
        is_one = len({*elements}) == 1
        kernel = _taken(kernel, taps, axis + 1)
        inputs = _taken(inputs, elements[:1] if is_one else elements, axis + 2)
        (copies if is_one else batches).append(axis)
    if not (batches or copies):
        return None
    others = [axis for axis in range(len(work.dimensions)) if axis not in (*batches, *copies)]
    groups = kernel.shape[0] * prod(work.sizes[axis] for axis in batches)
    columns = kernel.shape[-1] * prod(work.sizes[axis] for axis in copies)
    extents, windows, sizes = (
        [along[axis] for axis in others] or [1] for along in (inputs.shape[2:], kernel.shape[1:], work.sizes)
    )
    dimensions = tuple(work.dimensions[axis] for axis in others) or (WindowDimension(1),)
    order = [0, *_after(2, batches), 1, *_after(2, others), *_after(2, copies), work.result.ndim - 1]
    inputs = inputs.transpose(order).reshape(groups, inputs.shape[1], *extents, inputs.shape[-1])
    kernel_order = [0, *_after(1, batches), *_after(1, others), kernel.ndim - 2, *_after(1, copies), kernel.ndim - 1]
    kernel = kernel.transpose(kernel_order).reshape(groups, *windows, kernel.shape[-2], columns)
    result = empty((groups, inputs.shape[1], *sizes, columns), work.result.dtype)
    rest = attrs.evolve(work, inputs=inputs, kernel=kernel, result=result, dimensions=dimensions)
    return rest, result.reshape([work.result.shape[axis] for axis in order]).transpose(np.argsort(order))


def _after(first: int, axes: Sequence[int]) -> list[int]:
    """The dimensions of an array in which spatial ones come after so many others."""
    return [first + axis for axis in axes]


def _taken(array: Array, places: Sequence[int], axis: int) -> Array:
    """Elements along a dimension; the array itself where these are all, in order."""
    return array if places == (*range(array.shape[axis]),) else array.take(places, axis)
