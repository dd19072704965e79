"""Which instruction of `after` makes its result differ.

A value is to blame if the results come right once it is replaced by what it should be. So values that `before` does
not have, on the way to a result that differs, are replaced one by one, the earliest first, by values that `before`
does have, and what follows is computed again. The first replacement after which the results are as in `before` names
the instruction: all that it was given is right, or harmless, since what follows comes right without changing it.
"""

from __future__ import annotations

from itertools import islice

import attrs

from hloexec.diffing.agreement import agrees, lesser, local_tolerance
from hloexec.diffing.counterparts import Counterparts
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import path_chain
from hloexec.diffing.replay import Replay, State, is_movement
from hloexec.dtypes import element_type_of
from hloexec.numerics.tolerances import Tolerance
from hloexec.values import Array

__all__ = ["Blame", "Blamed"]

_MOST_SUSPECTS = 400
_MOST_TRIES = 600
_PATIENCE = 60
"""So many instructions are computed again without one of them coming right, then a replacement is given up."""


@attrs.frozen(eq=False)
class Blamed:
    """An instruction, and what was found out about it."""

    node: Node
    counterpart: Node | None
    value: Array | None
    """What it should have given, arranged as its own value."""
    raw: Array
    """What it gave, on `before`'s operands."""
    tolerance: Tolerance | None
    is_certain: bool
    wrong: frozenset[int]
    """The nodes on the way from it to the results that differ."""


class Blame:
    """The search, from a replay on."""

    def __init__(self, replay: Replay, before: Graph) -> None:
        self._replay = replay
        self._before = before
        self._counterparts = Counterparts(replay.index)
        self._tries = 0

    def find(self, state: State, top: int) -> list[Blamed]:
        """What is to blame, in data-flow order; at most `top`."""
        found: list[Blamed] = []
        while len(found) < top:
            wrong = self.wrong_outputs(state)
            if not wrong:
                break
            blamed, after = self._next(state, wrong, found)
            if blamed is None:
                break
            found.append(blamed)
            if after is None:
                break
            state = self._replay.adopt(after)
        return found

    def wrong_outputs(self, state: State) -> list[tuple[Node, Node]]:
        """The results that differ: the node of `after`, and what `before` has in its place."""
        pairs = {}
        for device, nodes in self._replay.graph.outputs.items():
            for mine, its in zip(nodes, self._before.outputs[device], strict=True):
                if (mine.number, its.number) not in pairs and not self.is_right(state, mine, its):
                    pairs[mine.number, its.number] = (mine, its)
        return list(pairs.values())

    def is_right(self, state: State, mine: Node, its: Node) -> bool:
        """Whether a node holds what a node of `before` does, but for rounding."""
        raw = state.raw[mine.number]
        if raw.shape != its.value.shape:
            return False
        digest = self._replay.digest(mine, raw)
        if (digest.in_order, digest.family) == (its.digest.in_order, its.digest.family):
            return True
        match = state.matches[mine.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == its.digest.in_order:
            return True
        tolerance = self.tolerance(state, mine, its)
        return digest.family == its.digest.family and agrees(raw, its.value, tolerance)

    def tolerance(self, state: State, mine: Node, its: Node) -> Tolerance:
        """What rounding explains between two nodes, since values that both sides have."""
        ends = {number for number in state.matched if number != its.number}
        chain = lesser(state.chains[mine.number], path_chain(its, ends, self._replay.index.chains))
        types = element_type_of(mine.value.dtype), element_type_of(its.value.dtype)
        if not (types[0].is_floating or types[0].is_complex):
            return Tolerance(derivation="integers and preds must be the same")
        return local_tolerance(*types, its.digest.root_mean_square, chain)

    def _next(
        self, state: State, wrong: list[tuple[Node, Node]], found: list[Blamed]
    ) -> tuple[Blamed | None, State | None]:
        suspects = self._suspects(state, wrong, found)
        numbers = frozenset(node.number for node in suspects)
        for certain_only in (True, False):
            for node in islice(suspects, _MOST_SUSPECTS):
                for its, value in self._counterparts.of(node, state, certain_only):
                    after = self._tried(state, node, its, value, wrong)
                    if after is not None:
                        return self._blamed(state, node, its, value, True, numbers), after
        return self._fallback(state, suspects, wrong, numbers)

    def _suspects(self, state: State, wrong: list[tuple[Node, Node]], found: list[Blamed]) -> list[Node]:
        """The nodes on the way to a wrong result that `before` does not have, the earliest first; each instruction
        once."""
        stack = [mine for mine, _ in wrong]
        seen = {node.number for node in stack}
        while stack:
            node = stack.pop()
            for entry in node.instance.inputs:
                match = state.matches[entry.number]
                if entry.number not in seen and (match is None or not match.is_in_order):
                    seen.add(entry.number)
                    stack.append(entry)
        blamed = {entry.node.instance.static for entry in found}
        suspects = []
        known = set()
        for number in sorted(seen):
            node = self._replay.graph.nodes[number]
            key = (*node.instance.static, node.leaf)
            if key not in known and node.instance.static not in blamed:
                known.add(key)
                suspects.append(node)
        return suspects

    def _tried(
        self, state: State, node: Node, its: Node | None, value: Array, wrong: list[tuple[Node, Node]]
    ) -> State | None:
        """The state after a replacement that puts the results right, None where it does not."""
        if self._tries >= _MOST_TRIES:
            return None
        self._tries += 1
        matches = 0

        def keep_going(instance: Instance, now: State, count: int) -> bool:
            nonlocal matches
            for entry in instance.results:
                match = now.matches[entry.number]
                if (
                    match is not None
                    and match.is_in_order
                    and not is_movement(entry)
                    and (state.matches[entry.number] is None or not state.matches[entry.number].is_in_order)  # type: ignore[union-attr]
                ):
                    matches += 1
            return count < _PATIENCE * (1 + matches)

        overrides = self._counterparts.occurrences(node, its, value, self._replay.graph)
        after = self._replay.override(state, overrides, node.instance, keep_going)
        if after is None:
            return None
        self._replay.adopt(after)
        still = {(mine.number, its.number) for mine, its in self.wrong_outputs(after)}
        self._replay.adopt(state)
        reached = [(mine, its) for mine, its in wrong if after.raw[mine.number] is not state.raw[mine.number]]
        fixed = [pair for pair in reached if (pair[0].number, pair[1].number) not in still]
        return after if fixed and len(fixed) == len(reached) else None

    def _blamed(
        self, state: State, node: Node, its: Node | None, value: Array | None, is_certain: bool, wrong: frozenset[int]
    ) -> Blamed:
        tolerance = self.tolerance(state, node, its) if its is not None else None
        return Blamed(node, its, value, state.raw[node.number], tolerance, is_certain, wrong)

    def _fallback(
        self, state: State, suspects: list[Node], wrong: list[tuple[Node, Node]], numbers: frozenset[int]
    ) -> tuple[Blamed | None, State | None]:
        """Where no replacement helps: the first suspect that is given nothing but what `before` has."""
        for node in suspects:
            inputs = [state.matches[entry.number] for entry in node.instance.inputs]
            if all(match is not None for match in inputs):
                best = next(iter(self._counterparts.of(node, state, False)), None)
                its, value = best if best is not None else (None, None)
                return self._blamed(state, node, its, value, False, numbers), None
        node, its = wrong[0]
        return self._blamed(state, node, its, None, False, numbers), None
