"""The values of `before` that a value of `after` may correspond to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hloexec.diffing.agreement import aligned
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import Index
from hloexec.diffing.replay import Replay, State, moved_from, source_of
from hloexec.values import Array

__all__ = ["Repair", "arranged", "counterparts_like", "counterparts_of", "equal_nodes_of"]

_MOST = 6
_GOOD = 4.0


def counterparts_of(index: Index, node: Node, state: State, good_only: bool) -> Iterator[tuple[Node | None, Array]]:
    """The values that could replace a node's, the most likely first, arranged as its own; with `good_only`
    those that are likely by what they are made of, else the others.
    """
    raw = state.raw[node.number]
    operands = [_names(state, entry) for entry in node.instance.inputs]
    held_match = state.matches[node.number]
    if held_match is not None and source_of(node).instance.opcode != source_of(held_match.node).instance.opcode:
        held_match = None
    scored = [
        (_score(node, counterpart, operands, state), counterpart)
        for counterpart in index.of_size(node.digest)
        if counterpart.device == node.device
        and counterpart.digest.in_order != node.digest.in_order
        and counterpart.digest.is_uniform <= node.digest.is_uniform
        # What only lies otherwise may be transposed, but not become something else.
        and (held_match is None or counterpart.digest.in_any_order == held_match.node.digest.in_any_order)
    ]
    for score, counterpart in sorted(scored, key=lambda entry: (-entry[0], entry[1].number))[:_MOST]:
        if (score >= _GOOD) == good_only:
            for value in arranged(counterpart.value, raw):
                yield counterpart, value
    if good_only:
        return
    for entry in node.instance.inputs:
        # Perhaps it should not be there at all.
        held = state.values[entry.number]
        match = state.matches[entry.number]
        if held.shape == raw.shape and held.dtype == raw.dtype and match is not None:
            yield match.node, held


def counterparts_like(index: Index, node: Node, state: State) -> Iterator[tuple[Node, Array]]:
    """The values that `after` lacks, by the same opcode and from the same operands as a node."""
    operands = [_names(state, entry) for entry in node.instance.inputs]
    for counterpart in index.of_size(node.digest):
        theirs = counterpart.instance.inputs
        if (
            counterpart.instance.opcode == node.instance.opcode
            and counterpart.device == node.device
            and counterpart.number not in state.matched
            and counterpart.digest.in_order != node.digest.in_order
            and len(theirs) == len(operands)
            and all(any(entry.digest.in_any_order in known for known in operands) for entry in theirs)
        ):
            for value in arranged(counterpart.value, state.raw[node.number]):
                yield counterpart, value


class Repair:
    """A replacement of a node's value by a counterpart's, and of what the same fault does to others like it.

    A fault in a loop, in a computation that is called twice or in a loop that was unrolled makes many values wrong. So
    whenever the same instruction runs again, it is given what the counterpart gave when that ran again; and whenever
    another one of its opcode and shape gives what `before` does not have, it is given the next value of `before` that
    an instruction like the counterpart gave and `after` does not have yet.
    """

    def __init__(
        self, replay: Replay, node: Node, counterpart: Node | None, value: Array, equal_nodes: Sequence[Node] = ()
    ) -> None:
        self._node, self._counterpart, self._value = node, counterpart, value
        self._equal_nodes = {entry.number for entry in (node, *equal_nodes)}
        self.first = min((node, *equal_nodes), key=lambda entry: entry.instance.number).instance
        self.given_to: set[int] = {node.number}
        """The nodes that held something else than they computed."""
        if counterpart is not None:
            self._order = _arrangement(counterpart, value)
            self._others = [
                entry
                for entry in replay.index.of_size(counterpart.digest)
                if entry.instance.opcode == counterpart.instance.opcode
                and entry.value.shape == counterpart.value.shape
                and entry.leaf == counterpart.leaf
                and entry.number > counterpart.number
            ]
            self._again = _runs_alike(replay.graph, replay.index.graph, node, counterpart)
            self._used: set[int] = set()

    def given(self, instance: Instance, state: State) -> dict[int, Array]:
        """What an instance's arrays are to be, by node, once it has been computed."""
        equal_nodes = {node.number: self._value for node in instance.results if node.number in self._equal_nodes}
        if equal_nodes:
            return equal_nodes
        own = self._node.instance
        if self._counterpart is None or instance.number < own.number or instance.opcode != own.opcode:
            return {}
        found = {}
        for node in instance.results:
            if node.leaf != self._node.leaf or node.value.shape != self._value.shape:
                continue
            entry = self._again.get(node.number) or self._next(node, state)
            value = None if entry is None else self._order(entry.value)
            if value is not None:
                self.given_to.add(node.number)
                found[node.number] = value if value.dtype == node.value.dtype else value.astype(node.value.dtype)
        return found

    def _next(self, node: Node, state: State) -> Node | None:
        if state.has(node) and not node.digest.is_uniform:
            return None
        for entry in self._others:
            is_free = entry.number not in state.matched and entry.number not in self._used
            if is_free and entry.device == node.device:
                self._used.add(entry.number)
                return entry
        return None


