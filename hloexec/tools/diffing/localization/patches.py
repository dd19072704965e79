"""Trying replacements: do the results come right if a value of `after` is replaced by the one it should be?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import NodePair
from hloexec.tools.diffing.matching import aligned, arranged, is_near, is_same
from hloexec.tools.diffing.replaying.replay import Given, Replay, State


@frozen(eq=False)
class Patch:
    """A replacement that puts results right."""

    pair: NodePair
    value: Array
    after: State
    is_proof: bool = True
    """Whether results come right; else only values behind it do."""


def patched(
    replay: Replay, state: State, pair: NodePair, wrong: Sequence[NodePair], is_over: Callable[[], bool]
) -> Patch | None:
    """A replacement, if it corrects the results, alone or together with all nodes that had the same wrong value.

    It has to correct all those of `wrong` that it changes, and at least one.
    """
    again = _equal_nodes_of(replay.graph, pair.ours)
    for value in replacements(state, pair):
        for others in ([], again) if again else ([],):
            repair = _Repair(replay, pair.ours, pair.theirs, value, others)
            after = tried(replay, state, repair.first, repair.given, wrong, is_over)
            if after is None and repair.used:
                repair.guesses = False
                after = tried(replay, state, repair.first, repair.given, wrong, is_over)
            if after is not None:
                return Patch(pair, value, after)
    return None


def corrects_alone(
    replay: Replay, state: State, pair: NodePair, wrong: Sequence[NodePair], is_over: Callable[[], bool]
) -> bool:
    """Whether the replacement of one node, and of nothing like it, corrects the results."""
    for value in replacements(state, pair):
        repair = _Repair(replay, pair.ours, pair.theirs, value)
        repair.guesses = False
        if tried(replay, state, repair.first, repair.given, wrong, is_over) is not None:
            return True
    return False


def replacements(state: State, pair: NodePair) -> Iterator[Array]:
    """What a node should give, in each arrangement; nothing where it gives that already: with its dimensions exchanged,
    results may come right, but it is what takes it that is wrong."""
    raw = state.raw[pair.ours.number]
    if raw.shape != pair.theirs.value.shape or not is_same(raw, pair.theirs.value):
        yield from arranged(pair.theirs.value, raw)


def replaced(replay: Replay, state: State, pair: NodePair, value: Array, is_over: Callable[[], bool]) -> State | None:
    """The state with a replacement, whether or not it helps."""
    repair = _Repair(replay, pair.ours, pair.theirs, value, _equal_nodes_of(replay.graph, pair.ours))
    return replay.override(state, repair.first, repair.given, lambda *_: not is_over())


def tried(
    replay: Replay,
    state: State,
    first: Instance,
    given: Given,
    wrong: Sequence[NodePair],
    is_over: Callable[[], bool],
    haste: int = 1,
) -> State | None:
    """The state in which an instance and later ones hold what is given, if that corrects the results; it is given up
    so many times earlier."""
    matches = 0
    devices = len(replay.graph.outputs)
    reached_instructions: set[tuple[str, str]] = set()

    def keep_going(instance: Instance, now: State, count: int) -> bool:
        nonlocal matches
        for entry in instance.results:
            matches += now.has(entry) and not state.has(entry) and not entry.instance.is_movement
        reached_instructions.add(instance.static)
        is_patient = haste * count < LIMITS.patience_in_loops * devices * (1 + matches)
        return is_patient and haste * len(reached_instructions) < LIMITS.patience * (1 + matches) and not is_over()

    after = replay.override(state, first, given, keep_going)
    if after is None:
        return None
    reached = [pair for pair in wrong if after.changed[pair.ours.number]]
    replay.adopt(after)
    is_right = bool(reached) and all(
        is_near(after.raw[pair.ours.number], pair.theirs.value) and replay.is_right(after, pair.ours, pair.theirs)
        for pair in reached
    )
    replay.adopt(state)
    return after if is_right else None


class _Repair:
    """A replacement of a node's value by a counterpart's, and of what the same fault does to others like it.

    A fault in a loop, in a computation that is called twice or in a loop that was unrolled makes many values wrong. So
    whenever the same instruction runs again, it is given what the counterpart gave when that ran again; and whenever
    another one of its opcode and shape gives what `before` does not have, it is given the next value of the counterpart
    that `after` does not have yet.
    """

    def __init__(
        self, replay: Replay, node: Node, counterpart: Node, value: Array, equal_nodes: Sequence[Node] = ()
    ) -> None:
        self._node, self._value = node, value
        self._equal_nodes = {entry.number for entry in (node, *equal_nodes)}
        self.first = min((node, *equal_nodes), key=lambda entry: entry.instance.number).instance
        self._order = _arrangement(counterpart, value)
        runs = replay.index.graph.runs[counterpart.instance.static]
        self._others = [entry.results[counterpart.leaf] for entry in runs if entry.number > counterpart.instance.number]
        self._again = _runs_alike(replay.graph, replay.index.graph, node, counterpart)
        self.guesses = True
        """Whether others like the node are given values."""
        self.used: set[int] = set()
        """The nodes of `before` that were given to them."""

    def given(self, instance: Instance, state: State) -> dict[int, Array]:
        """What an instance's arrays are to be, by node, once it has been computed."""
        equal_nodes = {node.number: self._value for node in instance.results if node.number in self._equal_nodes}
        if equal_nodes:
            return equal_nodes
        own = self._node.instance
        if instance.number < own.number or instance.opcode != own.opcode:
            return {}
        arrays = {}
        for node in instance.results:
            if node.leaf != self._node.leaf or node.shape != self._value.shape:
                continue
            entry = self._again.get(node.number) or (self._next(node, state) if self.guesses else None)
            value = None if entry is None else self._order(entry.value)
            if value is not None:
                arrays[node.number] = value if value.dtype == node.dtype else value.astype(node.dtype)
        return arrays

    def _next(self, node: Node, state: State) -> Node | None:
        if state.has(node) and not node.digest.is_uniform:
            return None
        for entry in self._others:
            is_free = entry.number not in state.matched and entry.number not in self.used
            if is_free and entry.device == node.device:
                self.used.add(entry.number)
                return entry
        return None


