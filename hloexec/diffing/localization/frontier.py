"""Where `before` and `after` part, seen from `before`: what `after` lacks, though it has all that it is made of.

A wrong instruction may give, by chance, what `before` has elsewhere: another slice, the sine in place of the cosine, a
division by ones. Then nothing about its value is wrong. But the right value is missing, its operands are there, and
some instruction of `after` takes the same operands: in its place, the right value makes the results right.
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
from hloexec.ops.registry import Role, role_of
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
        (node.device, match.node.digest.count, match.node.digest.in_order)
        for node, match in zip(after.nodes, state.matches, strict=True)
        if match is not None and match.is_in_order
    }
    available = set(_available(state, after))
    places: dict[_Signature, list[Node]] = defaultdict(list)
    for node in after.nodes:
        places[_signature(node, state)].append(node)
    missing = 0
    for counterpart in before.nodes:
        digest = counterpart.digest
        if (digest.is_uniform and digest.count > 1) or (counterpart.device, digest.count, digest.in_order) in present:
            continue
        sources = [_source(entry) for entry in counterpart.instance.inputs]
        if not all(
            _is_constant(e) or (counterpart.device, e.digest.count, e.digest.in_order) in available for e in sources
        ):
            continue
        missing += 1
        if missing > _MOST_MISSING:
            return
        found = [node for node in places.get(_signature(counterpart, None), ()) if _could_be(node, counterpart, state)]
        found.sort(
            key=lambda node: (state.matches[node.number] is not None, _is_unlike(node, counterpart), node.number)
        )
        for node in found[:_MOST_PLACES]:
            for value in arranged(counterpart.value, state.raw[node.number]):
                yield node, counterpart, value


def _available(state: State, after: Graph) -> Iterator[tuple[int, int, int]]:
    for node, match in zip(after.nodes, state.matches, strict=True):
        digest = _digest(node, match)
        yield node.device, digest.count, digest.in_order


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


def _is_constant(node: Node) -> bool:
    return role_of(node.instance.instruction) is Role.CONSTANT


def _signature(node: Node, state: State | None) -> _Signature:
    keys = set()
    for entry in node.instance.inputs:
        entry = _source(entry)
        if not _is_constant(entry):
            keys.add(_digest(entry, None if state is None else state.matches[entry.number]).in_order)
    return node.device, frozenset(keys)


def _could_be(node: Node, counterpart: Node, state: State) -> bool:
    ours, other = node.digest, counterpart.digest
    if ours.count != other.count or ours.family != other.family or ours.in_order == other.in_order:
        return False
    # What is made of nothing is compared with its like only.
    return bool(counterpart.instance.inputs) or node.instance.opcode == counterpart.instance.opcode


def _is_unlike(node: Node, counterpart: Node) -> bool:
    return node.instance.opcode != counterpart.instance.opcode
