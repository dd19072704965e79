"""Rounding errors of all instructions, watched in another run."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from hloexec.core.ir import Module
from hloexec.core.values import Array, Value
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.ops.common import is_inexact, wide
from hloexec.tools.shadowing.observer import ShadowObserver
from hloexec.tools.shadowing.store import Shadow
from hloexec.tools.watching.findings import Key, Watched
from hloexec.tools.watching.recording import Measure, ValueRecorder, relative_error
from hloexec.tools.watching.sampling import difference_sample
from hloexec.tools.watching.values import ERROR, LARGEST, RUNS, of_errors


class ShadowRecorder(ValueRecorder):
    """Records rounding errors, beside a run of a module: each value's distance from its shadow."""

    def __init__(self, module: Module, entry: str | None, topology: Topology, wanted: Collection[Key]) -> None:
        super().__init__(wanted)
        self._shadows = ShadowObserver(module, entry, topology)

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self._shadows.on_instruction(event)
        super().on_instruction(event)

    def _look(self, event: Event, key: Key, measure: Measure, leaf: Array, largest: float, infinite: int) -> None:
        if not is_inexact(leaf):
            return
        shadow = self._shadows.shadow_of(leaf)
        energy = 0.0 if shadow is None else shadow.energy
        lost = 0 if shadow is None else shadow.lost
        error = math.inf if lost else relative_error(energy, wide(leaf), lambda: _differences(leaf, shadow))
        measure.error = max(measure.error or 0.0, error)
        if key in self._wanted and self._has_room(key, error):
            self._keep(event, key, leaf, difference_sample(leaf, _differences(leaf, shadow)), error, is_error=True)


def _differences(leaf: Array, shadow: Shadow | None) -> Array:
    if shadow is None:
        return np.zeros(leaf.shape)
    if not shadow.is_whole:
        return shadow.data
    exact = shadow.data
    with np.errstate(all="ignore"):
        found = wide(leaf) - exact
    return np.where((wide(leaf) == exact) | (np.isnan(wide(leaf)) & np.isnan(exact)), 0.0, found)


def watch(
    _: object,
    module: Module,
    inputs: Sequence[Sequence[Value]],
    options: Sequence[Options],
    wanted: Sequence[Key],
    most: int,
) -> Watched:
    """The errors of all instructions."""
    given = options[0]
    topology = topology_of(module, given.replicas, given.partitions)
    recorder = ShadowRecorder(module, given.computation, topology, wanted)
    run_with(module, inputs, given, [recorder])
    figures = {key: (each.error, each.largest, each.runs) for key, each in recorder.measures.items()}
    return of_errors(recorder, (ERROR, LARGEST, RUNS), figures)
