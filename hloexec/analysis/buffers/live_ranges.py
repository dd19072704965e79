"""Live ranges of a module's values, in positions of its flattened schedule, both ends inclusive.

A value is live from its definition to its last use; an entry parameter during the whole program, unless an output
reuses its buffer; the result of a computation until the computation ends. The initial value of a loop is live until the
body begins. Where values share a buffer, the range of each ends at the latest where the next one begins. Source: XLA,
HloLiveRange.

A value holds its buffer only where it is still needed: not in a branch after its last use there, if what uses it later
is another branch. There, the buffer is free for what the branch makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hloexec.analysis.buffers.dataflow import Dataflow
from hloexec.analysis.buffers.flattening import FlatSchedule
from hloexec.analysis.buffers.sharing import shared_buffers
from hloexec.analysis.calls import calls_of
from hloexec.core.ir import Instruction, Module
from hloexec.core.places import Place
from hloexec.core.structs import frozen
from hloexec.core.values import Ints
from hloexec.ops.registry import Role, role_of, traits_of


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
    found: _Users = {}
    for computation, instruction in flat.sequence:
        for name in dict.fromkeys(instruction.operands):
            found.setdefault((computation.name, name), []).append(instruction)
    return found


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

    return {place: [user for user in found if reads(user)] for place, found in users.items()}


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
