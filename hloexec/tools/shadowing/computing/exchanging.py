"""Shadows of what devices exchange, which need those of all members of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array, flat
from hloexec.engine.devices.manual_regions import crossings
from hloexec.engine.devices.topology import Group, Topology, groups_of
from hloexec.engine.exec.observers import Event
from hloexec.ops.collective.groups import is_handed_on
from hloexec.ops.registry import exchanges, find_opcode, traits_of
from hloexec.tools.shadowing.computing.elements import Difference, Sample, difference_of, sampled, taken
from hloexec.tools.shadowing.computing.widening import Kernels
from hloexec.tools.shadowing.kinds import Losses, losses
from hloexec.tools.shadowing.store import Shadow, Store, wide

Found = tuple[Array, Difference | None, Losses | None, list[Shadow | None]]


@frozen(eq=False)
class _Meeting:
    """An exchange of arrays: a collective, or one of the arrays that cross the boundary of a manual region."""

    operands: tuple[str, ...]
    groups: list[Group]
    function: Callable[[dict[int, list[Array]]], Mapping[int, Any]]
    """What the members of a group get, from what they hold, by their numbers in the group."""
    numbers: tuple[int, ...]
    """Which leaves of the result they get."""
    count: int | None = None
    """How many operands a collective has, of which it hands some on; the result of its start has them before others."""

    def given(self, leaves: Sequence[Array]) -> Sequence[Array]:
        """The leaves that a member gets, of those of the result."""
        first = self.count if self.count is not None and len(leaves) >= 2 * self.count else 0
        return [leaves[first + number] for number in self.numbers]


class Exchanges:
    """Keeps the operands of exchanges until they have met."""

    def __init__(self, module: Module, kernels: Kernels, store: Store, topology: Topology) -> None:
        self._module = module
        self._kernels = kernels
        self._store = store
        self._topology = topology
        self._wanted: dict[str, frozenset[str]] = {}
        """By computation, the instructions that exchanges take."""
        self._held: dict[tuple[str, str], dict[int, Any]] = {}
        """The latest values of these, by computation, name and device."""
        self._meetings: dict[tuple[str, str], list[_Meeting]] = {}
        self._last: dict[_Meeting, tuple[tuple[int, ...], dict[int, list[Array]], dict[int, list[Array]]]] = {}

    def note(self, event: Event) -> None:
        """Keep what an exchange will take."""
        computation = event.computation
        wanted = self._wanted.get(computation.name)
        if wanted is None:
            wanted = self._wanted[computation.name] = _exchanged(computation)
        if event.instruction.name in wanted:
            held = self._held.setdefault((computation.name, event.instruction.name), {})
            held.update(dict.fromkeys(event.devices, event.value))

    def results(self, event: Event, leaves: Sequence[Array]) -> Iterator[Found]:
        """The differences of the leaves that an exchange gives to the event's devices, and what it added.

        A leaf that devices of an earlier event have got, too, has its shadow already.
        """
        computation, instruction = event.computation, event.instruction
        for meeting in self._meetings_of(computation, instruction):
            group, operands = self._members(computation, meeting, event.devices[0])
            number = next(number for number, member in group.items() if member == event.devices[0])
            exact, here = self._met(meeting, operands)
            shadows = [self._store.get(leaf) for member in operands.values() for leaf in member]
            moves = traits_of(instruction).moves is not None
            own = meeting.given(leaves)
            for leaf, theirs, its in zip(own, exact[number], here[number], strict=True):
                if self._store.knows(leaf):
                    continue
                difference = difference_of(theirs, leaf)
                if not difference.energy and not difference.is_whole:
                    yield leaf, None, None, shadows
                elif moves:
                    yield leaf, difference, None, shadows
                else:
                    lost = self._losses(instruction, leaf, theirs, its, difference, shadows)
                    yield leaf, difference, lost, shadows

    def _losses(
        self,
        instruction: Instruction,
        leaf: Array,
        exact: Array,
        here: Array,
        difference: Difference,
        shadows: Sequence[Shadow | None],
    ) -> Losses:
        places = sampled(difference, leaf)
        ours, theirs, its = (taken(array, places) for array in (wide(leaf), exact, here))
        sample = Sample(ours, theirs, its, ours - its, its - theirs)
        found = losses(sample, element_type_of(leaf.dtype), traits_of(instruction))
        energies = [0.0 if shadow is None else max(shadow.energy, float(shadow.lost)) for shadow in shadows]
        total = sum(energies) or 1.0
        weights = tuple(energy / total for energy in energies)
        return attrs.evolve(found, weights=weights, lost_weights=(0.0,) * len(weights))

    def _meetings_of(self, computation: Computation, instruction: Instruction) -> list[_Meeting]:
        key = computation.name, instruction.name
        if key not in self._meetings:
            entry = find_opcode(instruction.opcode)
            if entry is not None and entry.exchange is not None:
                function = self._kernels.exchange(computation, instruction)
                names, by_name, attributes = instruction.operands, computation.by_name, instruction.attributes
                numbers = tuple(
                    number
                    for number, name in enumerate(names)
                    if not is_handed_on(number, by_name[name].shape, attributes)
                )
                operands = tuple(names[number] for number in numbers)
                groups = groups_of(instruction, self._topology)
                found = [_Meeting(operands, groups, function, numbers, len(names))]
            else:
                arrays = zip(instruction.operands, crossings(self._module, computation, instruction), strict=True)
                found = [
                    _Meeting((name,), each.groups(self._topology), each.exchange, (index,))
                    for index, (name, each) in enumerate(arrays)
                    if not each.is_identity
                ]
            self._meetings[key] = found
        return self._meetings[key]

    def _members(
        self, computation: Computation, meeting: _Meeting, device: int
    ) -> tuple[Group, dict[int, list[Array]]]:
        """The devices of a group by their numbers, and the operands of each."""
        group = next(group for group in meeting.groups if device in group.values())
        held = [self._held[computation.name, name] for name in meeting.operands]
        return group, {
            number: [leaf for values in held for leaf in flat(values[member])] for number, member in group.items()
        }

    def _met(
        self, meeting: _Meeting, operands: dict[int, list[Array]]
    ) -> tuple[dict[int, list[Array]], dict[int, list[Array]]]:
        """What the members get exactly: out of their shadows, and out of their values as they are."""
        key = *operands, *(id(leaf) for member in operands.values() for leaf in member)
        known = self._last.get(meeting)
        if known is not None and known[0] == key:
            return known[1], known[2]
        function = meeting.function
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
        self._last[meeting] = key, exact, here
        return exact, here


def _exchanged(computation: Computation) -> frozenset[str]:
    return frozenset(name for instruction in computation if exchanges(instruction) for name in instruction.operands)
