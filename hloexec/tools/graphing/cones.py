"""What an instruction is computed from, and what is computed from it, as far as a number of edges.

Tuples are followed element by element: from an operand of a tuple through loops and calls to those instructions that
get just this element, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hloexec.ops.registry import Role, role_of
from hloexec.tools.graphing.flow import Edge, Flow, Place

_PASSING = (Role.PARAMETER, Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.FORWARD)
"""What has the elements of what it takes, if that is a tuple."""

Index: TypeAlias = tuple[int, ...]
"""An element of a value; empty for the whole."""
State: TypeAlias = tuple[Place, Index]


def cone(flow: Flow, starts: Sequence[Place], distance: int) -> tuple[set[Place], set[Place]]:
    """What `starts` are computed from and what is computed from them, and which of it has neighbours left out."""
    takes: dict[Place, list[Edge]] = {}
    gives: dict[Place, list[Edge]] = {}
    for edge in flow.edges:
        takes.setdefault(edge.target, []).append(edge)
        gives.setdefault(edge.source, []).append(edge)

    def sources(state: State) -> list[State]:
        return _moved(flow, takes.get(state[0], ()), state[1], _back, lambda edge: edge.source)

    def targets(state: State) -> list[State]:
        return _moved(flow, gives.get(state[0], ()), state[1], _onward, lambda edge: edge.target)

    chosen = {*_reached(starts, sources, distance), *_reached(starts, targets, distance)}
    cut = {
        place
        for place in chosen
        if any(edge.source not in chosen for edge in takes.get(place, ()))
        or any(edge.target not in chosen for edge in gives.get(place, ()))
    }
    return chosen, cut


def _reached(starts: Sequence[Place], neighbours: Callable[[State], list[State]], distance: int) -> set[Place]:
    border: list[State] = [(place, ()) for place in starts]
    seen = set(border)
    for _ in range(distance):
        border = list(dict.fromkeys(near for each in border for near in neighbours(each)))
        border = [state for state in border if state not in seen]
        seen.update(border)
    return {place for place, _ in seen}


def _moved(
    flow: Flow,
    edges: Sequence[Edge],
    index: Index,
    move: Callable[[Flow, Edge, Index], Index | None],
    end: Callable[[Edge], Place],
) -> list[State]:
    found = ((end(edge), move(flow, edge, index)) for edge in edges)
    return [(place, moved) for place, moved in found if moved is not None]


def _onward(flow: Flow, edge: Edge, index: Index) -> Index | None:
    """The element of the target that an element of the source becomes; None if it is not in it."""
    return _across(flow, edge, index, Role.TUPLE)


def _back(flow: Flow, edge: Edge, index: Index) -> Index | None:
    """The element of the source that an element of the target comes from; None if it comes from another source."""
    return _across(flow, edge, index, Role.GET_TUPLE_ELEMENT)


def _across(flow: Flow, edge: Edge, index: Index, packing: Role) -> Index | None:
    """What an element is at the other end of an edge, where it is within a tuple behind what is `packing`."""
    instruction = flow.instruction(edge.target)
    role = role_of(instruction)
    if edge.kind in ("condition", "control"):
        return ()
    if role in (Role.TUPLE, Role.GET_TUPLE_ELEMENT):
        place = edge.operand if role is Role.TUPLE else instruction.attributes.index
        if role is packing:
            return (place, *index)
        if index:
            return index[1:] if index[0] == place else None
    return index if role in _PASSING else ()
