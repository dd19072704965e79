"""What nodes hold in a replay: mostly arrays that were recorded, and some of its own; and sets of many nodes."""

from __future__ import annotations

import math
from array import array as column
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.tools.diffing.recording.arrays import (
    Arrays,
    Digest,
    Window,
    digest_of,
    digest_with,
    is_good_base,
    is_worth_it,
)

_MANY = 32
"""Fewer are added sooner one by one."""


class Numbers:
    """A set of numbers that are not large: a byte for each that might be in it takes less, and is sooner copied."""

    def __init__(self, flags: bytearray | None = None) -> None:
        self._flags = bytearray() if flags is None else flags

    def __contains__(self, number: Any) -> bool:
        return number < len(self._flags) and bool(self._flags[number])

    def add(self, number: int) -> None:
        if number >= len(self._flags):
            self._flags.extend(bytes(number + 1 - len(self._flags)))
        self._flags[number] = True

    def update(self, numbers: Sequence[int]) -> None:
        """Add numbers that are in order."""
        if len(numbers) < _MANY:
            for number in numbers:
                self.add(number)
        else:
            self.add(numbers[-1])
            np.frombuffer(self._flags, np.bool_)[np.asarray(numbers)] = True

    def copy(self) -> Numbers:
        return Numbers(self._flags[:])


_OWN = -1


class Held(Protocol):
    """An array, and its digest."""

    @property
    def digest(self) -> Digest: ...

    @property
    def in_order(self) -> int:
        """Of its digest."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def array(self) -> Array: ...

    def window(self, window: Window) -> Array:
        """A part of the array."""


@frozen(eq=False)
class Kept:
    """An array that was recorded."""

    arrays: Arrays
    number: int

    @property
    def digest(self) -> Digest:
        return self.arrays.digest(self.number)

    @property
    def in_order(self) -> int:
        return self.arrays.digests.in_order(self.number)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays.shape(self.number)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays.dtype(self.number)

    def array(self) -> Array:
        return self.arrays[self.number]

    def window(self, window: Window) -> Array:
        return self.arrays.window(self.number, window)


@frozen(eq=False)
class Own:
    """An array that was not recorded."""

    digest: Digest
    value: Array

    @property
    def in_order(self) -> int:
        return self.digest.in_order

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    def array(self) -> Array:
        return self.value

    def window(self, window: Window) -> Array:
        return self.value[window]


def own(array: Array) -> Own:
    return Own(digest_of(array), array)


@define(eq=False)
class Windowed:
    """An array that differs from another one in a window.

    The whole is put together when it is asked for. Of several that follow from one another, only the last one that was
    asked for keeps it, so that walking along them costs no more than the windows.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    base: Array | Held | Windowed
    place: Window
    value: Array
    """What the window holds."""
    _whole: Array | None = attrs.field(default=None, init=False)

    def array(self) -> Array:
        return self._together().copy(order="K")

    def window(self, window: Window) -> Array:
        return self._together()[window].copy()

    def _together(self) -> Array:
        pending: list[Windowed] = []
        current: Array | Held | Windowed = self
        while isinstance(current, Windowed) and current._whole is None:
            pending.append(current)
            current = current.base
        if isinstance(current, Windowed):
            assert current._whole is not None
            whole, current._whole = current._whole, None
        else:
            base = current if isinstance(current, np.ndarray) else current.array()
            whole = base.copy(order="K" if all(base.strides) else "C")
        for entry in reversed(pending):
            whole[entry.place] = entry.value
        self._whole = whole
        return whole


@define(eq=False)
class Overwritten(Windowed):
    """What a node holds that is another value but for a window."""

    digest: Digest

    @property
    def in_order(self) -> int:
        return self.digest.in_order

    @classmethod
    def of(cls, base: Held, place: Window, value: Array) -> Overwritten | None:
        """None where a digest of the whole is needed, or a window is not worth it."""
        if value.dtype != base.dtype or not is_worth_it(math.prod(base.shape) * base.dtype.itemsize, value.nbytes):
            return None
        digest = digest_with(base.digest, base.shape, place, base.window(place), value)
        if not is_good_base(base.digest, digest):
            return None
        return cls(base.shape, base.dtype, base, place, value, digest)


class Holding:
    """What each node of a graph holds."""

    def __init__(self, arrays: Arrays, numbers: column[int], own: dict[int, Held] | None = None) -> None:
        self._arrays = arrays
        self._numbers = numbers
        """Of arrays that were recorded, by node."""
        self._own: dict[int, Held] = own or {}

    def __getitem__(self, node: int) -> Array:
        number = self._numbers[node]
        return self._own[node].array() if number == _OWN else self._arrays[number]

    def __setitem__(self, node: int, held: Held) -> None:
        if isinstance(held, Kept):
            self._numbers[node] = held.number
            self._own.pop(node, None)
        else:
            self._numbers[node] = _OWN
            self._own[node] = held

    def of(self, node: int) -> Held:
        number = self._numbers[node]
        return self._own[node] if number == _OWN else Kept(self._arrays, number)

    def number(self, node: int) -> int:
        """The number of an array that was recorded; of others, a negative one."""
        return self._numbers[node]

    def digest(self, node: int) -> Digest:
        return self.of(node).digest

    def in_any_order(self, node: int) -> int:
        """Of its digest."""
        number = self._numbers[node]
        return self._own[node].digest.in_any_order if number == _OWN else self._arrays.digests.in_any_order(number)

    def copy(self) -> Holding:
        return Holding(self._arrays, self._numbers[:], dict(self._own))
