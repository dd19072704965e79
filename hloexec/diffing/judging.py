"""Which values of a replay are right: those that hold what `before` does, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator

from hloexec.diffing.agreement import agrees, rounds_alike
from hloexec.diffing.chains import path_chain
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.replay import Replay, State
from hloexec.numerics.error_budget import Chain
from hloexec.values import Array

__all__ = ["Judge"]


class Judge:
    """Holds the values of `after` in a state against those of `before`."""

    def __init__(self, replay: Replay, before: Graph) -> None:
        self._replay = replay
        self._before = before

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
        if digest.family != its.digest.family or not any(
            agrees(raw, its.value, allowed) for allowed in self.allowed(state, mine, its)
        ):
            return False
        return rounds_alike(raw, its.value, state.chains[mine.number], self._chain_of(state, its))

    def allowed(self, state: State, mine: Node, its: Node) -> Iterator[Array | None]:
        """By how much rounding may put the elements of a node off those of a node of `before`, of its dimensions, since
        values that both sides have: what is soon known first, then all; None where nothing rounds."""
        chain, other = state.chains[mine.number], self._chain_of(state, its)
        if not chain.linear or not other.linear or its.digest.family not in ("float", "complex"):
            yield None
            return
        bounds = self._replay.bounds(state, mine)
        for allowance in self._replay.index.allowances(chain, bounds, other, its):
            yield allowance.of(bounds.shape)

    def _chain_of(self, state: State, its: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(its, state.matched - {its.number}, self._replay.index.chains)
