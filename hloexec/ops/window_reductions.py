"""reduce-window's kernels.

The taps of a window are visited one after the other (`windows.visits`): for all places of the window at once a tap is
one slice of the operand and one of the result, and padding is never stored. An associative and commutative operation
goes dimension by dimension instead, and long windows are put together from windows half as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from hloexec.dtypes import ElementType, element_type, element_type_of
from hloexec.ir import Window, WindowDimension
from hloexec.ops.common import narrow, widen
from hloexec.ops.exact.sums import add_pairs
from hloexec.ops.known_reducers import KnownReducer, accumulation_dtype
from hloexec.ops.registry import Callee
from hloexec.ops.windows import output_size, visits
from hloexec.values import Array

__all__ = ["reduce_windows_exactly", "reduce_windows_known", "reduce_windows_stepwise"]

_PAIRS = KnownReducer(
    combine=lambda x, y: np.stack(add_pairs((x[0], x[1]), (y[0], y[1]))), ufunc=None, identity=lambda dtype: -0.0
)
"""Addition of arrays that hold the high and the low parts of pairs along their first axis."""


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


def reduce_windows_exactly(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """`reduce_windows_known` that does not depend on the machine: sums as pairs of f64, rounded once; products in f64.

    Everything else, and integers, is exact as it is.
    """
    if reducer.ufunc is np.multiply and result_type.is_floating:
        wide = reduce_windows_known(_in_f64(array), _in_f64(init_value), window, reducer, element_type("f64"))
        return narrow(wide, result_type)
    if reducer.ufunc is not np.add or not (result_type.is_floating or result_type.is_complex):
        return reduce_windows_known(array, init_value, window, reducer, result_type)
    if result_type.is_complex:
        sums = [
            _summed_windows(part, init, window)
            for part, init in ((array.real, init_value.real), (array.imag, init_value.imag))
        ]
        result = np.empty(sums[0].shape, np.complex128)
        result.real, result.imag = sums
        return narrow(result, result_type)
    return narrow(_summed_windows(array, init_value, window), result_type)


def _in_f64(array: Array) -> Array:
    return np.asarray(widen(array).astype(np.float64))


def _summed_windows(array: Array, init_value: Array, window: Window) -> Array:
    wide = _in_f64(array)
    pairs = np.stack([wide, np.zeros_like(wide)])
    with np.errstate(all="ignore"):
        for axis, dimension in enumerate(window.dimensions, 1):
            if dimension != WindowDimension(size=1):
                pairs = _reduce_along(pairs.swapaxes(axis, -1), dimension, _PAIRS).swapaxes(axis, -1)
        high, low = add_pairs((pairs[0], pairs[1]), (_in_f64(init_value), 0.0))
    return np.asarray(high + low)


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
    if reducer.ufunc is not None and reducer.zero_wins is None:
        if dimension == WindowDimension(extent, padding_low=extent - 1):
            return _accumulate(array, reducer.ufunc)
        if dimension == WindowDimension(extent, padding_high=extent - 1):
            return _accumulate(array[..., ::-1], reducer.ufunc)[..., ::-1]
    seen = (places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    if places > 0 and dimension.size * places > 2 * dimension.size.bit_length() * seen:
        return _combine_doubled_windows(_laid_out(array, seen, dimension, reducer), dimension, reducer)
    total = np.full((*array.shape[:-1], places), reducer.identity(array.dtype), array.dtype)
    for visit in visits(extent, places, dimension):
        if visit is not None:
            place, element = visit
            total[..., place] = reducer.combine(total[..., place], array[..., element])
    return total


def _accumulate(array: Array, ufunc: np.ufunc) -> Array:
    result: Array = ufunc.accumulate(array, axis=-1, dtype=array.dtype)
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
