"""The observer that computes the shadows of a run, and says where the errors of its results come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.values import Array, arrays_of, flat
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec.observers import Event, LoopState
from hloexec.errors import HloError
from hloexec.ops.common import is_inexact
from hloexec.ops.registry import exchanges
from hloexec.ops.resources import hold_blas
from hloexec.tools.shadowing.alone.budget import Work
from hloexec.tools.shadowing.blame import blamed, merged
from hloexec.tools.shadowing.computing.elements import Difference
from hloexec.tools.shadowing.computing.evaluation import Evaluation
from hloexec.tools.shadowing.computing.exchanging import Exchanges
from hloexec.tools.shadowing.computing.moving import Evaluated, order_changes
from hloexec.tools.shadowing.computing.widening import kernels_of
from hloexec.tools.shadowing.looping.loops import Loops
from hloexec.tools.shadowing.outputs import LeafError, leaf_errors
from hloexec.tools.shadowing.places import Place
from hloexec.tools.shadowing.store import EXACT, Blame, Shadow, Store


class ShadowObserver:
    """Watches a run; afterwards `places` and `outputs` say what it saw."""

    def __init__(self, module: Module, entry: str | None, topology: Topology) -> None:
        self._entry = module.entry_name if entry is None else entry.removeprefix("%")
        self._kernels = kernels_of(module)
        self._store = Store()
        self._has_devices = topology.count > 1
        self._exchanges = Exchanges(module, self._kernels, self._store, topology)
        self._evaluations: dict[tuple[str, str, tuple[int, ...]], tuple[Evaluation, int]] = {}
        self.places: list[Place] = []
        """Of each instruction one, or one for each of several devices whose runs of it differ."""
        self.work = Work()
        """What the run has done."""
        self._loops = Loops(
            self._store,
            self.places,
            lambda step: self._evaluation(step.scope.computation, step.instruction),
            self.work,
        )
        self.outputs: list[LeafError] = []
        self.failing: dict[int, str] = {}
        """Why instructions could not be computed on shadows, by the numbers of their places."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self.work.events += 1
        hold_blas()
        instruction = event.instruction
        leaves = arrays_of(event.value)
        self.work.note(event.computation, instruction, sum(leaf.size for leaf in leaves))
        if exchanges(instruction):
            self._exchange(event, leaves)
            new = leaves
        else:
            new = [leaf for leaf in leaves if not self._store.knows(leaf)]
            if new and event.operands:
                self._compute(event, leaves)
        for leaf in new:
            if not self._store.knows(leaf):
                self._store.put(leaf, EXACT)
        self._exchanges.note(event)
        computation = event.computation
        if instruction.name == computation.root_name and computation.name == self._entry and not event.path:
            self._take_outputs(event)

    def on_loop(self, loop: LoopState) -> tuple[list[Array], int] | None:
        """Called by the run before each condition of a loop, of which it may run some iterations."""
        return self._loops.run(loop)

    @property
    def events(self) -> int:
        """How many instructions have run."""
        return self.work.events + self.work.loop_events

    def shadow_of(self, array: Array) -> Shadow | None:
        """The shadow of an array that is alive; None where it has no error."""
        return self._store.get(array)

    def evaluation(self, event: Event) -> tuple[Evaluation, int]:
        """How an instruction is computed on shadows, and the number of its place."""
        # Loops name no devices: on one device, an instruction has one place in and outside them.
        devices = event.devices if self._has_devices else ()
        return self._evaluation(event.computation, event.instruction, devices)

    def _evaluation(
        self, computation: Computation, instruction: Instruction, devices: tuple[int, ...] = ()
    ) -> tuple[Evaluation, int]:
        key = computation.name, instruction.name, devices
        found = self._evaluations.get(key)
        if found is None:
            place = Place(computation, instruction)
            made = Evaluation(self._kernels, computation, instruction, len(self.places), place)
            found = self._evaluations[key] = made, len(self.places)
            self.places.append(place)
            if made.absorbing.source is not None:
                source = self._evaluations.get((computation.name, made.absorbing.source, devices))
                made.source = None if source is None else source[0]
        return found

    def _compute(self, event: Event, leaves: Sequence[Array]) -> None:
        evaluation, number = self.evaluation(event)
        if not evaluation.is_computed or not any(leaf.size for leaf in leaves):
            return
        operands = flat(event.operands)
        shadows = list(map(self._store.get, operands))
        is_wrong = shadows.count(None) < len(shadows)
        if not any(map(is_inexact, leaves)):
            if is_wrong:
                self._decide(event, evaluation, number, operands, shadows)
            return
        if evaluation.is_failing:
            return
        try:
            found = evaluation.evaluated(event.value, operands, shadows)
        except (HloError, ValueError, TypeError, IndexError, ArithmeticError) as error:
            found, self.failing[number] = None, str(error).partition("\n")[0]
        if found is None:
            evaluation.is_failing = True
            if evaluation.entry is not None and evaluation.entry.is_pure:
                # Random numbers are what they are.
                self.failing.setdefault(number, "it has no formula for f64")
            return
        if evaluation.doubt:
            self.failing.setdefault(number, evaluation.doubt)
        for entry in found:
            self._keep(event, number, entry, shadows)
        if is_wrong and any(not is_inexact(leaf) for leaf in leaves):
            self._decide(event, evaluation, number, operands, shadows)

    def _keep(self, event: Event, number: int, found: Evaluated, shadows: Sequence[Shadow | None]) -> None:
        if found.losses is not None:
            self.places[number].note(event, found.losses)
        if found.pending is not None and found.losses is not None:
            blame = blamed(number, found.losses, shadows, element_type_of(found.value.dtype))
            self._store.put(found.value, Shadow(None, False, found.energy, 0, blame, pending=found.pending))
            return
        if found.difference is None:
            self._store.put(found.value, EXACT)
            return
        if found.moved is not None or found.losses is None:
            blame = found.moved or Blame()
        else:
            blame = blamed(number, found.losses, shadows, element_type_of(found.value.dtype))
        self._store.put(found.value, _shadow(found.difference, found.value, blame, found.absorbed))

    def _decide(
        self,
        event: Event,
        evaluation: Evaluation,
        number: int,
        operands: Sequence[Any],
        shadows: Sequence[Shadow | None],
    ) -> None:
        place = self.places[number]
        try:
            if evaluation.is_sorting:
                count = order_changes(evaluation, operands, shadows)
            else:
                count = evaluation.decisions(event.value, operands, shadows)
        except (HloError, ValueError, TypeError, IndexError, ArithmeticError) as error:
            self.failing.setdefault(number, str(error).partition("\n")[0])
            return
        place.decisions += count
        place.decided += sum(leaf.size for leaf in arrays_of(event.value))

    def _exchange(self, event: Event, leaves: Sequence[Array]) -> None:
        evaluation, number = self.evaluation(event)
        if evaluation.is_failing or all(self._store.knows(leaf) or not is_inexact(leaf) for leaf in leaves):
            return
        try:
            found = list(self._exchanges.results(event, leaves))
        except (HloError, ValueError, TypeError, IndexError, KeyError, ArithmeticError) as error:
            evaluation.is_failing, self.failing[number] = True, str(error).partition("\n")[0]
            return
        for leaf, difference, losses, shadows in found:
            if losses is not None:
                self._keep(event, number, Evaluated(leaf, difference, losses), shadows)
            else:
                self._keep(event, number, Evaluated(leaf, difference, None, merged(shadows)), shadows)

    def _take_outputs(self, event: Event) -> None:
        from hloexec.core.values import leaves

        arrays = [(index, leaf) for index, leaf in leaves(event.value) if isinstance(leaf, np.ndarray)]
        shadows = [self._store.get(leaf) for _, leaf in arrays]
        pairs = zip(arrays, shadows, strict=True)
        self.outputs.extend(leaf_errors(event.devices, [(index, leaf, shadow) for (index, leaf), shadow in pairs]))


def _shadow(found: Difference, value: Array, blame: Blame, absorbed: Array | None) -> Shadow | None:
    lost = 0
    if found.is_whole:
        lost = int(np.count_nonzero(~np.isfinite(value) & np.isfinite(found.data)))
        if not lost and not found.energy:
            return EXACT
    return Shadow(found.data, found.is_whole, found.energy, lost, blame, absorbed)
