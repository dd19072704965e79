"""Copies in row-major order.

NumPy copies along the result's last dimension. If the source is stored in the opposite order, each of its cache lines
is read once per element, and has left the cache before its next element is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd, prod
from operator import mul

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.threads import in_blocks

_LITTLE_BYTES = 1 << 12
"""Arrays of so few bytes take less time to copy than to look at."""
_SMALLEST_COLUMN = 256
"""Shorter ones are not worth a call each."""
_LINE = 64
"""Bytes of a cache line."""
_CACHE_WAYS, _CACHE_SPAN = 16, 1 << 16
"""The associativity of a second-level cache, and the distance in bytes of addresses in the same set."""
_TRANSLATED_PAGES, _PAGE = 2048, 4096
"""How many pages a processor's TLB holds, and the bytes of one."""
_FEW_SETS_STRIDE, _FEW_SETS_LINES = 1024, 32
"""Strides that are multiples of this one meet four sets of a first-level cache, which hold so many lines."""
_THREAD_ELEMENTS = 1 << 18
"""Number of elements worth another thread."""
_FILLED_ELEMENTS = 1 << 20
"""Number of equal elements worth another thread."""
_ZEROED_BYTES = 1 << 26
"""Larger blocks of zeros are left to the operating system, which allocates zero pages lazily: many may never be
read."""


def row_major(array: Array) -> Array:
    """A new array in row-major order with the same elements."""
    if array.nbytes <= _LITTLE_BYTES:
        return array.copy()
    if array.size and not any(array.strides):
        return filled(array.shape, array[(0,) * array.ndim])
    result = empty(array.shape, array.dtype)
    copy_into(result, array)
    return result


def copy_into(result: Array, array: Array) -> None:
    """Fill an array in row-major order with the elements of another of its shape and type."""
    merged = _merged(array)
    source = as_integers(merged)
    target = as_integers(result).reshape(merged.shape)
    if not _is_turned(merged):
        np.copyto(target, source)
        return
    row = merged.shape[-1]
    # As many elements of a row as fill a cache line: then as many lines of the source are read side by side, each to
    # its end.
    step = max(4, min(16, _LINE // merged.itemsize))

    def copy(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            columns = slice(first, min(first + step, stop))
            target[..., columns] = source[..., columns]

    in_blocks(copy, row, max(step, _THREAD_ELEMENTS * row // merged.size // step * step))


def as_integers(array: Array) -> Array:
    """The bits of the elements, as far as there are such integers: NumPy moves them faster than types not its own."""
    return array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array


def lies_in_order(array: Array) -> bool:
    """Whether the dimensions lie in memory from major to minor, forwards; steps of 0 may stand anywhere.

    Values that come from outside are made to: NumPy's functions round otherwise on memory that they go through
    backwards.
    """
    last = None
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0 or (size > 1 and stride and last is not None and stride >= last):
            return False
        if size > 1 and stride:
            last = stride
    return True


def in_order(array: Array, order: Sequence[int] | None = None) -> Array:
    """The array, if its elements lie in memory in this order of dimensions (None: as they stand) without gaps; a copy
    in which they do otherwise.

    What depends on the order of memory, as sums and products do, takes operands through here, so that it depends on
    the order that is asked for and not on how an operand came to be.
    """
    if order is None and array.flags.c_contiguous and 1 not in array.shape:
        return array
    transposed = array if order is None else array.transpose(order)
    if not transposed.flags.c_contiguous:
        transposed = row_major(transposed)
    elif 1 not in array.shape:
        return array
    else:
        # The strides of dimensions of one element may be anything, and some forms of kernels go by strides.
        transposed = transposed.reshape(-1).reshape(transposed.shape)
    return transposed if order is None else transposed.transpose([order.index(axis) for axis in range(array.ndim)])


def filled(sizes: tuple[int, ...], value: Array) -> Array:
    """A new array that holds a scalar everywhere."""
    value = np.asarray(value)
    nbytes = prod(sizes) * value.itemsize
    if nbytes > _ZEROED_BYTES and not any(value.tobytes()):
        return np.zeros(sizes, value.dtype)
    result = empty(sizes, value.dtype)
    if nbytes <= _LITTLE_BYTES:
        result.fill(value)
        return result
    flat = result.reshape(-1)
    in_blocks(lambda start, stop: flat[start:stop].fill(value), flat.size, _FILLED_ELEMENTS)
    return result


def reshaped(array: Array, sizes: tuple[int, ...]) -> Array:
    """The elements in row-major order in other dimensions: a view where strides allow one."""
    if not array.flags.c_contiguous and array.size:
        merged = _merged(array)
        # A result dimension that reaches across two that do not follow one another in memory needs a copy.
        if _is_turned(merged) and not set(accumulate(merged.shape, mul)) <= set(accumulate(sizes, mul)):
            array = row_major(array)
    return array.reshape(sizes)


def _is_turned(merged: Array) -> bool:
    """Whether NumPy, copying row by row, would find nothing in the cache that it read for the row before."""
    row = merged.shape[-1] if merged.ndim > 1 else 0
    if merged.itemsize > 8 or row < 2 or merged.size // row < _SMALLEST_COLUMN:
        return False
    stride = abs(merged.strides[-1])
    if all(abs(other) >= stride or other == 0 for other in merged.strides[:-1]):
        return False
    held = _CACHE_WAYS * (_CACHE_SPAN // max(_LINE, gcd(stride, _CACHE_SPAN)))
    meets_few_sets = row > _FEW_SETS_LINES and stride % _FEW_SETS_STRIDE == 0
    return meets_few_sets or row > held or (stride >= _PAGE and row > _TRANSLATED_PAGES)


def _merged(array: Array) -> Array:
    """A view in as few dimensions as strides allow, none of size 1."""
    sizes: list[int] = []
    last_stride = 0
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1:
            continue
        if sizes and stride * size == last_stride:
            sizes[-1] *= size
        else:
            sizes.append(size)
        last_stride = stride
    return array.reshape(sizes) if array.size else array
