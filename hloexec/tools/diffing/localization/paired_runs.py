"""What two instructions were given, and what they gave, in all of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hloexec.core.places import RunPlace
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import NodePair, Relation, Relations

_Loop: TypeAlias = tuple[RunPlace | None, Sequence[Node]]
"""A loop, and what its condition gave."""


class PairedRuns:
    """The runs of instructions of both modules, in one state of a replay."""

    def __init__(self, relations: Relations, graphs: tuple[Graph, Graph]) -> None:
        self._relations = relations
        self._graphs = graphs
        self._known_runs: dict[tuple[int, tuple[str, str], int, str], dict[tuple[int, ...], Instance]] = {}

    def first_of_its_kind(self, pair: NodePair) -> NodePair:
        """The first pair that differs of those that the same two instructions gave in the same loops."""
        ours = self._runs(0, pair.ours.instance)
        theirs = self._runs(1, pair.theirs.instance)
        if len(ours) == 1 or len(theirs) == 1 or pair.ours.instance.iterations != pair.theirs.instance.iterations:
            return pair
        for iterations, one in ours.items():
            if one.number >= pair.ours.instance.number:
                break
            other = theirs.get(iterations)
            if other is not None and len(one.results) > pair.ours.leaf and len(other.results) > pair.theirs.leaf:
                first = NodePair(one.results[pair.ours.leaf], other.results[pair.theirs.leaf])
                if self.is_wrong(first):
                    return first
        return pair

    def as_far_as_both_ran(self, ours: _Loop, theirs: _Loop, pair: tuple[Node, Node]) -> NodePair | None:
        """What two values that leave loops were in the last iteration that both had, if one of the loops went round
        more often than the other; None where nothing says so."""
        last = min(len(ours[1]), len(theirs[1])) - 2
        if len(ours[1]) == len(theirs[1]) or last < 0:
            return None
        early = [
            self._at(side, node, loop, last)
            for side, (node, (loop, _)) in enumerate(zip(pair, (ours, theirs), strict=True))
        ]
        return None if early[0] is None or early[1] is None else NodePair(early[0], early[1])

    def _at(self, side: int, node: Node, loop: RunPlace | None, iteration: int) -> Node | None:
        """What a value was after an iteration of a loop; None where nothing says so."""
        instance = node.instance
        own = None if loop is None else loop.iteration(instance.scope)
        if loop is None or own is None:
            return None
        if own <= iteration:
            return node
        iterations, depth = instance.iterations, len(loop.path.iterations)
        run = self._runs(side, instance).get((*iterations[:depth], iteration, *iterations[depth + 1 :]))
        return None if run is None or len(run.results) <= node.leaf else run.results[node.leaf]

    def is_wrong(self, pair: NodePair) -> bool:
        """Whether a pair differs, or has the same numbers in the same dimensions elsewhere."""
        relation = self._relations.of(pair.ours, pair.theirs)
        return relation is Relation.DIFFERENT or (
            relation is Relation.SHUFFLED and pair.ours.shape == pair.theirs.shape
        )

    def _runs(self, side: int, instance: Instance) -> dict[tuple[int, ...], Instance]:
        """The runs of an instruction on a device in the same loops, by their iterations, in the order of the run."""
        key = (side, instance.static, instance.device, instance.loops)
        if key not in self._known_runs:
            if sum(map(len, self._known_runs.values())) > LIMITS.known_runs:
                self._known_runs.clear()
            self._known_runs[key] = {
                entry.iterations: entry
                for entry in self._graphs[side].runs[instance.static]
                if entry.device == instance.device and entry.loops == instance.loops
            }
        return self._known_runs[key]
