"""The first values of `before` that `after` lacks although it has all their operands.

A wrong instruction may compute, by chance, a value that `before` has elsewhere: another slice, a sine instead of a
cosine, a division by ones. Its own value then looks right. But the right value is missing, its operands exist, and some
instruction of `after` uses the same operands; replacing the value of that instruction corrects the results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hloexec.diffing.digests import Digest
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.localization.counterparts import arranged
from hloexec.diffing.matching import Match
from hloexec.diffing.replay import State
from hloexec.operations import traits_of
from hloexec.values import Array

__all__ = ["divergence_frontier"]

_MOST_PLACES = 4
_MOST_MISSING = 64

_Signature = tuple[int, frozenset[int]]
"""A device, and digests of what is computed with."""


def divergence_frontier(state: State, before: Graph, after: Graph) -> Iterator[tuple[Node, Node, Array]]:
    """A node of `after`, the value of `before` that it may lack, and that one as the node would hold it.

    What both are made of is the same, constants aside. In the order of `before`; of several nodes, one that gives
    nothing of `before`'s, and one of the same opcode come first.
    """
    present = {
        _identity(node.device, match.node.digest)
        for node, match in zip(after.nodes, state.matches, strict=True)
        if match is not None and match.is_in_order
    }
    available = {
        _identity(node.device, _digest(node, match)) for node, match in zip(after.nodes, state.matches, strict=True)
    }
    places: dict[_Signature, list[Node]] = defaultdict(list)
    for node in after.nodes:
        places[_signature(node, state)].append(node)
    missing = 0
    for counterpart in before.nodes:
        digest = counterpart.digest
        device = counterpart.device
        if (digest.is_uniform and digest.count > 1) or _identity(device, digest) in present:
            continue
        sources = map(_source, counterpart.instance.inputs)
        if not all(node.instance.is_constant or _identity(device, node.digest) in available for node in sources):
            continue
        missing += 1
        if missing > _MOST_MISSING:
            return
        found = [node for node in places.get(_signature(counterpart, None), ()) if _could_be(node, counterpart)]
        opcode = counterpart.instance.opcode
        # The sort is stable: of equal ones, the earliest comes first.
        found.sort(key=lambda node: (state.matches[node.number] is not None, node.instance.opcode != opcode))
        for node in found[:_MOST_PLACES]:
            for value in arranged(counterpart.value, state.raw[node.number]):
                yield node, counterpart, value


def _identity(device: int, digest: Digest) -> tuple[int, int, int]:
    return device, digest.count, digest.in_order


def _digest(node: Node, match: Match | None) -> Digest:
    """By which a value is known: `before`'s, where that has it in the same type."""
    is_known = match is not None and match.is_in_order and match.node.value.dtype == node.value.dtype
    return match.node.digest if match is not None and is_known else node.digest


def _source(node: Node) -> Node:
    """What a value is but for its layout, its repetition and its sign."""
    while node.instance.inputs:
        traits = traits_of(node.instance.instruction)
        if not (traits.keeps_all or traits.is_involution):
            break
        node = node.instance.inputs[0]
    return node


def _signature(node: Node, state: State | None) -> _Signature:
    sources = [source for source in map(_source, node.instance.inputs) if not source.instance.is_constant]
    matches = [None if state is None else state.matches[source.number] for source in sources]
    return node.device, frozenset(digest.in_order for digest in map(_digest, sources, matches))


def _could_be(node: Node, counterpart: Node) -> bool:
    ours, other = node.digest, counterpart.digest
    if ours.count != other.count or ours.family != other.family or ours.in_order == other.in_order:
        return False
    # What is made of nothing is compared with its like only.
    return bool(counterpart.instance.inputs) or node.instance.opcode == counterpart.instance.opcode
