"""Parts that are taken for others: a tile for another one, a part of a sum for the sum, a row for the one beside it.

Here nothing is run again: what the values of `before` are parts of tells it, and which elements follow from which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.registry import exchanges
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.localization.relations import NodePair, is_filled
from hloexec.tools.diffing.partitioned.tiles import Tiles
from hloexec.tools.diffing.replaying.evaluation import Values
from hloexec.tools.diffing.replaying.replay import State
from hloexec.tools.diffing.replaying.rerun import Rerun

if TYPE_CHECKING:
    from hloexec.tools.diffing.judging import Search


def without_other_parts(search: Search, tiles: Tiles) -> Search:
    """The search without first findings that are not certain, and whose value is a part of what it should be a part of,
    though another one: what takes one for the other is to blame, and comes later."""
    blamed, findings = [*search.blamed], [*search.findings]
    while len(findings) > 1 and not blamed[0].is_certain and _is_other_part(blamed[0], search.state, tiles):
        del blamed[0], findings[0]
    return attrs.evolve(search, blamed=blamed, findings=tuple(findings), first=next(iter(blamed), None))


def _is_other_part(blamed: Blamed, state: State, tiles: Tiles) -> bool:
    """Whether a value, and something that it is computed from, are other parts than they should be."""

    def is_other(node: Node, counterpart: Node) -> bool:
        match = state.matches[node.number]
        if match is None or not match.is_exact:
            return False
        (whole, key), (other, other_key) = tiles.whole_of(match.node), tiles.whole_of(counterpart)
        return whole.number == other.number and key != other_key

    if blamed.counterpart is None or not is_other(blamed.node, blamed.counterpart):
        return False
    return any(map(is_other, blamed.node.instance.inputs, blamed.counterpart.instance.inputs))


def part_taken_as_sum(graph: Graph, state: State, statics: Collection[tuple[str, str]], tiles: Tiles) -> Node | None:
    """A part of a sum that the first value of some instructions that `before` does not have is computed from, beside
    what is no such part: only parts of one sum may be added up before devices add them up."""
    for node in graph.nodes:
        instance = node.instance
        if state.matches.is_any(node.number) or instance.static not in statics or exchanges(instance.instruction):
            continue
        inputs = [entry for entry in instance.inputs if not is_filled(entry)]
        matches = [match for entry in inputs if (match := state.matches[entry.number]) is not None]
        if len(matches) < len(inputs):
            continue
        parts = [entry for entry, match in zip(inputs, matches, strict=True) if tiles.whole_of(match.node)[1][1]]
        if parts and (len(parts) < len(inputs) or len(inputs) == 1):
            return parts[0]
    return None


def giver_of_elements(
    pair: NodePair, suspects: Mapping[Node, Sequence[Node]], rerun: Rerun, values: Values
) -> Node | None:
    """The last of some nodes that gives those elements of a value that differ, and none of the others: they change with
    it. `suspects` are the nodes, with what their instruction gave on all devices."""
    value = wide(pair.ours.value)
    differ = value != wide(pair.theirs.value)
    if differ.all():
        return None
    giver = None
    for node, peers in suspects.items():
        now = rerun.value({peer.number: _others(values[peer.number]) for peer in peers})
        if now is not None and np.array_equal(wide(now) != value, differ):
            giver = node
    return giver


def _others(array: Array) -> Array:
    """Other numbers than those of an array, of its type."""
    if array.dtype == np.bool_ or element_type_of(array.dtype).is_integral:
        return np.asarray(~array)
    return np.asarray(-array - array.dtype.type(1)).astype(array.dtype)
