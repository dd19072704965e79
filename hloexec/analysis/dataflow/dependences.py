"""What results depend on besides the inputs: decisions about floats, and what HLO or the text leaves open.

What HLO, or the text of a module, leaves open: elided constants, random numbers of an unspecified generator, the order
in which a scatter writes, memory that nothing has written; and which results depend on it. Opcodes and library calls
say it in their entries (`unspecified` in `ops.traits`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import suppress

import attrs

from hloexec.analysis.calls import calls_of
from hloexec.analysis.dataflow.forward import Fact, ForwardAnalysis
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, flat_shapes, leaf_shapes
from hloexec.core.ir.shape import elements_of
from hloexec.core.structs import define, frozen
from hloexec.core.tree import fold
from hloexec.engine.devices.topology import Topology, groups_of
from hloexec.errors import InputError
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, exchanges, find_custom_call, find_opcode, is_elementwise, role_of, traits_of
from hloexec.ops.relations import Place


def decided_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """The leaves of the entry's result that depend on a decision about floats."""
    return _leaves_of(module, decides)


def ordered_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """Those that depend on an order of floats: on an argmax, a sort, the largest ones."""
    return _leaves_of(module, lambda where, each: decides(where, each) and not is_elementwise(each))


def steep_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """Those that depend on a quotient or a pole: near zero, its values are far apart for numbers that are as near as
    rounding, but it has all values between."""
    return _leaves_of(module, lambda _, instruction: _is_steep(instruction))


def _leaves_of(module: Module, test: Callable[[Computation, Instruction], bool]) -> frozenset[tuple[int, ...]]:
    places = {
        (computation.name, instruction.name)
        for computation in module
        for instruction in computation
        if test(computation, instruction)
    }
    return depending_leaves(module, places) if places else frozenset()


def _is_steep(instruction: Instruction) -> bool:
    traits = traits_of(instruction)
    return (traits.is_quotient or traits.pole is not None) and _has_floats(instruction.shape)


def decides(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction decides something about floats."""
    if role_of(instruction) not in (Role.KERNEL, Role.CUSTOM_CALL):
        return False
    entry, traits = find_opcode(instruction.opcode), traits_of(instruction)
    is_sorting = traits.only_compared or (entry is not None and entry.order is not None)
    if not traits.jumps and not is_sorting and _has_floats_alone(instruction.shape):
        return False
    return any(_has_floats(operand.shape) for operand in computation.operands_of(instruction))


def _has_floats_alone(shape: Shape) -> bool:
    return all(_are_floats(shape))


def _has_floats(shape: Shape) -> bool:
    return any(_are_floats(shape))


def _are_floats(shape: Shape) -> Iterator[bool]:
    """Of each array of a shape."""
    for leaf in flat_shapes(shape):
        if isinstance(leaf, ArrayShape) and leaf.is_array:
            yield leaf.element_type.is_inexact


_NONE: frozenset[Place] = frozenset()
_SOME: frozenset[Place] = frozenset((("", ""),))


@frozen
class _Open(Fact["_Open"]):
    """The places that leave a value open, its parts' aside."""

    places: frozenset[Place] = frozenset()

    def joined(self, other: _Open) -> _Open:
        return attrs.evolve(self, places=self.places | other.places)

    @property
    def all(self) -> frozenset[Place]:
        """With those of the parts."""
        return frozenset().union(self.places, *(part.all for part in self.parts))

    def with_places(self, places: frozenset[Place]) -> _Open:
        """The same value, left open by further places."""
        parts = tuple(part.with_places(places) for part in self.parts)
        return _Open(self.places | places, parts=parts)


def open_values(module: Module, elided: Container[str] = ()) -> dict[Place, str]:
    """What leaves open what it gives, by computation and instruction, and why, as a clause; `elided` are the constants
    whose values are known though the text elides them."""
    reasons = {}
    for computation in module:
        for instruction in computation:
            reason = _reason(module, instruction, elided)
            if reason is not None:
                reasons[computation.name, instruction.name] = reason
    return reasons


def _reason(module: Module, instruction: Instruction, elided: Container[str]) -> str | None:
    role = role_of(instruction)
    if role is Role.CONSTANT:
        is_open = instruction.attributes.literal.is_elided and instruction.name not in elided
        return "is elided in the text" if is_open else None
    if role is Role.CUSTOM_CALL and find_custom_call(instruction.attributes.custom_call_target) is None:
        return f"is the result of {instruction.attributes.custom_call_target}, which hloexec does not know"
    rule = traits_of(instruction).unspecified
    return None if rule is None else rule(instruction, module)


def elides_constants(module: Module) -> bool:
    """Whether the text of a module leaves out the value of a constant."""
    constants = (
        instruction for computation in module for instruction in computation if role_of(instruction) is Role.CONSTANT
    )
    return any(constant.attributes.literal.is_elided for constant in constants)


def open_leaves(module: Module, values: Container[Place]) -> dict[tuple[int, ...], frozenset[Place]]:
    """The leaves of the entry's result that depend on `values`, with those that they depend on."""
    return _leaves(_Analysis(module, values))


def depending_leaves(module: Module, values: Container[Place]) -> frozenset[tuple[int, ...]]:
    """The leaves of the entry's result that depend on any of `values`."""
    return frozenset(_leaves(_Whether(module, values)))


def _leaves(analysis: _Analysis) -> dict[tuple[int, ...], frozenset[Place]]:
    entry = analysis.module.entry
    fact = analysis.run(entry, [analysis.nothing] * len(entry.parameters))
    leaves = {}
    for index, _ in leaf_shapes(entry.result_shape):
        part, places = fact, fact.places
        for number in index:
            part = part.parts[number] if number < len(part.parts) else analysis.nothing
            places |= part.places
        if places:
            leaves[index] = places
    return leaves


@define(eq=False)
class _Analysis(ForwardAnalysis[_Open]):
    """Follows open values through a module."""

    values: Container[Place]

    @property
    def most_rounds(self) -> int:
        """Places only ever come up, so there is an end."""
        return 1_000_000

    @property
    def nothing(self) -> _Open:
        return _Open()

    def constant(self, instruction: Instruction, place: Place) -> _Open:
        return _everywhere(instruction.shape, self._own(place))

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[_Open], place: Place
    ) -> _Open:
        places = self._own(place).union(*(operand.all for operand in operands))
        for name in computation_names(instruction.attributes):
            places |= self.run(self.module.by_name[name], [], is_final=False).all
        return _everywhere(instruction.shape, places)

    def looped(self, condition: Computation, body: Computation, state: _Open) -> _Open:
        """How often a loop runs decides over all that it hands on."""
        return state.with_places(self.run(condition, [state], is_final=False).all)

    def chosen(self, choice: _Open, fact: _Open) -> _Open:
        return fact.with_places(choice.all)

    def _own(self, place: Place) -> frozenset[Place]:
        return frozenset((place,)) if place in self.values else frozenset()


