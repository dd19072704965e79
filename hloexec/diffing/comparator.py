"""Which values of a replay are right: those that hold what `before` does, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator

from hloexec.diffing.agreement import agrees, rounds_alike
from hloexec.diffing.chains import path_chain
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.replay import Replay, State
from hloexec.numerics.error_budget import Chain
from hloexec.values import Array

__all__ = ["Comparator"]


class Comparator:
    """Compares the values of `after` in a state with those of `before`."""

    def __init__(self, replay: Replay, before: Graph) -> None:
        self._replay = replay
        self._before = before

    def wrong_outputs(self, state: State) -> list[tuple[Node, Node]]:
        """The results that differ: the node of `after`, and what `before` has in its place."""
        pairs = {}
        for device, nodes in self._replay.graph.outputs.items():
            for ours, counterpart in zip(nodes, self._before.outputs[device], strict=True):
                if (ours.number, counterpart.number) not in pairs and not self.is_right(state, ours, counterpart):
                    pairs[ours.number, counterpart.number] = (ours, counterpart)
        return list(pairs.values())

    def is_right(self, state: State, ours: Node, counterpart: Node) -> bool:
        """Whether a node holds what a node of `before` does, but for rounding."""
        raw = state.raw[ours.number]
        if raw.shape != counterpart.value.shape:
            return False
        digest = self._replay.digest(ours, raw)
        if (digest.in_order, digest.family) == (counterpart.digest.in_order, counterpart.digest.family):
            return True
        match = state.matches[ours.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == counterpart.digest.in_order:
            return True
        if digest.family != counterpart.digest.family or not any(
            agrees(raw, counterpart.value, allowed) for allowed in self.allowed(state, ours, counterpart)
        ):
            return False
        return rounds_alike(raw, counterpart.value, state.chains[ours.number], self._chain_of(state, counterpart))

    def allowed(self, state: State, ours: Node, counterpart: Node) -> Iterator[Array | None]:
        """By how much rounding may put the elements of a node off those of a node of `before`, of its dimensions, since
        values that both sides have: what is soon known first, then all; None where nothing rounds."""
        chain, other = state.chains[ours.number], self._chain_of(state, counterpart)
        if not chain.linear or not other.linear or counterpart.digest.family not in ("float", "complex"):
            yield None
            return
        bounds = self._replay.bounds(state, ours)
        for allowance in self._replay.index.allowances(chain, bounds, other, counterpart):
            yield allowance.of(bounds.shape)

    def _chain_of(self, state: State, counterpart: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(counterpart, state.matched - {counterpart.number}, self._replay.index.chains)
