"""Devices that run a kernel at the same time, each on its own operands: what they reach of one another.

A buffer of one device and that of another which has the same place in the kernel are counterparts, as they have the
same address on TPUs. Devices run one after the other, each until it waits for what is not there yet (`turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from hloexec.core.structs import define
from hloexec.core.wording import counted, number_runs
from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.mosaic.memory import Ref
from hloexec.ops.library_calls.mosaic.ordering import Knowledge
from hloexec.ops.library_calls.mosaic.turns import Turns

if TYPE_CHECKING:
    from hloexec.ops.library_calls.mosaic.machine import Machine


@define(eq=False)
class Devices:
    """All devices of a module, by number: 0, 1, 2…"""

    machines: Mapping[int, Machine]
    turns: Turns
    _waiting: dict[int, Callable[[], str]] = attrs.Factory(dict)
    """By device, what it waits for."""

    def run(self) -> None:
        """Run the kernel on all devices; EvaluationError where they wait for one another."""
        self.turns.run(self._deadlock)

    def other(self, machine: Machine, device: int) -> Machine:
        """The device of a number, which an operation of another one names."""
        if device not in self.machines:
            raise machine.fault(f"reaches for device {device}, but there are {counted(len(self.machines), 'device')}")
        return self.machines[device]

    def counterpart(self, machine: Machine, ref: Ref, other: Machine) -> Ref:
        """What another device has where this one has a view; waits until it is there."""
        key = _knowledge(machine).key_of(ref.buffer)
        if key is None:
            raise machine.fault(f"reaches for {ref.name} of device {other.device}, which is only there for its own")
        shared = _knowledge(other).shared
        self.wait(machine, lambda: key in shared, lambda: f"waits for device {other.device} to allocate {ref.name}")
        return ref.counterpart(shared[key].ref)

    def wait(self, machine: Machine, is_ready: Callable[[], bool], clause: Callable[[], str]) -> None:
        """Let others run until a device can go on; `clause` says what it waits for."""
        self._waiting[machine.device] = lambda: f"{machine.place} {clause()}"
        self.turns.wait(machine.device, is_ready)
        del self._waiting[machine.device]

    def _deadlock(self) -> EvaluationError:
        devices: dict[str, list[int]] = {}
        for number in self.turns.unfinished:
            devices.setdefault(self._waiting[number](), []).append(number)
        lines = [f"  {_named(numbers)}: {reason}" for reason, numbers in devices.items()]
        ended = sorted(self.machines.keys() - self.turns.unfinished)
        if ended:
            lines.append(f"  {_named(ended)}: at the end")
        return EvaluationError("\n".join(["no device can go on:", *lines]))


def _knowledge(machine: Machine) -> Knowledge:
    assert machine.knowledge is not None
    return machine.knowledge


def _named(numbers: list[int]) -> str:
    return f"device{'s' if len(numbers) > 1 else ''} {number_runs(numbers)}"
