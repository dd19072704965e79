"""Replacements, tried one by one: does the result come right once a value is what it should be?"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.diffing.comparator import Comparator
from hloexec.diffing.counterparts import Repair, equal_nodes_of
from hloexec.diffing.graph import Instance, Node
from hloexec.diffing.replay import Replay, State, is_movement
from hloexec.values import Array

__all__ = ["Patch", "PatchSearch"]

_MOST_TRIES = 600
"""More replacements than this are not tried: a bound on time. The bug farm's faults are found in 166 at most."""
_PATIENCE = 60
"""So many instructions are computed again without one of them coming right, then a replacement is given up: what is
wrong stays wrong then, and a run may have millions. Those that repair the bug farm's faults need 24 at most."""


@attrs.frozen(eq=False)
class Patch:
    """A replacement that helps."""

    node: Node
    counterpart: Node | None
    """What of `before` it was taken from."""
    value: Array
    after: State


class PatchSearch:
    """Tries replacements, a limited number of them, and knows which help."""

    def __init__(self, replay: Replay, comparator: Comparator) -> None:
        self._replay = replay
        self._comparator = comparator
        self._tries = 0

    def patch(
        self,
        state: State,
        node: Node,
        counterpart: Node | None,
        value: Array,
        wrong: Sequence[tuple[Node, Node]],
        *,
        is_limited: bool = True,
    ) -> Patch | None:
        """A replacement, if it puts the results right, by itself or with all that gave the same wrong value.

        It has to put right all those of `wrong` that it changes, and at least one. What is not limited is tried after
        whatever else was, and to its end.
        """
        if is_limited and self._tries >= _MOST_TRIES:
            return None
        patience = _PATIENCE if is_limited else len(self._replay.graph.instances) + 1
        after = self._tried(state, node, counterpart, value, wrong, (), patience)
        if after is None:
            equal_nodes = equal_nodes_of(self._replay.graph, node)
            if equal_nodes:
                after = self._tried(state, node, counterpart, value, wrong, equal_nodes, patience)
        return None if after is None else Patch(node, counterpart, value, after)

    def _tried(
        self,
        state: State,
        node: Node,
        counterpart: Node | None,
        value: Array,
        wrong: Sequence[tuple[Node, Node]],
        equal_nodes: Sequence[Node],
        patience: int,
    ) -> State | None:
        self._tries += 1
        matches = 0
        known = state.matches

        def keep_going(instance: Instance, now: State, count: int) -> bool:
            nonlocal matches
            for entry in instance.results:
                match, old = now.matches[entry.number], known[entry.number]
                is_new = match is not None and match.is_in_order and (old is None or not old.is_in_order)
                matches += is_new and not is_movement(entry)
            return count < patience * (1 + matches)

        repair = Repair(self._replay.graph, self._replay.index, node, counterpart, value, equal_nodes)
        after = self._replay.override(state, repair, keep_going)
        if after is None:
            return None
        self._replay.adopt(after)
        still = {(ours.number, counterpart.number) for ours, counterpart in self._comparator.wrong_outputs(after)}
        self._replay.adopt(state)
        reached = [
            (ours, counterpart) for ours, counterpart in wrong if after.raw[ours.number] is not state.raw[ours.number]
        ]
        fixed = [pair for pair in reached if (pair[0].number, pair[1].number) not in still]
        return after if fixed and len(fixed) == len(reached) else None
