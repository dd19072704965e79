"""Shadows of what devices exchange: a collective needs those of all members of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from hloexec.devices.topology import Topology, groups_of
from hloexec.dtypes import element_type_of
from hloexec.exec.observers import Event
from hloexec.ir import Computation, Instruction
from hloexec.operations import exchanges, traits_of
from hloexec.shadowing.computing.elements import Difference, Sample, difference_of, sampled, taken
from hloexec.shadowing.computing.widening import Kernels
from hloexec.shadowing.kinds import Losses, losses
from hloexec.shadowing.store import Shadow, Store, wide
from hloexec.values import Array, flat

__all__ = ["Exchanges"]

Found = tuple[Array, Difference | None, Losses | None, list[Shadow | None]]


class Exchanges:
    """Keeps the operands of collectives until they have met."""

    def __init__(self, kernels: Kernels, store: Store, topology: Topology) -> None:
        self._kernels = kernels
        self._store = store
        self._topology = topology
        self._wanted: dict[str, frozenset[str]] = {}
        """By computation, the instructions that collectives take."""
        self._held: dict[tuple[str, str], dict[int, Any]] = {}
        """The latest values of these, by computation, name and device."""
        self._functions: dict[tuple[str, str], Any] = {}
        self._last: dict[tuple[str, str], tuple[tuple[int, ...], dict[int, list[Array]], dict[int, list[Array]]]] = {}

    def note(self, event: Event) -> None:
        """Keep what a collective will take."""
        computation = event.computation
        wanted = self._wanted.get(computation.name)
        if wanted is None:
            wanted = self._wanted[computation.name] = _taken_by_collectives(computation)
        if event.instruction.name in wanted:
            held = self._held.setdefault((computation.name, event.instruction.name), {})
            held.update(dict.fromkeys(event.devices, event.value))

    def results(self, event: Event, leaves: Sequence[Array], place: int) -> Iterator[Found]:
        """The differences of the leaves that a collective gives to the event's devices, and what it added."""
        computation, instruction = event.computation, event.instruction
        device = event.devices[0]
        group, operands = self._members(computation, instruction, device)
        exact, here = self._met(computation, instruction, group, operands)
        number = next(number for number, member in group.items() if member == device)
        shadows = [self._store.get(leaf) for member in operands.values() for leaf in member]
        is_wrong = any(shadow is not None for shadow in shadows)
        moves = traits_of(instruction).moves is not None
        for leaf, theirs, its in zip(leaves, exact[number], here[number], strict=True):
            difference = difference_of(theirs, leaf)
            if not difference.energy and not difference.is_whole:
                yield leaf, None, None, shadows
            elif moves:
                yield leaf, difference, None, shadows
            else:
                yield (
                    leaf,
                    difference,
                    self._losses(instruction, leaf, theirs, its, difference, shadows, is_wrong),
                    shadows,
                )

    def _losses(
        self,
        instruction: Instruction,
        leaf: Array,
        exact: Array,
        here: Array,
        difference: Difference,
        shadows: Sequence[Shadow | None],
        is_wrong: bool,
    ) -> Losses:
        places = sampled(difference, leaf)
        ours, theirs, its = (taken(array, places) for array in (wide(leaf), exact, here))
        sample = Sample(ours, theirs, its, ours - its, its - theirs)
        found = losses(sample, element_type_of(leaf.dtype), traits_of(instruction))
        energies = [0.0 if shadow is None else max(shadow.energy, float(shadow.lost)) for shadow in shadows]
        total = sum(energies) or 1.0
        weights = tuple(energy / total for energy in energies)
        return attrs.evolve(found, weights=weights, lost_weights=(0.0,) * len(weights))

    def _members(
        self, computation: Computation, instruction: Instruction, device: int
    ) -> tuple[dict[int, int], dict[int, list[Array]]]:
        """The devices of a group by their numbers, and the operands of each."""
        groups = groups_of(instruction, self._topology)
        group = next(dict(group) for group in groups if device in group.values())
        held = [self._held[computation.name, name] for name in instruction.operands]
        return group, {
            number: [leaf for values in held for leaf in flat(values[member])] for number, member in group.items()
        }

    def _met(
        self,
        computation: Computation,
        instruction: Instruction,
        group: dict[int, int],
        operands: dict[int, list[Array]],
    ) -> tuple[dict[int, list[Array]], dict[int, list[Array]]]:
        """What the members get exactly: out of their shadows, and out of their values as they are."""
        name = computation.name, instruction.name
        key = tuple(id(leaf) for member in operands.values() for leaf in member)
        known = self._last.get(name)
        if known is not None and known[0] == key:
            return known[1], known[2]
        if name not in self._functions:
            self._functions[name] = self._kernels.exchange(computation, instruction)
        function = self._functions[name]
        given = {number: list(map(wide, member)) for number, member in operands.items()}
        shadows = {number: list(map(self._store.get, member)) for number, member in operands.items()}
        here = {number: flat(result) for number, result in function(given).items()}
        exact = here
        if any(shadow is not None for member in shadows.values() for shadow in member):
            known_exactly = {
                number: [
                    array if shadow is None else shadow.exact(leaf)
                    for array, shadow, leaf in zip(given[number], shadows[number], operands[number], strict=True)
                ]
                for number in operands
            }
            exact = {number: flat(result) for number, result in function(known_exactly).items()}
        self._last[name] = key, exact, here
        return exact, here


def _taken_by_collectives(computation: Computation) -> frozenset[str]:
    return frozenset(name for instruction in computation if exchanges(instruction) for name in instruction.operands)
