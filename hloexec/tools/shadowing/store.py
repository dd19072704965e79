"""The shadows of the values that are alive, by the identity of their arrays.

A run hands on the same array object through tuples, calls, parameters and loops, so that what only renames a value
needs no work. A shadow is kept as its difference from the value, and goes when the array does; a value without an error
has none.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.numerics.statistics import energy_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops import common
from hloexec.ops.resources import in_blocks

if TYPE_CHECKING:
    from hloexec.tools.shadowing.computing.pending import Pending


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
    """Of small arrays, where the error comes from absorption alone (`shadowing.kinds`); None where nowhere."""
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
        found, blame = pending.computed(self, out)
        self._data, self._is_whole, self.energy, self.pending = found.data, found.is_whole, found.energy, None
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
        found = wide(array)
        return found if data is None else np.add(found, data.astype(found.dtype, copy=False))
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
    found = energy_of(array)
    return found if math.isfinite(found) else energy_of(wide(array)[np.isfinite(wide(array))])


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
        found = self._entries.get(id(array))
        return found is not None and found[0]() is array

    def get(self, array: object) -> Shadow | None:
        """The shadow of an array; None where it has no error."""
        found = self._entries.get(id(array))
        return None if found is None or found[0]() is not array else found[1]

    def put(self, array: Array, shadow: Shadow | None) -> None:
        key = id(array)
        entries = self._entries

        def forget(reference: weakref.ref[Any]) -> None:
            found = entries.get(key)
            if found is not None and found[0] is reference:
                del entries[key]

        entries[key] = weakref.ref(array, forget), shadow