@define(eq=False)
class _Whether(_Analysis):
    """Does not tell one place from another: sets of thousands take long to join."""

    def _own(self, place: Place) -> frozenset[Place]:
        return _SOME if place in self.values else _NONE


def agreed_parameters(module: Module, topology: Topology) -> frozenset[int]:
    """The parameters of the entry, without floats, that decide whether, and how often, devices communicate: numbers of
    iterations, lengths, keys. Where devices have others, some wait for ever."""
    communicating = _communicating(module) if topology.count > 1 else set()
    if not communicating:
        return frozenset()
    entry, steering = module.entry, _Steering(module, (), topology)
    places = [(entry.name, parameter.name) for parameter in entry.parameters]
    shapes = entry.parameter_shapes
    steering.run(entry, [_everywhere(shape, frozenset([place])) for shape, place in zip(shapes, places, strict=True)])
    deciding: set[Place] = set()
    for computation in module:
        for instruction in computation:
            called = [call.computation for call in calls_of(instruction)]
            if communicating.isdisjoint(called):
                continue
            role = role_of(instruction)
            if role is Role.WHILE:
                deciding |= steering.places.get((called[0], module.by_name[called[0]].root_name), _NONE)
            elif role is Role.CONDITIONAL:
                deciding |= steering.places.get((computation.name, instruction.operands[0]), _NONE)
    numbers = [number for number, place in enumerate(places) if place in deciding]
    return frozenset(number for number in numbers if not _has_floats(shapes[number]))


def _communicating(module: Module) -> set[str]:
    """The computations in which devices communicate, or in what they call."""
    names: set[str] = set()
    for computation in module.computations:  # what is called comes first
        called = {call.computation for instruction in computation for call in calls_of(instruction)}
        if not names.isdisjoint(called) or any(map(exchanges, computation)):
            names.add(computation.name)
    return names


@define(eq=False)
class _Steering(_Analysis):
    """Follows parameters through a module, as long as devices may differ in them."""

    topology: Topology
    places: dict[Place, frozenset[Place]] = attrs.field(factory=dict)
    """What each value depends on."""

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[_Open], place: Place
    ) -> _Open:
        if self._agree(instruction):
            return _everywhere(instruction.shape, _NONE)
        return _Analysis.computed(self, computation, instruction, operands, place)

    def _agree(self, instruction: Instruction) -> bool:
        """Whether all devices have the same result, whatever they give for it."""
        entry = find_opcode(instruction.opcode)
        if entry is None or not entry.gives_same:
            return False
        with suppress(InputError):
            return len(groups_of(instruction, self.topology)) == 1
        return False

    def found(self, place: Place, fact: _Open) -> None:
        if places := fact.all:
            self.places[place] = self.places.get(place, _NONE) | places


def _everywhere(shape: Shape, places: frozenset[Place]) -> _Open:
    if not places:
        return _Open(places)
    return fold(shape, elements_of, lambda _: _Open(places), lambda _, parts: _Open(parts=tuple(parts)))
