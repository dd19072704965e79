"""What a value of `after` should have been: the values of `before` that may stand in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hloexec.diffing.agreement import aligned
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import Index
from hloexec.diffing.replay import State, is_movement
from hloexec.values import Array

__all__ = ["Counterparts"]

_MOST = 6
_GOOD = 4.0


class Counterparts:
    """Candidates for one graph's values, in another."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._runs: dict[tuple[str, str], list[Instance]] = defaultdict(list)
        for instance in index.graph.instances:
            self._runs[instance.static].append(instance)

    def of(self, node: Node, state: State, good_only: bool) -> Iterator[tuple[Node | None, Array]]:
        """The values that could stand in a node's place, the likeliest first, arranged as its own; with `good_only`
        those that are likely by what they are made of, else the others.
        """
        raw = state.raw[node.number]
        operands = self._operands(node, state)
        scored = []
        for its in self._index.of_size(node.digest):
            if its.digest.in_order == node.digest.in_order or its.digest.is_uniform > node.digest.is_uniform:
                continue
            scored.append((self._score(node, its, operands, state), -its.number, its))
        scored.sort(key=lambda entry: entry[:2], reverse=True)
        for score, _, its in scored[:_MOST]:
            if (score >= _GOOD) == good_only:
                for value in aligned(its.value, raw.shape):
                    yield its, _typed(value, raw)
        if good_only:
            return
        for entry in node.instance.inputs:
            # Perhaps it should not be there at all.
            held = state.values[entry.number]
            match = state.matches[entry.number]
            if held.size == raw.size and held.shape == raw.shape and held.dtype == raw.dtype and match is not None:
                yield match.node, held

    def occurrences(self, node: Node, its: Node | None, value: Array, graph: Graph) -> dict[int, dict[int, Array]]:
        """What replaces a node by its counterpart each time that its instruction runs from then on, run by run and
        device by device: arrays by instance and node."""
        found = {node.instance.number: {node.number: value}}
        if its is None:
            return found
        arranged = _arrangement(its, value)
        theirs = _by_device(self._runs[its.instance.static][self._runs[its.instance.static].index(its.instance) :])
        static = node.instance.static
        mine = _by_device([entry for entry in graph.instances[node.instance.number :] if entry.static == static])
        for device, runs in mine.items():
            for instance, other in zip(runs, theirs.get(device, ()), strict=False):
                if instance.number in found or len(instance.results) <= node.leaf or len(other.results) <= its.leaf:
                    continue
                result = instance.results[node.leaf]
                array = arranged(other.results[its.leaf].value)
                if array is not None and array.shape == result.value.shape:
                    found[instance.number] = {result.number: _typed(array, result.value)}
        return found

    def _operands(self, node: Node, state: State) -> list[set[int]]:
        """For each operand the digests that `before` may know it by."""
        found = []
        for entry in node.instance.inputs:
            known = {self._key(state, entry)}
            source = entry
            while is_movement(source) and source.instance.inputs:
                source = source.instance.inputs[0]
                known.add(self._key(state, source))
            found.append(known)
        return found

    def _key(self, state: State, node: Node) -> int:
        match = state.matches[node.number]
        return match.node.digest.in_any_order if match is not None else node.digest.in_any_order

    def _score(self, node: Node, its: Node, operands: list[set[int]], state: State) -> float:
        theirs = []
        for entry in its.instance.inputs:
            known = {entry.digest.in_any_order}
            while is_movement(entry) and entry.instance.inputs:
                entry = entry.instance.inputs[0]
                known.add(entry.digest.in_any_order)
            theirs.append(known)
        common = sum(any(mine & entry for entry in theirs) for mine in operands)
        share = common / max(1, len(operands), len(theirs))
        mine, other = node.instance.instruction, its.instance.instruction
        names = [entry.metadata.op_name if entry.metadata else None for entry in (mine, other)]
        near = node.digest.magnitude and abs(its.digest.magnitude / node.digest.magnitude - 1) < 0.1
        return float(
            4 * share
            + 2 * (mine.opcode == other.opcode)
            + (node.value.shape == its.value.shape)
            + (names[0] is not None and names[0] == names[1])
            + (its.number not in state.matched)
            + bool(near)
        )


def _by_device(instances: Sequence[Instance]) -> dict[int, list[Instance]]:
    found: dict[int, list[Instance]] = defaultdict(list)
    for instance in instances:
        for device in instance.devices:
            found[device].append(instance)
    return found


def _typed(value: Array, like: Array) -> Array:
    return value if value.dtype == like.dtype else value.astype(like.dtype)


def _arrangement(its: Node, value: Array) -> Callable[[Array], Array | None]:
    """How a counterpart's array was arranged, for others of its dimensions."""
    for number, candidate in enumerate(aligned(its.value, value.shape)):
        if candidate.dtype == value.dtype and np.array_equal(candidate, value):
            return lambda array: next(
                (entry for place, entry in enumerate(aligned(array, value.shape)) if place == number), None
            )
    return lambda array: next(aligned(array, value.shape), None)
