"""Program instances that run at once: which of them are active, and what they read and write.

What hardware hides is noticed here: accesses beyond a buffer, reads of elements that nothing has written, elements that
one instance writes and another one reads, or writes with another value. Where several instances run at once, such an
element ends the run (`Dependent`): instances then run one after the other, in the order of their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic import machine as cores
from hloexec.ops.library_calls.mosaic.memory import other_value, undefined_value
from hloexec.ops.library_calls.triton.memory import Buffer, split_addresses


class Dependent(Exception):  # noqa: N818  # it ends a run, and is no error
    """What one instance does depends on another one."""


@define(eq=False, kw_only=True)
class Machine(cores.Machine):
    """Instances `first` to `first` + `count` - 1 of a grid, numbered with its first dimension as the fastest."""

    others: Mapping[Any, bool] = attrs.Factory(dict)
    """By their results, the operations that read another value where elements are undefined."""
    buffers: list[Buffer]
    count: int
    first: int = 0
    is_synchronised: bool = False
    """Whether instances wait for one another by atomic operations: then they may read what others write."""
    active: Array | None = None
    """Which of the instances do what is run; None means all."""

    def program_ids(self, axis: int) -> Array:
        """The place of each instance along a dimension of the grid."""
        numbers = np.minimum(np.arange(self.first, self.first + self.count), math.prod(self.bounds) - 1)
        return np.asarray(np.unravel_index(numbers, self.bounds[::-1])[2 - axis]).astype(np.int32)

    def undefined(self, element: ElementType) -> Any:
        """The value that stands for what the operation that is run reads where nothing has been written."""
        is_other = self.operation is not None and self.operation.results in self.others
        return other_value(element) if is_other else undefined_value(element)

    def read(self, addresses: Array, mask: Array | None, element: ElementType, other: Array | None) -> Array:
        """Elements at addresses; where a mask is false, those of `other`, without which they are undefined."""
        values = np.full(addresses.size, self.undefined(element), element.storage)
        if mask is not None and not mask.all():
            left_out = np.logical_not(mask)
            if other is None:
                self._note_undefined(
                    "leaves out elements by its mask, and says no value for them", self._owners(left_out)
                )
            else:
                np.copyto(values.reshape(mask.shape), other, where=left_out)
        for buffer, places, chosen, owners in self._accesses(addresses, mask, element):
            values[chosen] = buffer.array[places].view(element.storage)
            self._meet(
                buffer.note_read(places, owners),
                owners,
                f"reads elements of {buffer.name} that another program instance writes",
            )
            undefined = np.logical_not(buffer.defined[places])
            if undefined.any():
                values[chosen[undefined]] = self.undefined(element)
                self._note_undefined(f"reads elements of {buffer.name} that nothing has written", owners[undefined])
        return values.reshape(addresses.shape)

    def write(self, addresses: Array, mask: Array | None, element: ElementType, values: Array) -> None:
        """Values become the elements at addresses, where a mask says so."""
        for buffer, places, chosen, owners in self._accesses(addresses, mask, element):
            self._require_writable(buffer)
            written = np.ascontiguousarray(values).reshape(-1)[chosen].view(buffer.array.dtype)
            is_read, differs = buffer.note_write(places, owners, written)
            self._meet(is_read, owners, f"writes to elements of {buffer.name} that another program instance reads")
            self._meet(differs, owners, f"writes to elements of {buffer.name} that have other values from others")

    def update(
        self, addresses: Array, mask: Array | None, element: ElementType, change: Callable[[Array, Array, Array], Any]
    ) -> Array:
        """The elements at addresses before an atomic operation: `change` is given a buffer's array, places and lanes
        (numbers of elements), and returns what was there."""
        before = np.zeros(addresses.size, element.storage)
        for buffer, places, chosen, owners in self._accesses(addresses, mask, element):
            self._require_writable(buffer)
            undefined = np.logical_not(buffer.defined[places])
            if undefined.any():
                buffer.array.view(element.storage)[places[undefined]] = self.undefined(element)
                self._note_undefined(f"reads elements of {buffer.name} that nothing has written", owners[undefined])
                buffer.defined[places] = True
            clause = f"changes elements of {buffer.name} that another program instance reads or writes"
            self._meet(buffer.note_atomic(places, owners), owners, clause)
            before[chosen] = change(buffer.array.view(element.storage), places, chosen)
        return before.reshape(addresses.shape)

    def _accesses(
        self, addresses: Array, mask: Array | None, element: ElementType
    ) -> Iterator[tuple[Buffer, Array, Array, Array]]:
        """By buffer, those elements that lie inside of it: their places, which they are of all, and their instances."""
        size, flat = element.storage.itemsize, addresses.reshape(-1)
        lanes = self._lanes(addresses.shape, mask)
        for buffer, part, offsets in split_addresses(flat[lanes], self.buffers):
            chosen = lanes[part]
            owners = (self.first + chosen // max(1, flat.size // self.count)).astype(np.int32)
            if buffer is None:
                self._report_at(owners[0], "accesses addresses that are of no operand")
                continue
            if buffer.array.dtype.itemsize != size:
                raise self.fault(f"sees {buffer.name}, of {buffer.array.dtype}, as {element.name}")
            places = offsets // size
            inside = (offsets >= 0) & (places < buffer.size) & (offsets % size == 0)
            if not inside.all():
                owner = owners[np.flatnonzero(np.logical_not(inside))[0]]
                self._report_at(owner, f"accesses elements beyond the {buffer.size} of {buffer.name}")
                places, chosen, owners = places[inside], chosen[inside], owners[inside]
            yield buffer, places, chosen, owners

    def _lanes(self, shape: tuple[int, ...], mask: Array | None) -> Array:
        """The elements that an access with a mask has, as numbers in row-major order."""
        if self.active is not None:
            active = np.broadcast_to(over_elements(self.active, len(shape)), shape)
            mask = active if mask is None else mask & active
        return np.arange(math.prod(shape)) if mask is None else np.flatnonzero(mask)

    def _owners(self, chosen: Array) -> Array:
        """The instances of which some elements are chosen, of those that are active."""
        is_any = chosen.reshape(self.count, -1).any(1)
        return self.first + np.flatnonzero(is_any if self.active is None else is_any & self.active)

    def _report_at(self, owner: Any, clause: str) -> None:
        """Note what the operation that is run does in an instance."""
        self.point = self.point_of(int(owner))
        self.report(clause)

    def point_of(self, owner: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(owner, self.bounds[::-1])[::-1]))

    def _meet(self, conflicts: Array, owners: Array, clause: str) -> None:
        """What is done with elements that instances share, if there are any."""
        if not conflicts.any():
            return
        if self.count > 1:
            raise Dependent
        if not self.is_synchronised:
            self._report_at(owners[conflicts][0], clause)

    def _note_undefined(self, clause: str, owners: Array) -> None:
        assert self.operation is not None
        if owners.size:
            finding = cores.Finding(clause, self.operation.place, self.point_of(int(owners[0])))
            self.undefined_reads.setdefault(self.operation, finding)

    def _require_writable(self, buffer: Buffer) -> None:
        if buffer.writers is None:
            raise self.fault(f"writes to {buffer.name}, which is an input that no output shares memory with")


def over_elements(of_instances: Array, rank: int) -> Array:
    """What there is one of for each instance, for arrays of this rank."""
    return of_instances.reshape(-1, *(1,) * (rank - 1))
