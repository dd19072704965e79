"""Computing a value of `after` again, where one before it is another."""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.core.values import Array
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.states import State


class Rerun:
    """Values of one state of a replay, computed again from others."""

    def __init__(self, replay: Replay, state: State, target: Node) -> None:
        self._replay = replay
        self._state = state
        self._target = target
        self._steps: list[Node] | None = None

    def value(self, changes: Mapping[int, Array]) -> Array | None:
        """What the target would be if some nodes held other arrays; None where it does not depend on them, or cannot be
        computed again."""
        if self._target.number in changes:
            return changes[self._target.number]
        now = dict(changes)
        first = min(changes)
        values = Overlay(self._state.values, now)
        for step in self._before_target(first):
            if step.number in now or all(entry.number not in now for entry in step.instance.inputs):
                continue
            arrays = self._replay.evaluator.results(step.instance, values)
            if arrays is None:
                return None
            for entry, array in zip(step.instance.results, arrays, strict=True):
                now.setdefault(entry.number, array)
        return now.get(self._target.number)

    def _before_target(self, first: int) -> list[Node]:
        """The nodes that the target is computed from, in data-flow order, behind one of them."""
        if self._steps is None:
            found = {self._target.number: self._target}
            pending = [self._target]
            most = LIMITS.rerun_steps * len(self._replay.graph.outputs)
            for current in pending:
                for entry in current.instance.inputs:
                    if entry.number not in found and not entry.instance.is_source and len(found) < most:
                        found[entry.number] = entry
                        pending.append(entry)
            self._steps = [found[number] for number in sorted(found)]
        return [node for node in self._steps if node.number > first]
