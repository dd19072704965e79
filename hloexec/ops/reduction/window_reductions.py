"""reduce-window's kernels.

The taps of a window are processed one after the other (`windows.visits`): for all positions of the window at once, a
tap is one slice of the operand and one of the result, and padding is never stored. An associative and commutative
operation is instead applied dimension by dimension (`sliding`), a block of the result at a time, on all cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from hloexec.core.dtypes import ElementType, element_type, element_type_of
from hloexec.core.ir import Window
from hloexec.core.precision import part_type
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.common import narrow, widen
from hloexec.ops.complex_parts import from_parts
from hloexec.ops.movement.copying import in_order
from hloexec.ops.policies.exact.certainty import EXACT_UNITS, can_be_certain, doubtful, units_of
from hloexec.ops.policies.exact.doubled import rounded_to_odd
from hloexec.ops.policies.exact.sums import add_pairs
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, KnownReducer, accumulation_dtype, reduce_known
from hloexec.ops.reduction.sliding import Along, Combination
from hloexec.ops.registry import Callee
from hloexec.ops.signatures import called
from hloexec.ops.threads import for_each
from hloexec.ops.windows import output_size, part_of_windows, taps

BLOCK_BYTES = 256 << 10
"""A block of the operand or the result, whichever is larger."""
_LONG_LOOP = 64
"""Number of elements from which NumPy's innermost loop is long enough."""
_LONG_WINDOW = 8
"""Number of taps from which windows that share no element are worth an array of rows."""
_SUMMED_ALONE = 2000
"""Summing one window as pairs takes as long as about so many with all others."""
_PAIRS = KnownReducer(
    combine=lambda x, y: np.stack(add_pairs((x[0], x[1]), (y[0], y[1]))), ufunc=None, identity=lambda dtype: -0.0
)
"""Addition of arrays that hold the high and the low parts of pairs along their first axis."""


