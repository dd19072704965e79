"""Which values of a replay are right: those that hold what `before` does, but for rounding."""

from __future__ import annotations

from hloexec.diffing.agreement import agrees, lesser, local_tolerance, rounds_alike
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.matching import path_chain
from hloexec.diffing.replay import Replay, State
from hloexec.dtypes import element_type_of
from hloexec.numerics.error_budget import Chain
from hloexec.numerics.tolerances import Tolerance

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
        if digest.family != its.digest.family or not agrees(raw, its.value, self.tolerance(state, mine, its)):
            return False
        return rounds_alike(raw, its.value, state.chains[mine.number], self._chain_of(state, its))

    def tolerance(self, state: State, mine: Node, its: Node) -> Tolerance:
        """What rounding explains between two nodes, since values that both sides have."""
        chain = lesser(state.chains[mine.number], self._chain_of(state, its))
        types = element_type_of(mine.value.dtype), element_type_of(its.value.dtype)
        return local_tolerance(*types, its.digest.root_mean_square, chain)

    def _chain_of(self, state: State, its: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(its, state.matched - {its.number}, self._replay.index.chains)
