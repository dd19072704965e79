"""What sums constants meet.

Over which dimensions values were summed, and along which they count, and which constants meet such values.

Sums are those of reductions, windows as long as their input and contractions, and what a loop adds up that takes
elements at its counter. They remain sums in whatever is computed from them element by element. What counts
(an iota) does so as long as it is only moved, converted, added to and multiplied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.dtypes import Kind
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.tree import leaves
from hloexec.ops.registry import Role, find_opcode, role_of, traits_of
from hloexec.ops.relations import Place, Relations
from hloexec.tools.shrinking.dimensions import Dimensions

Roots: TypeAlias = tuple[int, ...]
"""Of some dimensions, in order; a root occurs as often as there are dimensions that it stands for."""
Index: TypeAlias = tuple[int, ...]
"""The place of a leaf in nested tuples."""

_LEAST_MEAN = 8
"""One over a smaller number is more often something else."""
_MOST_CANDIDATES = 24
_MOST_SOURCES = 4


@frozen
class _Fact(Fact["_Fact"]):
    sums: tuple[Roots, ...] = ()
    """Over which dimensions it was summed: the last sums first, and with those before."""
    reduced: frozenset[Roots] = frozenset()
    """Those of the sums that are not contractions."""
    counts: tuple[Roots, ...] = ()
    """Along which dimensions it counts."""
    sources: tuple[Place, ...] = ()
    """The constants that it consists of, or was computed from with numbers that are no sums."""
    devices: frozenset[int] = frozenset()
    """The axes of devices over which it is a sum."""
    adds_to: Index | None = None
    """The element of a loop's state of which it is the sum with something else."""
    is_mean: bool = False
    """Whether its sums were taken for means by the constant that they met: others meet a value like any other."""

    def joined(self, other: _Fact) -> _Fact:
        return _Fact(
            sums=_few((*self.sums, *other.sums)),
            reduced=self.reduced | other.reduced,
            counts=_few((*self.counts, *other.counts)),
            sources=_places((*self.sources, *other.sources)),
            devices=self.devices | other.devices,
            adds_to=self.adds_to if self.adds_to == other.adds_to else None,
            is_mean=self.is_mean or other.is_mean,
        )


_NOTHING = _Fact()


def _few(sums: Iterable[Roots]) -> tuple[Roots, ...]:
    return tuple(dict.fromkeys(sums))[:_MOST_CANDIDATES]


def _places(sources: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(sources))[:_MOST_SOURCES]


