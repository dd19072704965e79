"""Computing a value of `after` again, where one before it is another."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

import attrs

from hloexec.core.ir import Module
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.values import Array
from hloexec.tools.diffing.agreement import is_near, is_same
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


def stays_wrong(replay: Replay, place: tuple[str, str], edited: Module, target: Node, expected: Array) -> bool:
    """Whether a result that should be another one is not near that either where an instruction of some place, which ran
    once on the only device of a module without loops and branches, is as an edited module has it. Unless it is certain,
    it is not said to be so: only some values are computed again, by kernels of the module as it was."""
    graph, evaluator = replay.graph, replay.evaluator
    runs = graph.runs[place]
    if len(runs) != 1 or len(graph.outputs) > 1:
        return False
    (instance,) = runs
    now: dict[int, Array] = {}
    values = Overlay(State.recorded(graph, replay.index.graph).values, now)
    alone = evaluator.alone(instance, values)
    if alone is None:
        return False
    root = attrs.evolve(edited.by_name[place[0]].by_name[place[1]], control_predecessors=())
    changed = replace_computation(alone, replace_instruction(alone.entry, root), entry_computation_layout=None)
    pending, met = [instance.number], set[int]()
    while pending and target.number not in now:
        current = graph.instance(heappop(pending))
        is_first = current is instance
        arrays = evaluator.results_of(changed, current, values) if is_first else evaluator.results(current, values)
        if arrays is None:
            return False
        for node, array in zip(current.results, arrays, strict=True):
            if array.shape != node.shape:
                return False
            if not is_same(array, node.value):
                now[node.number] = array
                for user in set(replay.users.numbers(node.number)) - met:
                    met.add(user)
                    heappush(pending, user)
    return target.number not in now or not is_near(now[target.number], expected)
