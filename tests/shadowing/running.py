"""Running `hloexec.shadow` in tests, and seeing the shadow of every element of a result."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import hloexec
from hloexec.engine.devices.topology import topology_of
from hloexec.ops.common import widen
from hloexec.tools.shadowing.observer import ShadowObserver


class _Outputs(ShadowObserver):
    """Takes the shadows of the result, as the sums of two numbers each, when it is there."""

    found: dict[tuple[int, ...], list[Fraction]]

    def on_instruction(self, event: hloexec.Event) -> None:
        super().on_instruction(event)
        if event.path or event.instruction.name != event.computation.root_name:
            return
        leaves: Any = event.value if isinstance(event.value, tuple) else (event.value,)
        for number, leaf in enumerate(leaves):
            shadow = self._store.get(leaf)
            values = [Fraction(float(x)) for x in np.asarray(widen(leaf), np.float64).ravel()]
            if shadow is not None:
                data = [Fraction(float(x)) for x in np.asarray(shadow.data, np.float64).ravel()]
                values = data if shadow.is_whole else [a + b for a, b in zip(values, data, strict=True)]
            self.found[event.devices[0], number] = values


def shadows_of(module: hloexec.Module, inputs: Sequence[Any]) -> dict[tuple[int, ...], list[Fraction]]:
    """The numbers that a result's elements would be without rounding, by device and leaf."""
    observer = _Outputs(module, None, topology_of(module))
    observer.found = {}
    hloexec.run_devices(module, inputs, observers=[observer])
    return observer.found


def exact_numbers(array: Any) -> list[Fraction]:
    """The elements of an array of floats, exactly."""
    return [Fraction(float(x)) for x in np.asarray(widen(np.asarray(array)), np.float64).ravel()]
