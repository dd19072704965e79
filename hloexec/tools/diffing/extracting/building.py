"""The part of either module that shows what a diff has found, with the same parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import attrs

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.devices.topology import Topology
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.diffing.extracting.fits import Fit, fit_of
from hloexec.tools.diffing.extracting.flattening import Feed, flat_module, shape_of
from hloexec.tools.diffing.extracting.pair import ExtractedPair
from hloexec.tools.diffing.extracting.part import Key, Part, can_stand_alone, key_of, part_behind, part_of, way_between
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.replaying.states import State

_AS_IT_IS = Fit()


@frozen(eq=False)
class _Input:
    """A parameter of both modules."""

    arrays: list[Array]
    """Its value on each device of the new modules."""
    shape: ArrayShape
    name: str
    ours: list[tuple[Node, Fit]] = attrs.field(factory=list)
    """The values of `after` that it is."""
    theirs: list[tuple[Node, Fit]] = attrs.field(factory=list)


@frozen(eq=False)
class Extractor:
    """Extracts from both modules what is to blame."""

    modules: tuple[Module, Module]
    """`before` and `after`."""
    numerics: tuple[NumericsPolicy, NumericsPolicy]
    topology: Topology
    """That of `after`."""
    state: State
    """The replay before anything is corrected."""

    def extract(self, blamed: Blamed) -> ExtractedPair:
        """The part of `after` that is to blame, and what its counterpart is computed from."""
        ours, theirs, notes = self._parts(blamed)
        inputs = self._inputs(ours, theirs)
        results, remarks = self._results(ours, theirs, blamed)
        counts = (self.topology.replicas, self.topology.partitions) if ours.devices else (1, 1)
        made: list[Module | None] = [None, None]
        for side, part in enumerate((theirs, ours)):
            if part is not None:
                feeds = [Feed(each.name, each.shape, tuple((each.theirs, each.ours)[side])) for each in inputs]
                module = flat_module(self.modules[side], part, feeds, results[side])
                made[side] = attrs.evolve(module, replica_count=counts[0], num_partitions=counts[1])
        before, after = made
        assert after is not None
        return ExtractedPair(
            before,
            after,
            [[each.arrays[row] for each in inputs] for row in range(counts[0] * counts[1])],
            None if theirs is None else theirs.target.instance.name,
            ours.target.instance.name,
            ours.target.device,
            self.numerics,
            (*notes, *remarks),
            is_comparable=not remarks,
        )

    def _parts(self, blamed: Blamed) -> tuple[Part, Part | None, list[str]]:
        """The parts of `after` and of `before`, and what could not be extracted."""
        target, counterpart, members = _ends(blamed)
        ours = part_of(target, members)
        if ours.devices and len(ours.devices) < self.topology.count:
            ours = Part(target, (), (target,))
        notes = []
        if blamed.place is not None:
            # What hands on the values of a loop, or chooses a branch.
            notes.append(f"%{blamed.place.instruction} computes nothing itself; what it hands on is extracted")
        if not ours.inside:
            notes.append(f"{_named(target, 'after')}, and after.hlo has what it gave as its input")
        if counterpart is None:
            notes.append(f"no instruction of before corresponds to %{_name(target)}")
            return ours, None, notes
        theirs = self._counterpart(ours, counterpart, notes)
        return ours, theirs, notes

    def _counterpart(self, ours: Part, counterpart: Node, notes: list[str]) -> Part | None:
        matches = [self.state.matches[node.number] for node in ours.boundary]
        known = {key_of(match.node) for match in matches if match is not None}
        found = part_behind(counterpart, known, self.state.matched)
        if found.devices != ours.devices:
            which = counterpart if found.devices else ours.target
            notes.append(
                f"%{_name(which)} exchanges values between devices, and its counterpart does not "
                "exchange the same; nothing of before is extracted"
            )
            return None
        if not found.inside and not _is_parameter(counterpart):
            notes.append(f"{_named(counterpart, 'before')}, and before.hlo has what it gave as its input")
        return found

    def _inputs(self, ours: Part, theirs: Part | None) -> list[_Input]:
        """The parameters: values of `before` that `after` has as well, and what only one of them has."""
        of_before = [] if theirs is None else [_input(node, _peers(node, theirs)) for node in theirs.boundary]
        by_key: dict[Key, list[_Input]] = defaultdict(list)
        for entry in of_before:
            by_key[key_of(entry.theirs[0][0])].append(entry)
        found: list[_Input] = []
        for node in ours.boundary:
            wanted = [self.state.values[peer.number] for peer in _peers(node, ours)]
            match = self.state.matches[node.number]
            shared = None if match is None else _fitting(by_key[key_of(match.node)], wanted)
            if shared is None:
                found.append(_Input(wanted, shape_of(node, wanted[0]), _name(node), [(node, _AS_IT_IS)]))
                continue
            entry, fit = shared
            entry.ours.append((node, fit))
            if len(entry.ours) == 1:
                found.append(entry)
        return found + [entry for entry in of_before if not entry.ours]

    def _results(self, ours: Part, theirs: Part | None, blamed: Blamed) -> tuple[tuple[Fit, Fit], list[str]]:
        """What is done to the results of `before` and `after` so that they can be compared."""
        if theirs is None:
            return (_AS_IT_IS, _AS_IT_IS), []
        is_named = ours.target is blamed.node and blamed.value is not None
        right, wrong = theirs.target.value, ours.target.value
        arranged = fit_of(right, blamed.value) if is_named and blamed.value is not None else None
        if arranged is None and right.size != wrong.size:
            return (_AS_IT_IS, _AS_IT_IS), ["the results have different dimensions, so that diff cannot compare them"]
        if arranged is None:
            arranged = Fit((), None if right.shape == wrong.shape else wrong.shape)
        kinds = element_type_of(right.dtype), element_type_of(wrong.dtype)
        wide = _wider(*kinds)
        if wide is None:
            return (_AS_IT_IS, _AS_IT_IS), ["the results are of different types, so that diff cannot compare them"]
        first, second = (None if wide is kind else wide for kind in kinds)
        return (attrs.evolve(arranged, element_type=first), Fit(element_type=second)), []


def _ends(blamed: Blamed) -> tuple[Node, Node | None, Collection[Node]]:
    """Where the part of `after` and that of `before` end, and what of `after` is between the blamed instruction and the
    end."""
    compared = blamed.compared
    if compared is None or compared.ours is blamed.node:
        return blamed.node, blamed.counterpart, blamed.region
    way = blamed.region or way_between(compared.ours, blamed.node)
    if any(node is blamed.node for node in way):
        return compared.ours, compared.theirs, way
    return blamed.node, blamed.counterpart, ()


def _input(node: Node, peers: Sequence[Node]) -> _Input:
    """A value of `before`, as a parameter."""
    return _Input([peer.value for peer in peers], shape_of(node, node.value), _name(node), [], [(node, _AS_IT_IS)])


def _fitting(candidates: Sequence[_Input], wanted: Sequence[Array]) -> tuple[_Input, Fit] | None:
    """The parameter that becomes a value of `after` on every device, and how."""
    for entry in candidates:
        fits = {fit_of(given, array) for given, array in zip(entry.arrays, wanted, strict=True)}
        fit = next(iter(fits))
        if len(fits) == 1 and fit is not None:
            return entry, fit
    return None


def _peers(node: Node, part: Part) -> list[Node]:
    """What an operand of a part is on each device of the new module."""
    instance = part.target.instance
    if not part.devices:
        return [node]
    place = next(place for place, operand in enumerate(instance.operands) if operand[0].number == node.number)
    return [instance.others[device][place][0] for device in part.devices]


def _wider(first: ElementType, second: ElementType) -> ElementType | None:
    """The type that has the numbers of both."""
    if first is second:
        return first
    if not (first.is_floating and second.is_floating):
        return None
    return min(first, second, key=unit_roundoff)


def _name(node: Node) -> str:
    return node.instance.instruction.name


def _is_parameter(node: Node) -> bool:
    return node.instance.is_source and not can_stand_alone(node.instance)


def _named(node: Node, side: str) -> str:
    """Why an instruction is not computed."""
    instruction = node.instance.instruction
    if _is_parameter(node):
        return f"%{instruction.name} of {side} comes from outside, so that nothing computes it"
    return f"%{instruction.name} of {side} is a {instruction.opcode}, which cannot stand alone"
