"""Values that one module computes in a wider type, only to round them to what the other computes at once.

XLA's float normalization makes a multiply in bf16 one in f32 and a convert, where a backend cannot compute in bf16. The
f32 numbers in between are nowhere in the other module, and need not be: rounded, they are.
"""

from __future__ import annotations

import attrs

from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import Match
from hloexec.diffing.replay import State
from hloexec.dtypes import element_type_of
from hloexec.operations import traits_of
from hloexec.precision import unit_roundoff

__all__ = ["match_through_rounding"]


def match_through_rounding(graph: Graph, state: State) -> None:
    """Match each value that is used by nothing but converts to a narrower type, of which each result is matched.

    What only moves it on the way to the converts is looked through. Changes `state.matches` alone.
    """
    users = graph.users()
    outputs = {node.number for nodes in graph.outputs.values() for node in nodes}
    widened: dict[int, Match] = {}
    for node in reversed(graph.nodes):
        if state.matches[node.number] is not None or node.number in outputs or not users[node.number]:
            continue
        found = [_rounded(user, node, state, widened) for user in users[node.number]]
        first = found[0]
        if first is not None and None not in found:
            widened[node.number] = attrs.evolve(first, is_exact=False)
    for number, match in widened.items():
        state.matches[number] = match


def _rounded(user: Instance, node: Node, state: State, widened: dict[int, Match]) -> Match | None:
    """The match of what an instance makes of a node, where it rounds it and does nothing else."""
    if len(user.results) != 1:
        return None
    (result,) = user.results
    if user.is_movement:
        return widened.get(result.number)
    if not traits_of(user.instruction).converts:
        return None
    wide, narrow = element_type_of(node.value.dtype), element_type_of(result.value.dtype)
    if not (wide.is_floating and narrow.is_floating) or unit_roundoff(narrow) <= unit_roundoff(wide):
        return None
    return state.matches[result.number]
