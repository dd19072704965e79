"""Live ranges of a module's values, both ends inclusive, and which values must share a buffer.

Which values must share a buffer: those that a loop or a branch passes on, and those that are updated in place. Source:
XLA, HloAliasAnalysis and HloDataflowAnalysis::GetInPlaceInputOutputPairs.

A value is live from its definition to its last use; an entry parameter during the whole program, unless an output
reuses its buffer; the result of a computation until the computation ends. The initial value of a loop is live until the
body begins. Where values share a buffer, the range of each ends at the latest where the next one begins. Source: XLA,
HloLiveRange.

A value holds its buffer only where it is still needed: not in a branch after its last use there, if what uses it later
is another branch. There, the buffer is free for what the branch makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from hloexec.analysis.buffers.dataflow import Dataflow, FlatSchedule
from hloexec.analysis.calls import CallKind, call_of, calls_of
from hloexec.core.ir import Computation, Instruction, Module, TupleShape, subshapes
from hloexec.core.places import Place
from hloexec.core.structs import frozen
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


@frozen
class Lifetimes:
    """By number of the value: first and last time; and the groups of values that share a buffer."""

    spans: dict[int, tuple[int, int]]
    groups: tuple[Ints, ...]


def lifetimes(module: Module, flat: FlatSchedule, dataflow: Dataflow) -> Lifetimes:
    """When the values live, and which of them share a buffer."""
    places = dataflow.places()
    users = _users(flat)
    readers, element_readers = _readers(users, of_elements=False), _readers(users, of_elements=True)
    async_ends = {name: _async_end(flat, name, users) for name in flat.async_callers}
    aliased = {(alias.parameter_number, alias.parameter_index) for alias in module.input_output_alias}
    spans: dict[int, tuple[int, int]] = {}
    held: dict[int, list[tuple[int, int]]] = {}
    for value in dataflow.values:
        place = value.place
        computation = module.by_name[place.computation]
        time = flat.times[place.computation, place.instruction]
        is_parameter = role_of(value.instruction) is Role.PARAMETER
        start = flat.spans[computation.name][0] if is_parameter else time
        end = flat.spans[computation.name][1] if place.instruction == computation.root_name else time
        if is_parameter and computation.name == module.entry_name:
            number = value.instruction.attributes.number
            end = end if (number, place.index) in aliased else len(flat.sequence)
        needs = [(computation.name, end)]
        for other in places[value.number]:
            is_root = other.instruction == module.by_name[other.computation].root_name
            shown = flat.spans[other.computation][1] if is_root else flat.times[other.computation, other.instruction]
            needs.append((other.computation, shown))
        uses = [
            (shown, user)
            for shown in (place, *places[value.number])
            for user in (element_readers if shown.index else readers).get((shown.computation, shown.instruction), ())
        ]
        last_use, taken_over = _last_uses(module, flat, uses)
        last_need = max(time for _, time in needs)
        spans[value.number] = start, max(last_use, last_need, async_ends.get(place.computation, -1))
        held[value.number] = _held(flat, start, [*needs, *taken_over])
    groups = shared_buffers(module, flat, dataflow, held)
    for group in groups:
        _cut(spans, group)
    return Lifetimes(spans, groups)


_Users = dict[tuple[str, str], list[Instruction]]


def _users(flat: FlatSchedule) -> _Users:
    """By instruction, those that name it as an operand."""
    users: _Users = {}
    for computation, instruction in flat.sequence:
        for name in dict.fromkeys(instruction.operands):
            users.setdefault((computation.name, name), []).append(instruction)
    return users


def _readers(users: _Users, *, of_elements: bool) -> _Users:
    """Of the users of tuples and arrays, or of what tuples hold, those that read it.

    Copies and get-tuple-elements read of a tuple the table only, tuples nothing. A call reads nothing itself, its
    computation does.
    """

    def reads(user: Instruction) -> bool:
        role = role_of(user)
        is_call = role is Role.CALL and not traits_of(user).fuses
        if is_call or role is Role.TUPLE or user.opcode == "domain":
            return False
        return not (of_elements and (role is Role.GET_TUPLE_ELEMENT or user.opcode == "copy"))

    return {place: [user for user in candidates if reads(user)] for place, candidates in users.items()}


_Need = tuple[str, int]
"""A time until which a value is needed, and the computation that needs it."""


def _last_uses(
    module: Module, flat: FlatSchedule, uses: Iterable[tuple[Place, Instruction]]
) -> tuple[int, list[_Need]]:
    """When a value is read last (-1 for never), and until when each use needs it: until it reads it or takes it over.

    A loop reads its initial value when its body begins, a conditional its operands when it is done; what is inside
    takes them over before, when the condition or the branch begins.
    """
    last = -1
    needs: list[_Need] = []
    for place, user in uses:
        role = role_of(user)
        read = flat.times[place.computation, user.name]
        if role is Role.WHILE:
            condition, body = (module.by_name[call.computation] for call in calls_of(user))
            read = flat.times[body.name, body.parameters[0].name]
            needs.append((place.computation, flat.spans[condition.name][0]))
        elif role is Role.CONDITIONAL and place.instruction != user.operands[0]:
            branches = [call.computation for call in calls_of(user) if place.instruction in call.operands]
            needs += [(branch, flat.spans[branch][0]) for branch in branches]
        else:
            needs.append((place.computation, read))
        last = max(last, read)
    return last, needs


def _held(flat: FlatSchedule, start: int, needs: Iterable[_Need]) -> list[tuple[int, int]]:
    """When a value that is there from `start` holds its buffer: until each need, but in branches that pass it by."""
    ends: dict[str, int] = {}
    for computation, time in needs:
        ends[computation] = max(time, ends.get(computation, time))
    pieces: list[tuple[int, int]] = []
    for computation, end in ends.items():
        begin = start
        for branch_begin, branch_end in flat.passed_over[computation]:
            if begin <= branch_begin <= end:
                pieces.append((begin, branch_begin))
                begin = branch_end
        pieces.append((begin, end))
    held: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if held and begin <= held[-1][1]:
            held[-1] = held[-1][0], max(end, held[-1][1])
        else:
            held.append((begin, end))
    return held


def _async_end(flat: FlatSchedule, computation: str, users: _Users) -> int:
    """What an asynchronous computation holds is held until the operation is done."""
    caller, current = flat.async_callers[computation]
    while role_of(current) is Role.ASYNC_START or traits_of(current).part == ():
        followers = users.get((caller.name, current.name), ())
        following = [user for user in followers if role_of(user) is Role.PART]
        if not following:
            return flat.spans[computation][1]
        current = following[0]
    return flat.times[caller.name, current.name]


def _cut(spans: dict[int, tuple[int, int]], group: Ints) -> None:
    """Each value of a buffer ends where the next begins, which lives on for as long as the former would have."""
    order = sorted(group, key=lambda number: (*spans[number], number))
    for number, following in pairwise(order):
        (start, end), (next_start, next_end) = spans[number], spans[following]
        spans[following] = next_start, max(end, next_end)
        spans[number] = start, min(end, next_start)