def _equal_nodes_of(graph: Graph, node: Node) -> list[Node]:
    """The nodes that other instructions of the same opcode gave, outside of loops, with the same numbers; compilers
    recompute a cheap value in each fusion that uses it, and make the same mistake there."""
    return [
        entry
        for entry in graph.has_digest(node.digest)
        if entry is not node
        and entry.instance.opcode == node.instance.opcode
        and entry.instance.static != node.instance.static
        and entry.shape == node.shape
        and entry.device == node.device
        and not entry.instance.iterations
    ]


def _runs_alike(ours: Graph, theirs: Graph, node: Node, counterpart: Node) -> dict[int, Node]:
    """The nodes that an instruction gave later, and on other devices, with what its counterpart gave there; as far as
    that ran as often, or both did from one call."""
    counterparts = {}
    if len(counterpart.instance.iterations) < len(node.instance.iterations):
        return _carried_alike(ours, theirs, node, counterpart)
    (runs, place), (other_runs, other_place) = (_later_runs(ours, node), _later_runs(theirs, counterpart))
    if any(len(instances) != len(other_runs[device]) for device, instances in runs.items()):
        # One side may call, more than once, what the other has written out.
        runs, place = _later_runs(ours, node, node.instance.loops)
        other_runs, other_place = _later_runs(theirs, counterpart, counterpart.instance.loops)
    for device, instances in runs.items():
        for instance, other in zip(instances[place:], other_runs[device][other_place:], strict=False):
            if node.leaf < len(instance.results) and counterpart.leaf < len(other.results):
                counterparts[instance.results[node.leaf].number] = other.results[counterpart.leaf]
    return counterparts


def _carried_alike(ours: Graph, theirs: Graph, node: Node, counterpart: Node) -> dict[int, Node]:
    """The same where the counterpart is what a loop was given: later, it is what the instruction that uses it in that
    iteration uses instead."""
    users = (user for user in theirs.users()[counterpart.number] if user.iterations == node.instance.iterations)
    user = next(users, None)
    if user is None:
        return {}
    place = user.inputs.index(counterpart)
    taken = {
        (run.device, run.iterations): run.inputs[place] for run in theirs.runs[user.static] if place < len(run.inputs)
    }
    return {
        run.results[node.leaf].number: taken[run.device, run.iterations]
        for run in ours.runs[node.instance.static]
        if (run.device, run.iterations) in taken and run.number >= node.instance.number
    }


def _later_runs(graph: Graph, node: Node, loops: str | None = None) -> tuple[dict[int, list[Instance]], int]:
    """The runs of a node's instruction on each device, in these loops if they are given, and which of its own device's
    it is."""
    runs: dict[int, list[Instance]] = defaultdict(list)
    for instance in graph.runs[node.instance.static]:
        if loops in (None, instance.loops):
            runs[instance.device].append(instance)
    return runs, runs[node.device].index(node.instance)


def _arrangement(counterpart: Node, value: Array) -> Callable[[Array], Array | None]:
    """How a counterpart's array was arranged, for others of its dimensions."""
    for number, candidate in enumerate(arranged(counterpart.value, value)):
        if np.array_equal(candidate, value):
            return lambda array: next(
                (entry for place, entry in enumerate(aligned(array, value.shape)) if place == number), None
            )
    return lambda array: next(aligned(array, value.shape), None)
