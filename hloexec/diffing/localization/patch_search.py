"""Trying replacements one at a time: does the result become right if a value is replaced?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from hloexec.diffing.graph import Instance, Node
from hloexec.diffing.localization.counterparts import Repair, equal_nodes_of
from hloexec.diffing.replay import Replay, State
from hloexec.values import Array

__all__ = ["Pairs", "Patch", "PatchSearch"]

_MOST_TRIES = 600
"""More replacements than this are not tried: a bound on time. The bug farm's faults are found in 166 at most."""
_PATIENCE = 60
"""So many instructions are computed again without one of them coming right, then a replacement is given up: what is
wrong stays wrong then, and a run may have millions. Those that repair the bug farm's faults need 24 at most."""


Pairs: TypeAlias = Sequence[tuple[Node, Node]]
"""Results that differ: the node of `after`, and what `before` has in its place."""


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

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._tries = 0

    def patch(
        self, state: State, node: Node, counterpart: Node | None, value: Array, wrong: Pairs, *, is_limited: bool = True
    ) -> Patch | None:
        """A replacement, if it corrects the results, alone or together with all nodes that had the same wrong value.

        It has to correct all those of `wrong` that it changes, and at least one. What is not limited is tried after
        whatever else was, and to its end.
        """
        if is_limited and self._tries >= _MOST_TRIES:
            return None
        patience = _PATIENCE if is_limited else len(self.replay.graph.instances) + 1
        after = self._tried(state, Repair(self.replay, node, counterpart, value), wrong, patience)
        if after is None and (equal_nodes := equal_nodes_of(self.replay.graph, node)):
            after = self._tried(state, Repair(self.replay, node, counterpart, value, equal_nodes), wrong, patience)
        return None if after is None else Patch(node, counterpart, value, after)

    def _tried(self, state: State, repair: Repair, wrong: Pairs, patience: int) -> State | None:
        self._tries += 1
        matches = 0

        def keep_going(instance: Instance, now: State, count: int) -> bool:
            nonlocal matches
            for entry in instance.results:
                matches += now.has(entry) and not state.has(entry) and not entry.instance.is_movement
            return count < patience * (1 + matches)

        after = self.replay.override(state, repair.first, repair.given, keep_going)
        if after is None:
            return None
        still_wrong = self.replay.wrong_outputs(self.replay.adopt(after))
        self.replay.adopt(state)
        reached = [pair for pair in wrong if after.raw[pair[0].number] is not state.raw[pair[0].number]]
        return after if reached and not any(pair in still_wrong for pair in reached) else None
