"""reduce-window's kernels.

The taps of a window are visited one after the other (`windows.visits`): for all places of the window at once a tap is
one slice of the operand and one of the result, and padding is never stored. An associative and commutative operation
goes dimension by dimension instead, and long windows are put together from windows half as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from hloexec.dtypes import ElementType, element_type_of
from hloexec.ir import Window, WindowDimension
from hloexec.ops.common import narrow, widen
from hloexec.ops.known_reducers import KnownReducer, accumulation_dtype
from hloexec.ops.registry import Callee
from hloexec.ops.windows import output_size, visits
from hloexec.values import Array

__all__ = ["reduce_windows_known", "reduce_windows_stepwise"]


def reduce_windows_known(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """reduce-window of one array with an associative and commutative operation: one dimension at a time."""
    dtype = accumulation_dtype(element_type_of(array.dtype), result_type)
    result = widen(array).astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        for axis, dimension in enumerate(window.dimensions):
            if dimension != WindowDimension(size=1):
                result = _reduce_along(result.swapaxes(axis, -1), dimension, reducer).swapaxes(axis, -1)
        init = np.broadcast_to(widen(init_value).astype(dtype), result.shape)
        return narrow(np.asarray(reducer.combine(result, init)), result_type)


def reduce_windows_stepwise(
    arrays: Sequence[Array], init_values: Sequence[Array], window: Window, callee: Callee
) -> list[Array]:
    """reduce-window with any reducer: tap by tap in row-major order, in the declared types."""
    sizes = [output_size(n, dimension) for n, dimension in zip(arrays[0].shape, window.dimensions, strict=True)]
    totals = [np.full(sizes, init_value, init_value.dtype) for init_value in init_values]
    taps = [
        [tap for tap in visits(extent, size, dimension) if tap is not None]
        for extent, size, dimension in zip(arrays[0].shape, sizes, window.dimensions, strict=True)
    ]
    for tap in product(*taps):
        places, elements = tuple(place for place, _ in tap), tuple(element for _, element in tap)
        combined = callee(*(total[places] for total in totals), *(array[elements] for array in arrays))
        for total, value in zip(totals, combined if isinstance(combined, tuple) else (combined,), strict=True):
            total[places] = value
    return totals


def _reduce_along(array: Array, dimension: WindowDimension, reducer: KnownReducer) -> Array:
    """Reduce windows along the last axis."""
    extent = array.shape[-1]
    places = output_size(extent, dimension)
    if dimension == WindowDimension(extent, padding_low=extent - 1) and reducer.zero_wins is None:
        return _accumulate(array, reducer)
    if dimension == WindowDimension(extent, padding_high=extent - 1) and reducer.zero_wins is None:
        return _accumulate(array[..., ::-1], reducer)[..., ::-1]
    seen = (places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    if places > 0 and dimension.size * places > 2 * dimension.size.bit_length() * seen:
        return _combine_doubled_windows(_laid_out(array, seen, dimension, reducer), dimension, reducer)
    total = np.full((*array.shape[:-1], places), reducer.identity(array.dtype), array.dtype)
    for visit in visits(extent, places, dimension):
        if visit is not None:
            place, element = visit
            total[..., place] = reducer.combine(total[..., place], array[..., element])
    return total


def _accumulate(array: Array, reducer: KnownReducer) -> Array:
    result: Array = reducer.ufunc.accumulate(array, axis=-1, dtype=array.dtype)
    return result


def _laid_out(array: Array, length: int, dimension: WindowDimension, reducer: KnownReducer) -> Array:
    """What the windows see: the dilated operand cut to `length`, the identity where there is no element."""
    layout = np.full((*array.shape[:-1], length), reducer.identity(array.dtype), array.dtype)
    everything = WindowDimension(
        1, padding_low=dimension.padding_low, padding_high=dimension.padding_high, base_dilation=dimension.base_dilation
    )
    (visit,) = visits(array.shape[-1], length, everything)
    if visit is not None:
        place, element = visit
        layout[..., place] = array[..., element]
    return layout


def _combine_doubled_windows(layout: Array, dimension: WindowDimension, reducer: KnownReducer) -> Array:
    """Windows of any size, put together from windows of 1, 2, 4, … taps: about 2·log2(size) operations an element."""
    size, dilation = dimension.size, dimension.window_dilation
    places = layout.shape[-1] - (size - 1) * dilation
    doubled, total, covered = layout, None, 0
    for bit in range(size.bit_length()):
        taps = 1 << bit
        if size & taps:
            part = doubled[..., covered * dilation : covered * dilation + places : dimension.stride]
            total = part if total is None else reducer.combine(total, part)
            covered += taps
        if 2 * taps <= size:
            doubled = reducer.combine(doubled[..., : -taps * dilation], doubled[..., taps * dilation :])
    assert total is not None
    return total