def equal_nodes_of(graph: Graph, node: Node) -> list[Node]:
    """The nodes that other instructions of the same opcode gave, outside of loops, with the same numbers; compilers
    recompute a cheap value in each fusion that uses it, and make the same mistake there."""
    return [
        entry
        for entry in graph.nodes
        if entry is not node
        and entry.digest == node.digest
        and entry.instance.opcode == node.instance.opcode
        and entry.instance.static != node.instance.static
        and entry.value.shape == node.value.shape
        and entry.device == node.device
        and "[" not in entry.instance.name
    ]


def _runs_alike(ours: Graph, theirs: Graph, node: Node, counterpart: Node) -> dict[int, Node]:
    """The nodes that an instruction gave later, and on other devices, with what its counterpart gave there; as far as
    that ran as often."""
    found = {}
    (runs, place), (other_runs, other_place) = (_later_runs(ours, node), _later_runs(theirs, counterpart))
    for device, instances in runs.items():
        for instance, other in zip(instances[place:], other_runs[device][other_place:], strict=False):
            if node.leaf < len(instance.results) and counterpart.leaf < len(other.results):
                found[instance.results[node.leaf].number] = other.results[counterpart.leaf]
    return found


def _later_runs(graph: Graph, node: Node) -> tuple[dict[int, list[Instance]], int]:
    """The runs of a node's instruction on each device, and which of its own device's it is."""
    found: dict[int, list[Instance]] = defaultdict(list)
    for instance in graph.runs[node.instance.static]:
        found[instance.device].append(instance)
    return found, found[node.device].index(node.instance)


def arranged(value: Array, like: Array) -> Iterator[Array]:
    """The ways in which an array may replace another."""
    for candidate in aligned(value, like.shape):
        yield candidate if candidate.dtype == like.dtype else candidate.astype(like.dtype)


def _names(state: State, node: Node) -> set[int]:
    """What a value of `after` is known by in `before`: the digest of the one that it is, or is moved from."""
    matches = ((entry, state.matches[entry.number]) for entry in moved_from(node))
    return {(entry if match is None else match.node).digest.in_any_order for entry, match in matches}


def _score(node: Node, counterpart: Node, operands: list[set[int]], state: State) -> float:
    theirs = [{moved.digest.in_any_order for moved in moved_from(entry)} for entry in counterpart.instance.inputs]
    common = sum(any(ours & entry for entry in theirs) for ours in operands)
    share = common / max(1, len(operands), len(theirs))
    ours, other = node.instance.instruction, counterpart.instance.instruction
    near = node.digest.magnitude and abs(counterpart.digest.magnitude / node.digest.magnitude - 1) < 0.1
    return float(
        4 * share
        + 2 * (ours.opcode == other.opcode)
        + (node.value.shape == counterpart.value.shape)
        + (ours.op_name is not None and ours.op_name == other.op_name)
        + (counterpart.number not in state.matched)
        + bool(near)
    )


def _arrangement(counterpart: Node, value: Array) -> Callable[[Array], Array | None]:
    """How a counterpart's array was arranged, for others of its dimensions."""
    for number, candidate in enumerate(arranged(counterpart.value, value)):
        if np.array_equal(candidate, value):
            return lambda array: next(
                (entry for place, entry in enumerate(aligned(array, value.shape)) if place == number), None
            )
    return lambda array: next(aligned(array, value.shape), None)
