"""From where slices of `after` should be cut.

Devices cut their parts out of larger values at places that they compute from their numbers; nothing in `before` does.
Where a slice gives another part than it should, its start is looked for among all places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.values import Array
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.agreement import arranged
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.partitioned.steps import Steps, holds_same
from hloexec.tools.diffing.partitioned.tiles import Tiles
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Values


class Starts:
    """The places at which slices should begin."""

    def __init__(self, tiles: Tiles, evaluator: Evaluator, nodes: Sequence[Node]) -> None:
        self._tiles = tiles
        self._evaluator = evaluator
        self._nodes = nodes
        self._known: dict[object, list[tuple[Node, int]]] = {}
        self._expected: dict[tuple[int, int], Node] = {}

    def pairs(self, steps: Steps, parts: Mapping[int, Node], theirs: Node, values: Values) -> list[tuple[Node, Node]]:
        """The starts of slices among some steps, and what they should be for the steps to give a value, as far as that
        is something else."""
        places = tuple(part.number for part in parts.values())
        key = (steps.result.number, theirs.number, places, steps.given_digests(values))
        if key not in self._known:
            self._known[key] = self._found(steps, parts, theirs, values)
        return [(node, self._node(node, place, theirs)) for node, place in self._known[key]]

    def _found(self, steps: Steps, parts: Mapping[int, Node], theirs: Node, values: Values) -> list[tuple[Node, int]]:
        slices = [entry for entry in steps.instances if entry.device == theirs.device and _starts_of(entry)]
        if not slices:
            return []
        for changes in in_place(steps, parts, values):
            found = steps.run(self._evaluator, values, changes)
            if found is None or holds_same(found, theirs.value, in_order=True):
                return []
            for instance in slices:
                for places in _places(instance, values):
                    moved = {**changes, **{node.number: _scalar(place, values[node.number]) for node, place in places}}
                    found = steps.run(self._evaluator, values, moved)
                    if found is not None and holds_same(found, theirs.value, in_order=True):
                        return [(node, place) for node, place in places if int(values[node.number]) != place]
        return []

    def _node(self, ours: Node, place: int, theirs: Node) -> Node:
        """A node of `before` that holds what a start should be."""
        key = (ours.number, place)
        if key not in self._expected:
            self._expected[key] = self._tiles.add_number(theirs, _scalar(place, ours.value), ours.instance.name)
        return self._expected[key]


def in_place(steps: Steps, parts: Mapping[int, Node], values: Values) -> Iterator[dict[int, Array]]:
    """Parts in the place of what steps begin from, in each of the ways in which they may lie in its dimensions."""
    ways = [
        list(islice(arranged(parts[node.number].value, values[node.number]), LIMITS.arrangements))
        for node in steps.ends
    ]
    for arrays in zip(*ways, strict=False):
        yield {node.number: array for node, array in zip(steps.ends, arrays, strict=True)}


def _starts_of(instance: Instance) -> list[Node]:
    """The numbers that say where in its first operand a slice begins; nothing where it is none."""
    starts = [node for part in instance.operands[1:] for node in part]
    is_slice = traits_of(instance.instruction).moves == (0,) and len(starts) == len(instance.results[0].shape)
    return starts if is_slice and all(_is_number(node) for node in starts) else []


def _is_number(node: Node) -> bool:
    return node.shape == () and element_type_of(node.dtype).is_integral


def _places(instance: Instance, values: Values) -> Iterator[list[tuple[Node, int]]]:
    """Every place at which a slice may begin, if there are not too many."""
    starts = _starts_of(instance)
    whole, part = values[instance.operands[0][0].number].shape, instance.results[0].shape
    ranges = [range(size - own + 1) for size, own in zip(whole, part, strict=True)]
    if math.prod(map(len, ranges)) <= LIMITS.places:
        for places in product(*ranges):
            found = dict(zip(starts, places, strict=True))
            # One node may be the start along several axes.
            if all(found[node] == place for node, place in zip(starts, places, strict=True)):
                yield list(found.items())


def _scalar(number: int, like: Array) -> Array:
    return np.array(number, like.dtype)
