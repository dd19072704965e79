"""The cost of a run, counted while it runs: live bytes, in total and per device, and steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.engine.devices.varying import Varying
from hloexec.ops.resources import owner_of


@define(eq=False)
class _Buffers:
    """The buffers that are alive, each with how often it is held and its bytes."""

    live_bytes: int = 0
    peak_bytes: int = 0
    held: dict[int, list[int]] = attrs.field(factory=dict, repr=False)

    def take(self, base: Array) -> None:
        entry = self.held.setdefault(id(base), [0, base.nbytes])
        if not entry[0]:
            self.live_bytes += entry[1]
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        entry[0] += 1

    def release(self, base: Array) -> None:
        entry = self.held.get(id(base))
        if entry is None:
            return
        entry[0] -= 1
        if not entry[0]:
            self.live_bytes -= entry[1]
            del self.held[id(base)]


@define(eq=False)
class Statistics:
    """The cost of a run; pass one to `run` or `run_devices` to have it filled in."""

    steps: int = 0
    """How many instructions ran, loops counted as often as they went round."""
    _all: _Buffers = attrs.field(factory=_Buffers, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)
    """Devices may run side by side."""
    _devices: dict[int, _Buffers] = attrs.field(factory=dict, repr=False)
    _ignored: dict[int, weakref.ref[Array]] = attrs.field(factory=dict, repr=False)
    """Buffers that are not the run's own, by identity."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of buffers alive at once, inputs and constants not counted, nor what devices share twice."""
        return self._all.peak_bytes

    @property
    def live_bytes(self) -> int:
        """The bytes of buffers that are alive now, counted in the same way."""
        return self._all.live_bytes

    @property
    def device_peak_bytes(self) -> int:
        """The same for the device that holds most."""
        return max((buffers.peak_bytes for buffers in self._devices.values()), default=self.peak_bytes)

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Steps, peak, live and a device's peak bytes."""
        return self.steps, self.peak_bytes, self.live_bytes, self.device_peak_bytes

    def add_up(self, ranks: Sequence[Sequence[int]]) -> None:
        """Become the cost of a run that was spread over processes with these totals: the bytes of all of them, but the
        steps of one, as devices in lockstep count once."""
        columns = [*zip(*ranks, strict=True)]
        self.steps = max(columns[0])
        self._all = _Buffers(sum(columns[2]), sum(columns[1]))
        self._devices = {0: _Buffers(0, max(columns[3]))}

    def ignore(self, value: object) -> None:
        """Never count the buffers of `value`: they are not the run's own."""
        with self._lock:
            for part in value.values if type(value) is Varying else (value,):
                if isinstance(part, np.ndarray):
                    owner = owner_of(part)
                    key = id(owner)
                    # What is gone leaves its place in memory, and its identity, to others.
                    self._ignored[key] = weakref.ref(owner, partial(_forget, self._ignored, key))

    def watch(self, devices: Sequence[int]) -> None:
        """Count for each of these devices, too."""
        self._devices = {device: _Buffers() for device in devices}

    def ran(self, steps: int) -> None:
        """Count instructions that have run."""
        with self._lock:
            self.steps += steps

    def take(self, value: object, devices: Sequence[int]) -> None:
        """A slot of the devices, which run in lockstep, holds `value` now."""
        with self._lock:
            for buffers, base in self._holders(value, devices):
                buffers.take(base)

    def release(self, value: object, devices: Sequence[int]) -> None:
        """A slot of the devices no longer holds `value`."""
        with self._lock:
            for buffers, base in self._holders(value, devices):
                buffers.release(base)

    def _holders(self, value: object, devices: Sequence[int]) -> list[tuple[_Buffers, Array]]:
        """Each buffer of a value, with where it counts."""
        parts, classes = (value.values, value.classes) if type(value) is Varying else ([value], (0,) * len(devices))
        owners = [owner_of(part) if isinstance(part, np.ndarray) else None for part in parts]
        bases = [None if owner is None or id(owner) in self._ignored else owner for owner in owners]
        found = [(self._all, base) for base in bases if base is not None]
        for device, number in zip(devices, classes, strict=True):
            shown = bases[number]
            if shown is not None and self._devices:
                found.append((self._devices[device], shown))
        return found


def _forget(ignored: dict[int, Any], key: int, _: object) -> None:
    ignored.pop(key, None)
