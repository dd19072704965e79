"""Which values must share a buffer: those that a loop or a branch passes on, and those that are updated in place.

Source: XLA, HloAliasAnalysis and HloDataflowAnalysis::GetInPlaceInputOutputPairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hloexec.analysis.buffers.dataflow import Dataflow
from hloexec.analysis.buffers.flattening import FlatSchedule
from hloexec.analysis.calls import CallKind, call_of, calls_of
from hloexec.core.ir import Computation, Instruction, Module, TupleShape, subshapes
from hloexec.core.places import Place
from hloexec.core.values import Ints
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.traits import Index


def shared_buffers(
    module: Module, flat: FlatSchedule, dataflow: Dataflow, held: Mapping[int, Sequence[tuple[int, int]]]
) -> tuple[Ints, ...]:
    """Groups of numbers of values that lie in one buffer; every value is in one group.

    `held` says when each value holds its buffer, from when to when, in order. Values that would overwrite one another
    while both are needed do not share: XLA puts copies between them before it assigns buffers, but a module may not
    have come so far.
    """
    groups = _Groups([held[value.number] for value in dataflow.values])

    def join(ours: Place, other: Place) -> None:
        for one in dataflow.values_at(ours):
            for another in dataflow.values_at(other):
                groups.join(one.number, another.number)

    for computation, instruction in flat.sequence:
        for ours, other in _joined(module, computation, instruction):
            join(ours, other)
        for operand_number, operand_index, index in in_place_pairs(module, instruction):
            if operand_number < len(instruction.operands):
                operand = Place(computation.name, instruction.operands[operand_number], operand_index)
                join(operand, Place(computation.name, instruction.name, index))
    entry = module.entry
    for alias in module.input_output_alias:
        if alias.parameter_number < len(entry.parameters):
            parameter = Place(entry.name, entry.parameters[alias.parameter_number].name, alias.parameter_index)
            join(parameter, Place(entry.name, entry.root_name, alias.output_index))
    return groups.all()


def _joined(module: Module, computation: Computation, instruction: Instruction) -> Iterator[tuple[Place, Place]]:
    """Pairs of places that hand one buffer from one to the other."""
    others: list[tuple[str, str]] = []
    if role_of(instruction) is Role.WHILE:
        condition, body = (module.by_name[call.computation] for call in calls_of(instruction))
        others = [(computation.name, instruction.operands[0]), (body.name, body.root_name)]
        others += [(callee.name, callee.parameters[0].name) for callee in (body, condition) if callee.parameters]
    elif role_of(instruction) is Role.CONDITIONAL:
        names = [call.computation for call in calls_of(instruction)]
        others = [(name, module.by_name[name].root_name) for name in names]
    if others:
        for index, _ in subshapes(instruction.shape):
            for name, other in others:
                yield Place(computation.name, instruction.name, index), Place(name, other, index)


def in_place_pairs(module: Module, instruction: Instruction) -> Iterator[tuple[int, Index, Index]]:
    """What an instruction updates in place: number and part of the operand, and part of the result."""
    traits = traits_of(instruction)
    if traits.in_place:
        shape = instruction.shape
        count = len(shape.elements) if isinstance(shape, TupleShape) else 0
        yield from ((number, (), (number,)) for number in range(count)) if count else [(0, (), ())]
    elif traits.fuses or role_of(instruction) is Role.CUSTOM_CALL:
        stated = instruction.attributes.output_to_operand_aliasing
        yield from ((alias.operand_number, alias.operand_index, alias.output_index) for alias in stated)
        if traits.fuses:
            taken = {alias.output_index for alias in stated}
            yield from (pair for pair in _fusion_pairs(module, instruction) if pair[2] not in taken)


def _fusion_pairs(module: Module, fusion: Instruction) -> Iterator[tuple[int, Index, Index]]:
    """Outputs of a fusion that one of its instructions makes by updating a parameter in place."""
    fused = module.by_name.get(call_of(fusion, CallKind.FUSED))
    if fused is None:
        return
    for index, shape in subshapes(fusion.shape):
        if isinstance(shape, TupleShape):
            continue
        source, source_index = _through_tuples(fused, fused.root, index)
        updated = _updated_operand(module, fused, source, source_index)
        if updated is not None and traits_of(updated[0]).fuses:
            updated = _updated_operand(module, fused, *updated) or updated
        if updated is not None and role_of(updated[0]) is Role.PARAMETER:
            yield updated[0].attributes.number, updated[1], index


def _updated_operand(
    module: Module, fused: Computation, source: Instruction, index: Index
) -> tuple[Instruction, Index] | None:
    """The instruction in a fusion whose buffer `source` updates in place to give its result at `index`."""
    for operand_number, operand_index, output_index in in_place_pairs(module, source):
        if output_index == index and operand_number < len(source.operands):
            operand = fused.by_name[source.operands[operand_number]]
            return _through_tuples(fused, operand, operand_index)
    return None


def _through_tuples(fused: Computation, instruction: Instruction, index: Index) -> tuple[Instruction, Index]:
    """Where what shows at a place comes from, through tuples and get-tuple-elements."""
    while True:
        if role_of(instruction) is Role.TUPLE and index:
            instruction, index = fused.by_name[instruction.operands[index[0]]], index[1:]
        elif role_of(instruction) is Role.GET_TUPLE_ELEMENT:
            index = (instruction.attributes.index, *index)
            instruction = fused.by_name[instruction.operands[0]]
        else:
            return instruction, index


class _Groups:
    """Sets of numbers that grow together, as long as nothing in them is needed at the same time."""

    def __init__(self, held: Iterable[Sequence[tuple[int, int]]]) -> None:
        self._group_of = [([number], list(spans)) for number, spans in enumerate(held)]
        """Of each number, the members of its group, and their spans in order."""

    def join(self, one: int, another: int) -> None:
        """Make one group of two, unless a member of one is needed at the same time as one of the other."""
        (members, spans), (others, other_spans) = self._group_of[one], self._group_of[another]
        if members is others or _overlap(spans, other_spans):
            return
        members += others
        spans[:] = sorted(spans + other_spans)
        for number in others:
            self._group_of[number] = members, spans

    def all(self) -> tuple[Ints, ...]:
        groups = {id(members): members for members, _ in self._group_of}
        return tuple(tuple(sorted(members)) for members in groups.values())


def _overlap(ours: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    """Whether a span of one list and one of the other have more in common than an end; each list is in order."""
    i = j = 0
    while i < len(ours) and j < len(other):
        if max(ours[i][0], other[j][0]) < min(ours[i][1], other[j][1]):
            return True
        if ours[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return False
