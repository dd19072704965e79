"""The buffers of a kernel, and what addresses mean: the number of a buffer, and bytes from its start.

An address is an integer of 64 bits, so that pointers are computed with as the kernel says. Each buffer knows which of
its elements something has written, and of those that can be written, which program instance wrote or read them: so it
shows whether the result depends on the order in which instances run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.structs import define
from hloexec.core.values import Array

_SHIFT = 40
_START = 1 << _SHIFT - 1
"""Where a buffer starts among the addresses with its number: those before it are its own, too."""
NOBODY, SEVERAL, ATOMICALLY = -1, -2, -3
"""Of an element, in place of an instance: none, or more than one, or any of them by an atomic operation."""


@define(eq=False)
class Buffer:
    """An operand or a result, in one dimension."""

    name: str
    array: Array
    defined: Array
    """For each element, whether something has written it."""
    writers: Array | None = None
    """For each element, the number of the instance that wrote it; None of what no instance may write."""
    readers: Array | None = None

    @property
    def size(self) -> int:
        return self.array.size

    def bits(self, places: Array) -> Array:
        """Elements as integers, so that each NaN is equal to itself."""
        return bits_of(np.asarray(self.array[places]))

    def note_read(self, places: Array, owners: Array) -> Array:
        """Which of these elements another instance has written; it is noted that the owners have read them."""
        if self.writers is None or self.readers is None:
            return np.zeros(places.shape, np.bool_)
        writers, readers = self.writers[places], self.readers[places]
        self.readers[places] = owners
        mixed = (readers != NOBODY) & (readers != owners) | (self.readers[places] != owners)
        self.readers[places[mixed]] = SEVERAL
        return np.asarray((writers >= 0) & (writers != owners) | (writers == ATOMICALLY))

    def note_write(self, places: Array, owners: Array, values: Array) -> tuple[Array, Array]:
        """Which of these elements another instance has read, and to which one writes another value; values are written.

        The last of several values for one element counts.
        """
        assert self.writers is not None and self.readers is not None
        readers, writers = self.readers[places], self.writers[places]
        is_other = (writers != NOBODY) & (writers != owners)
        differs = is_other & (self.bits(places) != bits_of(values))
        self.array[places], self.writers[places] = values, owners
        is_shared = self.writers[places] != owners
        differs |= is_shared & (self.bits(places) != bits_of(values))
        self.writers[places[is_other | is_shared]] = SEVERAL
        self.defined[places] = True
        return (readers != NOBODY) & (readers != owners), differs

    def note_atomic(self, places: Array, owners: Array) -> Array:
        """Which of these elements another instance has read or written otherwise than atomically."""
        assert self.writers is not None and self.readers is not None
        readers, writers = self.readers[places], self.writers[places]
        self.writers[places] = ATOMICALLY
        is_other = (writers >= 0) & (writers != owners) | (writers == SEVERAL)
        return np.asarray(is_other | (readers != NOBODY) & (readers != owners))


def bits_of(values: Array) -> Array:
    """Values as unsigned integers of their width."""
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.itemsize <= 8 else values


def make_buffer(name: str, array: Array, *, is_defined: bool, is_writable: bool) -> Buffer:
    """A buffer of an array, which becomes its memory where instances may write it."""
    flat = array.reshape(-1)
    notes: list[Any] = [np.full(flat.size, NOBODY, np.int32) if is_writable else None for _ in range(2)]
    defined = np.full(flat.size, is_defined) if is_writable else np.broadcast_to(np.bool_(is_defined), flat.shape)
    return Buffer(name, flat, defined, *notes)


def address_of(number: int) -> int:
    """Of the first element of a buffer; those near 0 are of none."""
    return (number + 1 << _SHIFT) + _START


def split_addresses(addresses: Array, buffers: Sequence[Buffer]) -> list[tuple[Buffer | None, Any, Array]]:
    """The parts of addresses by buffer: the buffer or None, the places of the part, and bytes from its start."""
    numbers = (addresses >> _SHIFT) - 1
    offsets = (addresses & (1 << _SHIFT) - 1) - _START
    first = int(numbers[0]) if numbers.size else 0
    if (numbers == first).all():
        return [(_buffer(buffers, first), slice(None), offsets)] if numbers.size else []
    parts = []
    for number in np.unique(numbers):
        places = np.flatnonzero(numbers == number)
        parts.append((_buffer(buffers, int(number)), places, offsets[places]))
    return parts


def _buffer(buffers: Sequence[Buffer], number: int) -> Buffer | None:
    return buffers[number] if 0 <= number < len(buffers) else None
