"""Replacements, tried one by one: does the result come right once a value is what it should be?"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.diffing.counterparts import Repair, twins_of
from hloexec.diffing.graph import Instance, Node
from hloexec.diffing.judging import Judge
from hloexec.diffing.replay import Replay, State, is_movement
from hloexec.values import Array

__all__ = ["Remedy", "Trials"]

_MOST_TRIES = 600
"""More replacements than this are not tried: a bound on time. The bug farm's faults are found in 166 at most."""
_PATIENCE = 60
"""So many instructions are computed again without one of them coming right, then a replacement is given up: what is
wrong stays wrong then, and a run may have millions. Those that repair the bug farm's faults need 24 at most."""


@attrs.frozen(eq=False)
class Remedy:
    """A replacement that helps."""

    node: Node
    its: Node | None
    """What of `before` it was taken from."""
    value: Array
    after: State


class Trials:
    """Tries replacements, a limited number of them, and knows which help."""

    def __init__(self, replay: Replay, judge: Judge) -> None:
        self._replay = replay
        self._judge = judge
        self._tries = 0

    def remedy(
        self,
        state: State,
        node: Node,
        its: Node | None,
        value: Array,
        wrong: Sequence[tuple[Node, Node]],
        *,
        is_limited: bool = True,
    ) -> Remedy | None:
        """A replacement, if it puts the results right, by itself or with all that gave the same wrong value.

        It has to put right all those of `wrong` that it changes, and at least one. What is not limited is tried after
        whatever else was, and to its end.
        """
        if is_limited and self._tries >= _MOST_TRIES:
            return None
        patience = _PATIENCE if is_limited else len(self._replay.graph.instances) + 1
        after = self._tried(state, node, its, value, wrong, (), patience)
        if after is None:
            twins = twins_of(self._replay.graph, node)
            if twins:
                after = self._tried(state, node, its, value, wrong, twins, patience)
        return None if after is None else Remedy(node, its, value, after)

    def _tried(
        self,
        state: State,
        node: Node,
        its: Node | None,
        value: Array,
        wrong: Sequence[tuple[Node, Node]],
        twins: Sequence[Node],
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

        repair = Repair(self._replay.graph, self._replay.index, node, its, value, twins)
        after = self._replay.override(state, repair, keep_going)
        if after is None:
            return None
        self._replay.adopt(after)
        still = {(mine.number, its.number) for mine, its in self._judge.wrong_outputs(after)}
        self._replay.adopt(state)
        reached = [(mine, its) for mine, its in wrong if after.raw[mine.number] is not state.raw[mine.number]]
        fixed = [pair for pair in reached if (pair[0].number, pair[1].number) not in still]
        return after if fixed and len(fixed) == len(reached) else None
