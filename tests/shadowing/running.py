"""Running `hloexec.shadow` in tests, and seeing the shadow of every element of a result."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import hloexec
from hloexec.devices.topology import topology_of
from hloexec.ops.common import widen
from hloexec.shadowing.observer import ShadowObserver

__all__ = ["exact_numbers", "shadows_of"]


class _Outputs:
    """Takes the shadows of the result, as the sums of two numbers each, when it is there."""

    def __init__(self, observer: ShadowObserver, module: hloexec.Module) -> None:
        self._observer = observer
        self._root = module.entry.root_name
        self.found: dict[tuple[int, ...], list[Fraction]] = {}

    def on_instruction(self, event: hloexec.Event) -> None:
        if event.path or event.instruction.name != self._root:
            return
        leaves = event.value if isinstance(event.value, tuple) else (event.value,)
        for number, leaf in enumerate(leaves):
            shadow = self._observer._store.get(leaf)
            values = [Fraction(float(x)) for x in np.asarray(widen(leaf), np.float64).ravel()]
            if shadow is not None:
                data = [Fraction(float(x)) for x in np.asarray(shadow.data, np.float64).ravel()]
                values = data if shadow.is_whole else [a + b for a, b in zip(values, data, strict=True)]
            self.found[event.devices[0], number] = values


def shadows_of(module: hloexec.Module, inputs: Sequence[Any]) -> dict[tuple[int, ...], list[Fraction]]:
    """The numbers that a result's elements would be without rounding, by device and leaf."""
    observer = ShadowObserver(module, None, topology_of(module))
    outputs = _Outputs(observer, module)
    hloexec.run_devices(module, inputs, observers=[observer, outputs])
    return outputs.found


def exact_numbers(array: Any) -> list[Fraction]:
    """The elements of an array of floats, exactly."""
    return [Fraction(float(x)) for x in np.asarray(widen(np.asarray(array)), np.float64).ravel()]
