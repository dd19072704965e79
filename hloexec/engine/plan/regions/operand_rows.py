"""The rows of an operand of a region: of an array whose first dimensions together are the rows."""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.common import copy_into, lies_in_order, strided


class Rows:
    """The rows of an array whose first dimensions, `length` of them, make `rows`; copies unless they lie in row-major
    order."""

    def __init__(self, array: Array, length: int, rows: int) -> None:
        self._length = length
        self._is_transposed = not (array.flags.c_contiguous or lies_in_order(array))
        if length > 1:
            merged = _merged(array, length, rows)
            if merged is not None:
                array, self._length = merged, 1
        self._array = array

    def part(self, start: int, stop: int) -> Array:
        part = self._array[start:stop] if self._length == 1 else _gathered(self._array, self._length, start, stop)
        return _in_order(part) if self._is_transposed else part


def _merged(array: Array, length: int, rows: int) -> Array | None:
    """The array with its first dimensions merged into one, where that is a view."""
    sizes = (rows, *array.shape[length:])
    if array.flags.c_contiguous:
        return array.reshape(sizes)
    expected = None
    stride = 0
    for size, step in zip(reversed(array.shape[:length]), reversed(array.strides[:length]), strict=True):
        if size == 1:
            continue
        if expected is None:
            stride = step
        elif step != expected:
            return None
        expected = step * size
    return strided(array, sizes, (stride, *array.strides[length:]))


def _gathered(array: Array, length: int, start: int, stop: int) -> Array:
    """Some rows of an array whose first dimensions are its prefix; a copy where they cannot be merged."""
    while length > 1:
        inner = prod(array.shape[1:length])
        first, last = start // inner, (stop - 1) // inner
        if first < last:
            break
        array, length, start, stop = array[first], length - 1, start - first * inner, stop - first * inner
    if length == 1:
        return array[start:stop]
    if inner > stop - start:
        # Two indices of the first dimension share the rows.
        middle = last * inner
        return np.concatenate([_gathered(array, length, start, middle), _gathered(array, length, middle, stop)])
    whole = array[first : last + 1].reshape(((last + 1 - first) * inner, *array.shape[length:]))
    return whole[start - first * inner : stop - first * inner]


def _in_order(block: Array) -> Array:
    """A copy in row-major order."""
    result = np.empty(block.shape, block.dtype)
    copy_into(result, block)
    return result
