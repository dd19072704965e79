"""What a device knows of the others when several run a kernel: which of their accesses lie behind it for certain.

A device counts its *epochs*, one more with each signal that it gives. A signal carries how far all devices had come, as
far as its sender knew; who waits for it knows that, too. An access of another device has happened before all that
follows where its epoch is known; otherwise nothing orders the two, and another run may have them the other way round.
Units of a semaphore are taken in the order in which they were added. Source: Mattern, "Virtual Time and Global States
of Distributed Systems"; Flanagan and Freund, "FastTrack".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import attrs

from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.memory import Ref

Clock = tuple[int, ...]
"""For each device, its last epoch that is known."""


@frozen(eq=False)
class Access:
    """The latest access of a device to a part of a buffer."""

    part: Ref
    epoch: int
    is_write: bool
    place: str
    """Of the operation."""


@define(eq=False)
class Shared:
    """A buffer that other devices can reach."""

    ref: Ref
    accesses: dict[Hashable, Access] = attrs.Factory(dict)


@define(eq=False)
class Knowledge:
    """What one device knows, and what others have to know of it."""

    device: int
    clock: list[int]
    shared: dict[Hashable, Shared] = attrs.Factory(dict)
    """Its buffers by what is the same on all devices: which operand they are, or which operation has allocated them."""
    _signals: dict[int, deque[tuple[int, Clock]]] = attrs.Factory(dict)
    """What has been added to each semaphore, by its address, and not been taken."""

    def key_of(self, buffer: Array) -> Hashable | None:
        """Under what a buffer is shared; None of one that is not."""
        return next((key for key, shared in self.shared.items() if shared.ref.buffer is buffer), None)

    def release(self) -> Clock:
        """What a signal carries that is given now."""
        clock = tuple(self.clock)
        self.clock[self.device] += 1
        return clock

    def add(self, semaphore: Ref, amount: int, clock: Clock) -> None:
        """Note what a signal to a semaphore of this device carries."""
        self._signals.setdefault(_address(semaphore.array), deque()).append((amount, clock))

    def take(self, semaphore: Ref, amount: int) -> None:
        """Know what the signals carry of which an amount is taken."""
        signals = self._signals.get(_address(semaphore.array))
        while amount > 0 and signals:
            size, clock = signals.popleft()
            self.clock[:] = map(max, self.clock, clock)
            if size > amount:
                signals.appendleft((size - amount, clock))
            amount -= size

    def see(self, semaphore: Ref) -> None:
        """Know what the signals carry that have been added to a semaphore, of which nothing is taken."""
        for _, clock in self._signals.get(_address(semaphore.array), ()):
            self.clock[:] = map(max, self.clock, clock)

    def note(self, part: Ref, place: str, *, is_write: bool) -> None:
        """Remember an access, if others can reach the buffer."""
        part = part.packed or part
        key = self.key_of(part.buffer)
        if key is not None:
            where = _address(part.array), part.array.shape, part.array.strides, is_write
            self.shared[key].accesses[where] = Access(part, self.clock[self.device], is_write, place)

    def unordered(self, target: Ref, sender: Knowledge) -> Access | None:
        """The latest access to a part of a buffer of this device, if the sender does not know of it."""
        key = self.key_of(target.buffer)
        accesses = () if key is None else self.shared[key].accesses.values()
        unknown = [access for access in accesses if access.epoch > sender.clock[self.device]]
        return max(
            filter(lambda access: access.part.overlaps(target), unknown), key=lambda access: access.epoch, default=None
        )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
