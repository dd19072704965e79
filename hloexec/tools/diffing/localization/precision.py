"""Roundings of `before` that `after` leaves out, where the results do not show it.

A compiler may compute more precisely than the text says: it drops a conversion to a narrow type and back. Then a value
is what it is in `before` but for that rounding, which can be told exactly: each element, rounded, is that of `before`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.agreement import aligned
from hloexec.tools.diffing.graph import Graph, Instance, Node, Users
from hloexec.tools.diffing.localization.relations import NodePair, Relations, transparent_chain
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.states import State


def type_rounded_to(ours: Sequence[Node], theirs: Sequence[Node]) -> ElementType | None:
    """The type to which `before` rounds a value on its way, and `after` does not; None where there is none."""
    types = [[element_type_of(node.dtype) for node in chain] for chain in (ours, theirs)]
    if not all(entry.is_floating for side in types for entry in side):
        return None
    coarsest = [max(side, key=unit_roundoff) for side in types]
    return coarsest[1] if unit_roundoff(coarsest[0]) < unit_roundoff(coarsest[1]) else None


def reason_of_lost(entry: ElementType) -> str:
    """What `before` does with a value that `after` leaves out."""
    return f"before rounds it to {entry.name}, and after does not"


def reason_of_narrowing(entry: ElementType) -> str:
    """What `after` does with a value that `before` does not."""
    return f"after rounds it to {entry.name}, and before does not"


def is_narrower(pair: NodePair) -> bool:
    """Whether a value has fewer bits than the one that it should be."""
    ours, theirs = (element_type_of(node.dtype) for node in (pair.ours, pair.theirs))
    if ours.is_floating and theirs.is_floating:
        return unit_roundoff(ours) > unit_roundoff(theirs)
    return ours.is_integral and theirs.is_integral and ours.bits < theirs.bits


def where_narrowed(node: Node) -> Node:
    """What first gives a value the few bits it has: what only takes elements of one array comes after it."""
    while True:
        instance = node.instance
        moves = traits_of(instance.instruction).moves
        place = min(node.leaf, len(instance.operands) - 1) if instance.others or moves is None else moves[0]
        if not (instance.is_movement or instance.others or (moves is not None and len(moves) == 1)):
            return node
        sources = instance.operands[place] if place < len(instance.operands) else ()
        if len(sources) != 1 or sources[0].dtype != node.dtype:
            return node
        node = sources[0]


def _only_chooses(node: Node) -> bool:
    """Whether a value only takes elements of several others of its type."""
    moves = traits_of(node.instance.instruction).moves or ()
    operands = [part[0] for place, part in enumerate(node.instance.operands) if place in moves and part]
    return len(operands) > 1 and all(entry.dtype == node.dtype for entry in operands)


def roundings_taken_back(replay: Replay, state: State) -> Iterator[tuple[Node, str]]:
    """What rounds the values that a state without roundings holds as `before` has them; each instruction once."""
    named: set[tuple[str, str]] = set()
    for node in replay.graph.nodes:
        is_as_it_is = state.values.of(node.number).dtype == node.dtype
        if is_as_it_is or where_narrowed(node) is not node or _only_chooses(node):
            continue
        if node.instance.static not in named:
            named.add(node.instance.static)
            yield node, reason_of_narrowing(element_type_of(node.dtype))


def is_only_unrounded(actual: Array, expected: Array, entry: ElementType) -> bool:
    """Whether an array is another one, in other dimensions perhaps, once it is rounded to a type, and not before."""
    rounded = narrow(wide(actual), entry)
    return not np.array_equal(wide(rounded), wide(actual), equal_nan=True) and any(
        np.array_equal(wide(rounded), wide(narrow(wide(value), entry)), equal_nan=True)
        for value in aligned(expected, actual.shape)
    )


def lost_roundings(replay: Replay, state: State) -> Iterator[tuple[Node, str]]:
    """The values of `after` that it does not round as `before` does, on the way to values that agree up to rounding and
    to results, and to what `before` rounds them; each instruction once."""
    if max(_units(replay.index.graph), default=0.0) <= min(_units(replay.graph), default=0.0):
        return
    named: set[tuple[str, str]] = set()
    for node, entry in (*_unrounded_values(replay, state), *_unrounded_operands(replay, state)):
        if node.instance.static not in named:
            named.add(node.instance.static)
            yield node, reason_of_lost(entry)


def _units(graph: Graph) -> list[float]:
    """The units of roundoff of the floating types of its values."""
    return [unit_roundoff(entry) for entry in map(element_type_of, graph.types) if entry.is_floating]


def _unrounded_values(replay: Replay, state: State) -> Iterator[tuple[Node, ElementType]]:
    """What `before` has in a narrower type, and something else than a conversion to that uses in `after`."""
    users = replay.users
    for number, match in state.matches.found():
        node = replay.graph.node(number)
        entry = type_rounded_to([node], [match.node])
        if entry is None or match.is_exact or not match.is_in_order or node.instance.is_movement:
            continue
        is_used = any(not _rounds(user, node, entry, users) for user in users[number])
        if is_used and is_only_unrounded(state.raw[number], match.node.value, entry):
            yield node, entry


def _rounds(user: Instance, node: Node, entry: ElementType, users: Users) -> bool:
    """Whether all that an instruction does with a value is to move it, and to round it to a type."""
    if not user.is_movement:
        return traits_of(user.instruction).converts and element_type_of(user.results[0].dtype) is entry
    return all(_rounds(each, node, entry, users) for each in users[user.results[0].number])


def _unrounded_operands(replay: Replay, state: State) -> Iterator[tuple[Node, ElementType]]:
    """What `before` converts to a narrower type and back before it uses it, and `after` does not."""
    relations = Relations(replay, state)
    inexact = [(replay.graph.node(number), match.node) for number, match in state.matches.found() if not match.is_exact]
    results = [
        pair
        for device, nodes in replay.graph.outputs.items()
        for pair in zip(nodes, replay.index.graph.outputs[device], strict=True)
    ]
    pending = [NodePair(*pair) for pair in (*results, *inexact)]
    seen: set[tuple[int, int]] = set()
    for pair in pending:
        ours, theirs = transparent_chain(pair.ours)[-1], transparent_chain(pair.theirs)[-1]
        for each in relations.operand_pairs(ours, theirs) or []:
            if each.numbers in seen or not relations.differ(each.ours, each.theirs):
                continue
            seen.add(each.numbers)
            chain = transparent_chain(each.ours)
            entry = type_rounded_to(chain, transparent_chain(each.theirs))
            if entry is not None and is_only_unrounded(state.raw[each.ours.number], each.theirs.value, entry):
                yield chain[-1], entry
            else:
                pending.append(each)