def reduce_windows_known(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """reduce-window of one array with an associative and commutative operation: one dimension at a time.

    Along each dimension the taps are combined one after the other, or in windows of 1, 2, 4, … taps (see `sliding`).
    Long windows that share no element are reduced as the rows of an array with more dimensions: NumPy does that faster,
    but for extrema of many elements, which cores share better block by block.
    """
    dtype = accumulation_dtype(element_type_of(array.dtype), result_type)
    init = widen(init_value).astype(dtype)
    is_neutral = init.tobytes() == np.array(reducer.identity(dtype), dtype).tobytes()
    along = list(map(Along.of, range(array.ndim), array.shape, window.dimensions))
    is_shared = reducer.ufunc is not np.add and array.nbytes > BLOCK_BYTES
    if are_apart(array.shape, window) and not is_shared:
        block = widen(in_order(array)).astype(dtype, copy=False)
        for one in along:
            block = one.laid_out(block, reducer.identity(dtype))
        rows = block.reshape([part for one in along for part in (one.places, one.dimension.size)])
        return reduce_known(rows, range(1, rows.ndim, 2), init_value, reducer, result_type)

    sizes = tuple(one.places for one in along)
    result = empty(sizes, result_type.storage)

    def fill(places: tuple[range, ...]) -> None:
        parts = [one.part(place) for one, place in zip(along, places, strict=True)]
        block = widen(array[tuple(elements for _, elements in parts)]).astype(dtype, copy=False)
        combine = _combination(reducer, block)
        for one, _ in parts:
            block = one.reduced(block, combine, reducer.identity)
        if not is_neutral:
            block = np.asarray(reducer.combine(block, np.broadcast_to(init, block.shape)))
        result[tuple(slice(place.start, place.stop) for place in places)] = narrow(block, result_type)

    with np.errstate(all="ignore"):
        for_each(fill, _blocks(array, sizes, along, dtype.itemsize))
    return result


def are_apart(shape: tuple[int, ...], window: Window) -> bool:
    """Whether the windows have no gaps, share no element, and are long enough to be worth an array of rows.

    No dimension is more than three times as long in these rows as in the array.
    """
    return max((one.size for one in window.dimensions), default=0) >= _LONG_WINDOW and all(
        one.stride == one.size <= extent
        and 0 <= min(one.padding_low, one.padding_high) <= max(one.padding_low, one.padding_high) < one.size
        and one.base_dilation == one.window_dilation == 1
        for extent, one in zip(shape, window.dimensions, strict=True)
    )


def _combination(reducer: KnownReducer, block: Array) -> Combination:
    """The operation as NumPy has it, where nothing in the block lets it differ; `combination(x, y, out)`."""
    ufunc = reducer.ufunc
    if ufunc is not None and (reducer.zero_wins is None or block.dtype.kind != "f" or not _has_negative_zero(block)):
        return ufunc
    return lambda x, y, out: np.copyto(out, reducer.combine(x, y))


def _has_negative_zero(block: Array) -> bool:
    integers = np.dtype(f"i{block.itemsize}")
    return bool(block.view(integers).min(initial=0) == np.iinfo(integers).min)


def _blocks(array: Array, sizes: tuple[int, ...], along: Sequence[Along], itemsize: int) -> list[tuple[range, ...]]:
    """Ranges of the result's dimensions for blocks that stay in a core's own cache, as far as windows may be cut."""
    steps = list(sizes)
    remaining = itemsize * max(array.size, prod(sizes))
    for axis in sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])):
        if remaining > BLOCK_BYTES and along[axis].may_be_cut and sizes[axis] > 1:
            inner = prod(
                size
                for size, stride in zip(sizes, array.strides, strict=True)
                if abs(stride) < abs(array.strides[axis])
            )
            steps[axis] = min(sizes[axis], max(1, BLOCK_BYTES * sizes[axis] // remaining, _LONG_LOOP // max(1, inner)))
            remaining = remaining * steps[axis] // sizes[axis]
    cuts = [
        [range(size)[start : start + step] for start in range(0, size, step or 1)]
        for size, step in zip(sizes, steps, strict=True)
    ]
    return list(product(*cuts))


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
        real = _summed_windows(array.real, init_value.real, window, part_type(result_type))
        imag = _summed_windows(array.imag, init_value.imag, window, part_type(result_type))
        return narrow(from_parts(real, imag), result_type)
    is_quick = can_be_certain(result_type) and array.dtype.itemsize <= 4
    if is_quick and all(dimension.base_dilation == 1 for dimension in window.dimensions):
        return narrow(_summed_quickly(array, init_value, window, reducer, result_type), result_type)
    return narrow(_summed_windows(array, init_value, window, result_type), result_type)


def _summed_quickly(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """The sums of windows of f32 numbers, or of narrower ones, in plain f64; as pairs, what needs more digits.

    A sum of magnitudes m, of depth d, is off by less than d · 2⁻⁵³ · m, and m in f32 by less than a half, or infinite.
    """
    value = reduce_windows_known(_in_f64(array), _in_f64(init_value), window, reducer, element_type("f64"))
    magnitudes = np.abs(widen(array)), np.abs(widen(init_value))
    size = reduce_windows_known(magnitudes[0], magnitudes[1], window, reducer, element_type("f32"))
    depth = 1 + _depth(array.shape, window)
    with np.errstate(all="ignore"):
        # Twice the bound, for the margin, and twice that, for the size.
        again = doubtful(value, size.astype(np.float64) * (depth * 2.0**-51), result_type)
        again |= np.isnan(value)
        if again.any():
            units, unit = map(units_of, magnitudes)
            smallest = reduce_windows_known(units, unit, window, KNOWN_REDUCERS["minimum"], element_type("f32"))
            again &= ~(size < EXACT_UNITS * smallest.astype(np.float64))
    if np.count_nonzero(again) * _SUMMED_ALONE > value.size:
        return _summed_windows(array, init_value, window, result_type)
    for place in np.argwhere(again).tolist():
        one = [range(number, number + 1) for number in place]
        parts = list(map(part_of_windows, array.shape, one, window.dimensions))
        dimensions = tuple(dimension for _, dimension in parts)
        seen = array[tuple(elements for elements, _ in parts)]
        value[tuple(place)] = _summed_windows(seen, init_value, Window(dimensions), result_type).item()
    return value


def _depth(shape: tuple[int, ...], window: Window) -> int:
    if are_apart(shape, window):
        return prod(one.size for one in window.dimensions)
    return sum(Along.of(0, extent, one).depth for extent, one in zip(shape, window.dimensions, strict=True))


def _in_f64(array: Array) -> Array:
    return np.asarray(widen(array).astype(np.float64))


def _summed_windows(array: Array, init_value: Array, window: Window, result_type: ElementType) -> Array:
    wide = _in_f64(array)
    pairs = np.stack([wide, np.zeros_like(wide)])
    with np.errstate(all="ignore"):
        for axis, dimension in enumerate(window.dimensions, 1):
            one = Along.of(axis, pairs.shape[axis], dimension)
            pairs = one.reduced(pairs, lambda x, y, out: np.copyto(out, _PAIRS.combine(x, y)), _PAIRS.identity)
        high, low = add_pairs((pairs[0], pairs[1]), (_in_f64(init_value), 0.0))
    return rounded_to_odd((high, low)) if can_be_certain(result_type) else np.asarray(high + low)


def reduce_windows_stepwise(
    arrays: Sequence[Array], init_values: Sequence[Array], window: Window, callee: Callee
) -> list[Array]:
    """reduce-window with any reducer: tap by tap in row-major order, in the declared types."""
    sizes = tuple(map(output_size, arrays[0].shape, window.dimensions))
    totals = [np.full(sizes, init_value, init_value.dtype) for init_value in init_values]
    for _, places, elements in taps(arrays[0].shape, sizes, window.dimensions):
        combined = called(callee, *(total[places] for total in totals), *(array[elements] for array in arrays))
        for total, value in zip(totals, combined, strict=True):
            total[places] = value
    return totals
