"""The shadows of the values that are alive, and the exact numbers of arrays that have them.

The shadows of the values that are alive, by the identity of their arrays.

A run hands on the same array object through tuples, calls, parameters and loops, so that what only renames a value
needs no work. A shadow is kept as its difference from the value, and goes when the array does; a value without an error
has none.

The exact numbers of an array, by ranges of its elements, for what computes block by block.

A block is converted to f64 when it is asked for; what a broadcast repeats is converted once.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import energy_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops import common
from hloexec.ops.common import row_major
from hloexec.ops.resources import in_blocks

if TYPE_CHECKING:
    from hloexec.tools.shadowing.computing.pending import Pending


Amounts: TypeAlias = dict[int, float]
"""By the number of a place."""


@frozen(eq=False)
class Blame:
    """Where the error of an array comes from."""

    shares: Mapping[int, float] = attrs.field(factory=dict)
    """By the number of the place that added it, its share of the sum of the squared errors; they add up to 1."""
    lost: Mapping[int, float] = attrs.field(factory=dict)
    """The same for elements that are infinite or NaN and should not be."""
    vanished: Mapping[int, float] = attrs.field(factory=dict)
    """By the number of the place, how many elements of a sample it has made zero, or taken a number from by absorption,
    that should not be so. They come to nothing unless something divides by them, or takes their logarithm."""
    unit: float = 0.0
    """The largest unit roundoff of the types that the error was made in."""


@define(eq=False)
class Shadow:
    """What the elements of an array would be without rounding."""

    _data: Array | None
    _is_whole: bool
    energy: float
    """The sum of the squares of the differences of finite elements; of what is pending, as a sample shows it."""
    lost: int
    """How many elements are infinite or NaN and should not be."""
    blame: Blame
    absorbed: Array | None = None
    """Of small arrays, where the error comes from absorption alone (`shadowing.places`); None where nowhere."""
    pending: Pending | None = None
    """How it is computed, as long as nothing has asked for it."""

    @property
    def data(self) -> Array:
        """The differences from the array, in f32 or (of f64) in f64; or, where `is_whole`, the numbers themselves in
        f64. Where a difference does not tell: beside infinities, and where it is too small for f32."""
        self.settle()
        assert self._data is not None
        return self._data

    @property
    def is_whole(self) -> bool:
        self.settle()
        return self._is_whole

    def settle(self, out: Array | None = None) -> None:
        """Compute what is pending; `out`, of one dimension, is filled with the exact numbers."""
        pending = self.pending
        if pending is None:
            return
        difference, blame = pending.computed(self, out)
        self._data, self._is_whole, self.energy, self.pending = (
            difference.data,
            difference.is_whole,
            difference.energy,
            None,
        )
        self.blame = blame or self.blame

    def exact(self, value: Array) -> Array:
        """The numbers in f64 (c128), for the array whose shadow it is."""
        if self.pending is not None:
            out = np.empty(value.size)
            self.settle(out)
            return self._data if self._is_whole and self._data is not None else out.reshape(value.shape)
        if self.is_whole:
            return self.data
        return _sum_of(value, self.data)


Shadows: TypeAlias = Sequence["Shadow | None"]
EXACT = None
"""What stands for the shadow of an array without an error."""


def wide(array: Array) -> Array:
    """Floats in f64, complex numbers in c128, others as they are."""
    return common.wide(array) if element_type_of(array.dtype).is_inexact else array


def widened(array: Array) -> Array:
    """`wide`, on all cores."""
    return _sum_of(array, None) if element_type_of(array.dtype).is_floating else wide(array)


def _sum_of(array: Array, data: Array | None) -> Array:
    """An array, and what is to be added to it, in f64 (c128)."""
    is_flat = array.flags.c_contiguous and (data is None or data.flags.c_contiguous)
    if array.size <= _BLOCK or not is_flat or array.dtype.kind == "c":
        wide_array = wide(array)
        return wide_array if data is None else np.add(wide_array, data.astype(wide_array.dtype, copy=False))
    if data is None and array.dtype == np.float64:
        return array
    out, flat = np.empty(array.size), array.reshape(-1)
    added = None if data is None else data.reshape(-1)

    def work(start: int, stop: int) -> None:
        if added is None:
            out[start:stop] = common.convertible(flat[start:stop])
        else:
            np.add(wide(flat[start:stop]), added[start:stop].astype(np.float64), out=out[start:stop])

    in_blocks(work, out.size, _BLOCK)
    return out.reshape(array.shape)


def finite_energy_of(array: Array) -> float:
    """The same of the finite elements."""
    energy = energy_of(array)
    return energy if math.isfinite(energy) else energy_of(wide(array)[np.isfinite(wide(array))])


_BLOCK = 1 << 15


class Store:
    """The shadows of arrays that are alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Shadow | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """How much memory the shadows take."""
        shadows = (entry[1] for entry in self._entries.values())
        return sum(shadow.data.nbytes for shadow in shadows if shadow is not None and shadow.pending is None)

    def knows(self, array: Array) -> bool:
        """Whether an array was seen before."""
        entry = self._entries.get(id(array))
        return entry is not None and entry[0]() is array

    def get(self, array: object) -> Shadow | None:
        """The shadow of an array; None where it has no error."""
        entry = self._entries.get(id(array))
        return None if entry is None or entry[0]() is not array else entry[1]

    def put(self, array: Array, shadow: Shadow | None) -> None:
        key = id(array)
        entries = self._entries

        def forget(reference: weakref.ref[Any]) -> None:
            entry = entries.get(key)
            if entry is not None and entry[0] is reference:
                del entries[key]

        entries[key] = weakref.ref(array, forget), shadow


