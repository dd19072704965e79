"""The values that a stopped run can show: those of the computations that are under way, as far as there is room."""

from __future__ import annotations

from collections import deque

from hloexec.core.values import Value, arrays_of
from hloexec.engine.exec.observers import Activation, Event
from hloexec.tools.tracing.recording import is_renaming


class Kept:
    """Values by the run of a computation, the instruction and the device; the oldest go where there are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """In bytes."""
        self._bytes = 0
        self._values: dict[Activation, dict[str, list[tuple[tuple[int, ...], Value]]]] = {}
        self._under_way: dict[int, tuple[Activation, ...]] = {}
        """The runs of computations that each device is in, outermost first."""
        self._last: tuple[object, ...] = ()
        """Where, and on which devices, the last value was made."""
        self._sizes: dict[Activation, int] = {}
        """The bytes of those values that are not others' as well."""
        self._order: deque[tuple[Activation, str, int]] = deque()
        """What takes room, the oldest first."""

    def add(self, event: Event) -> None:
        """Keep a value; those of computations that have ended go."""
        activation = event.activation
        here = (*activation, event.devices)
        if here != self._last:
            self._enter(event)
            self._last = here
        name = event.instruction.name
        self._values[activation].setdefault(name, []).append((event.devices, event.value))
        if not is_renaming(event.instruction):
            size = sum(leaf.nbytes for leaf in arrays_of(event.value))
            self._order.append((activation, name, size))
            self._sizes[activation] += size
            self._bytes += size
            while self._bytes > self._limit and len(self._order) > 1:
                self._forget()

    def replace(self, event: Event, value: Value) -> None:
        """Another value takes the place of the one that was kept last."""
        self._values[event.activation][event.instruction.name][-1] = (event.devices, value)

    def of(self, activation: Activation, name: str, device: int) -> Value | None:
        """What an instruction gave on a device; None where it has not run, or is not kept any more."""
        entries = self._values.get(activation, {}).get(name, ())
        return next((value for devices, value in entries if device in devices), None)

    def is_under_way(self, activation: Activation, device: int) -> bool:
        """Whether a device is in a run of a computation."""
        return activation in self._under_way.get(device, ())

    def _enter(self, event: Event) -> None:
        under_way = event.activations()
        for device in event.devices:
            self._under_way[device] = under_way
        alive = {activation for each in self._under_way.values() for activation in each}
        for ended in [activation for activation in self._values if activation not in alive]:
            del self._values[ended]
            self._bytes -= self._sizes.pop(ended)
        if len(self._order) > 4 * sum(map(len, self._values.values())) + 64:
            self._order = deque(entry for entry in self._order if entry[0] in self._values)
        for activation in under_way:
            self._values.setdefault(activation, {})
            self._sizes.setdefault(activation, 0)

    def _forget(self) -> None:
        activation, name, size = self._order.popleft()
        if activation in self._values:
            self._bytes -= size
            self._sizes[activation] -= size
            self._values[activation].pop(name, None)