@define(eq=False)
class Sums(ForwardAnalysis[_Fact]):
    """What constants of a module meet."""

    dimensions: Dimensions
    met: dict[Place, dict[Roots, None]] = attrs.field(factory=dict)
    """By constant, the sums that it meets in an operation on elements."""
    counted: dict[Place, dict[Roots, None]] = attrs.field(factory=dict)
    """By constant, the dimensions along which numbers count that it meets."""
    spread: dict[Place, dict[Roots, None]] = attrs.field(factory=dict)
    """By constant, the dimensions of arrays that it fills."""
    everywhere: dict[Roots, bool] = attrs.field(factory=dict)
    """All dimensions over which something is summed, and whether by more than contractions."""
    scaling: dict[Place, frozenset[int]] = attrs.field(factory=dict)
    """Constants that meet sums over devices, and the axes of these."""

    weights: set[Place] = attrs.field(factory=set)
    """Constants that meet means."""

    reduced: dict[Place, set[Roots]] = attrs.field(factory=dict)
    """By constant, those of the sums that it meets that are not contractions."""

    axes: frozenset[int] = frozenset()
    """Those of devices."""
    members: frozenset[int] = frozenset()
    """Numbers of devices that stay."""
    _tiled: Mapping[int, int] = attrs.field(factory=dict)
    """By the root of places of windows, that of what a sum over these is a sum over in the end."""

    @classmethod
    def of(cls, module: Module, dimensions: Dimensions) -> Sums:
        relations = dimensions.relations
        root = relations.root
        tiled = {root(places): root(whole) for places, whole in relations.tiled.items()}
        tiled = {places: tiled.get(whole, whole) for places, whole in tiled.items()}
        axes, members = relations.device_roots()
        sums = cls(module, dimensions, axes=axes, members=members, tiled=tiled)
        sums.run(module.entry, ())
        return sums

    @property
    def nothing(self) -> _Fact:
        return _NOTHING

    @property
    def relations(self) -> Relations:
        return self.dimensions.relations

    def constant(self, instruction: Instruction, place: Place) -> _Fact:
        return _Fact(sources=(place,))

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[_Fact], place: Place
    ) -> _Fact:
        root = self.relations.root
        entry, traits = find_opcode(instruction.opcode), traits_of(instruction)
        if place in self.relations.counted:
            return _Fact(counts=((root(self.relations.counted[place]),),))
        if place in self.relations.summed:
            over = tuple(sorted(map(root, self.relations.summed[place])))
            is_contraction = traits.contraction is not None or role_of(instruction) is Role.CUSTOM_CALL
            facts = [self._summed(operand, over, is_contraction=is_contraction) for operand in operands]
            return attrs.evolve(facts[0], parts=tuple(facts))
        if entry is not None and entry.is_elementwise and len(operands) > 1:
            met = self._met(operands)
            is_number = self.dimensions.values[place[0]][place[1]].array.element_type.kind is not Kind.PRED
            is_linear = is_number and (traits.same_unit or traits.keeps_unit or traits.is_product or traits.is_quotient)
            own = [operand_fact.adds_to for operand_fact in operands if operand_fact.adds_to is not None]
            adds_to = own[0] if own and traits.cancels and traits.commutes else None
            return attrs.evolve(met, counts=met.counts if is_linear else (), adds_to=adds_to)
        if len(operands) == 1 or traits.moves is not None:
            joined = self._joined(operands)
            sources = operands[0].sources if operands else ()
            for source in sources:
                self._fill(source, place)
            is_same = traits.moves is not None or traits.converts or traits.keeps_unit
            return attrs.evolve(joined, sources=sources, counts=joined.counts if is_same else ())
        return self.nothing

    def _summed(self, operand: _Fact, dimensions: Roots, *, is_contraction: bool = False) -> _Fact:
        own, tiled = set(dimensions), self._tiled
        whole = tuple(sorted(tiled.get(root, root) for root in dimensions))
        more = (
            tuple(sorted((*dimensions, *summed_roots))) for summed_roots in operand.sums if own.isdisjoint(summed_roots)
        )
        sums = _few([dimensions, whole, *more])
        for roots in sums:
            if not self.members.issuperset(roots):
                self.everywhere[roots] = not is_contraction or self.everywhere.get(roots, False)
        reduced = frozenset() if is_contraction else frozenset(sums)
        return _Fact(sums=sums, reduced=reduced, devices=frozenset(own.intersection(self.axes)))

    def _met(self, operands: list[_Fact]) -> _Fact:
        joined = self._joined(operands)
        for source in {source: None for operand in operands for source in operand.sources}:
            self.met.setdefault(source, {}).update(dict.fromkeys(joined.sums))
            self.reduced.setdefault(source, set()).update(joined.reduced)
            self.counted.setdefault(source, {}).update(dict.fromkeys(joined.counts))
            if joined.devices:
                self.scaling[source] = self.scaling.get(source, joined.devices) | joined.devices
            if joined.is_mean:
                self.weights.add(source)
            if self._is_mean(source, joined.sums):
                joined = attrs.evolve(joined, sums=(), is_mean=True)
        return attrs.evolve(joined, sources=() if joined.sums else joined.sources, devices=frozenset())

    def _is_mean(self, source: Place, sums: Iterable[Roots]) -> bool:
        """Whether a constant makes a mean of a sum that it meets."""
        value = self.module.by_name[source[0]].by_name[source[1]].attributes.literal.held
        if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind in "biu":
            return False
        sizes = self.relations.sizes
        counts = {prod(sizes[root] for root in roots) for roots in sums}
        return any(value.reshape(-1)[0] == value.dtype.type(1 / count) for count in counts if count >= _LEAST_MEAN)

    def _joined(self, operands: Sequence[_Fact]) -> _Fact:
        joined = operands[0] if operands else self.nothing
        for operand in operands[1:]:
            joined = joined.joined(operand)
        return attrs.evolve(joined, parts=())

    def _fill(self, source: Place, place: Place) -> None:
        roots = sorted(map(self.relations.root, self.dimensions.values[place[0]][place[1]].axes))
        self.spread.setdefault(source, {}).update(dict.fromkeys([tuple(roots), *((root,) for root in roots)]))

    def looped(self, condition: Computation, body: Computation, state: _Fact) -> _Fact:
        """What the body adds to is a sum over the dimensions along which the loop's counters are positions."""
        parameter_value = self.dimensions.values[body.name][body.parameters[0].name]
        result = self.run(body, [_marked(state)], is_final=False)
        added = {index for index, fact in leaves(result, lambda fact: fact.parts or None) if fact.adds_to == index}
        root, unit = self.relations.root, self.relations.units.root
        units = {index: unit(parameter_value.units[index]) for index in added & parameter_value.units.keys()}
        positions = [position for position in self.relations.positions if unit(position.unit) in units.values()]
        counters = {unit(position.unit) for position in positions}
        over = tuple(sorted({root(axis) for position in positions for axis in position.dimensions}))
        sums = {index for index, counted_unit in units.items() if counted_unit not in counters}
        return self._with_sums(state, (), sums, over) if over else state

    def _with_sums(self, fact: _Fact, index: Index, sums: Collection[Index], over: Roots) -> _Fact:
        parts = [self._with_sums(part, (*index, number), sums, over) for number, part in enumerate(fact.parts)]
        return attrs.evolve(self._summed(fact, over) if index in sums else fact, parts=tuple(parts))


def _marked(fact: _Fact, index: Index = ()) -> _Fact:
    """A fact each leaf of which says where it is."""
    parts = tuple(_marked(part, (*index, number)) for number, part in enumerate(fact.parts))
    return attrs.evolve(fact, parts=parts, adds_to=index)