BLOCK = 1 << 15
"""Elements that are computed together: several f64 arrays of so many stay in the cache, and each is small enough for
the allocator to hand out the same memory again."""
_LONGEST = 1 << 16
"""Elements of a row that is kept in f64 for all blocks."""

Ranges = Callable[[int, int], Array]
"""The exact numbers of the flat array from one place to another, at most `BLOCK` of them; where all are the same, one
alone."""


def exact_ranges(array: Array, shadow: Shadow | None) -> Ranges:
    """The exact numbers of an array that has this shadow."""
    data = None if shadow is None else shadow.data
    is_whole = shadow is not None and shadow.is_whole
    if array.size > 1 and 0 in array.strides:
        ranges = _repeating(array, data, is_whole)
        if ranges is not None:
            return ranges
    flat, kept = flattened(array), None if data is None else flattened(data)
    if flat.size == 1 and (kept is None or kept.size == 1):
        return partial(_same, _exact(flat, kept, is_whole))

    def exact(start: int, stop: int) -> Array:
        where = slice(start, stop)
        return _exact(
            flat if flat.size == 1 else flat[where],
            None if kept is None else kept if kept.size == 1 else kept[where],
            is_whole,
        )

    return exact


def _repeating(array: Array, data: Array | None, is_whole: bool) -> Ranges | None:
    """Those of what a broadcast has made of a smaller array, by adding dimensions before its own or behind them; None
    of other arrays."""
    repeats = [not stride for stride in array.strides]
    if data is not None:
        repeats = [ours and not stride for ours, stride in zip(repeats, data.strides, strict=True)]
    kinds = [repeat for repeat, size in zip(repeats, array.shape, strict=True) if size > 1]
    where = tuple(slice(1) if repeat else slice(None) for repeat in repeats)
    is_leading, is_trailing = kinds == sorted(kinds, reverse=True), kinds == sorted(kinds)
    if not any(kinds) or not (is_leading or is_trailing):
        return None
    compact = _exact(array[where].reshape(-1), None if data is None else data[where].reshape(-1), is_whole)
    if compact.size == 1:
        return partial(_same, compact)
    if is_trailing:
        return partial(_repeated, compact, array.size // compact.size)
    return partial(_tiled, np.resize(compact, BLOCK + compact.size), compact.size) if compact.size <= _LONGEST else None


def _same(number: Array, start: int, stop: int) -> Array:
    return number


def _tiled(row: Array, period: int, start: int, stop: int) -> Array:
    first = start % period
    return row[first : first + stop - start]


def _repeated(compact: Array, times: int, start: int, stop: int) -> Array:
    first, last = start // times, -(-stop // times)
    if times < BLOCK:
        return compact[first:last].repeat(times)[start - first * times : stop - first * times]
    repeated = np.empty(stop - start, compact.dtype)
    for number in range(first, last):
        repeated[max(0, number * times - start) : (number + 1) * times - start] = compact[number]
    return repeated


def flattened(array: Array) -> Array:
    """The elements in one dimension; a single one where all are the same in memory."""
    if not any(array.strides) and array.size:
        return array[(slice(1),) * array.ndim].reshape(-1)
    return row_by_row(array)


def row_by_row(array: Array) -> Array:
    """All elements in one dimension."""
    return (array if array.flags.c_contiguous else row_major(array)).reshape(-1)


def _exact(block: Array, data: Array | None, is_whole: bool) -> Array:
    if data is None:
        return wide(block)
    return data if is_whole else summed(block, data)


def summed(block: Array, data: Array) -> Array:
    """Elements and their differences added up, in f64 (c128)."""
    numbers = wide(block)
    # Converted first: NumPy would do so in pieces, through buffers, which takes it twice as long.
    data = data.astype(numbers.dtype, copy=False)
    if numbers.dtype == block.dtype or data.size > numbers.size:
        return np.asarray(numbers + data)
    numbers += data
    return numbers
