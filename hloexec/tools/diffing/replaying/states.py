"""The states of a replay: what each node holds, and what that is in the other run.

Most nodes hold what was recorded, and match in one of few ways. What a state says of a node is a few numbers, so that a
state of a million nodes is small, and soon copied.
"""

from __future__ import annotations

from array import array as column
from collections.abc import Iterator

from hloexec.analysis.numerics.tolerances import Chain
from hloexec.core.structs import define
from hloexec.tools.diffing.bounds import Bound
from hloexec.tools.diffing.chains import NO_CHAIN
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.matching import Match
from hloexec.tools.diffing.recording.held import Holding
from hloexec.tools.diffing.recording.numbers import Numbers

_IN_ORDER, _EXACT, _TAKEN = 1, 2, 4


class Matches:
    """What the nodes of one graph are in another."""

    def __init__(self, theirs: Graph, values: Holding, count: int) -> None:
        self._theirs = theirs
        self._values = values
        """What the nodes hold."""
        self._node = column("i", [-1]) * count
        self._kind = column("b", [0]) * count
        self._others: dict[int, Match] = {}
        """Those whose value the node does not hold."""

    def __len__(self) -> int:
        return len(self._node)

    def __iter__(self) -> Iterator[Match | None]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, node: int) -> Match | None:
        number = self._node[node]
        if number < 0:
            return self._others.get(node)
        kind = self._kind[node]
        return Match(self._theirs.node(number), bool(kind & _IN_ORDER), bool(kind & _EXACT), self._values.of(node))

    def __setitem__(self, node: int, match: Match | None) -> None:
        """Set what a node is which does not hold the match's value."""
        self._node[node] = -1
        self._others.pop(node, None)
        if match is not None:
            self._others[node] = match

    def take(self, node: int, match: Match, is_taken: bool) -> None:
        """Set what a node is that holds the match's value, or the same numbers."""
        self._others.pop(node, None)
        self._node[node] = match.node.number
        self._kind[node] = _IN_ORDER * match.is_in_order | _EXACT * match.is_exact | _TAKEN * is_taken

    def is_any(self, node: int) -> bool:
        """Whether it is one of the other graph."""
        return self._node[node] >= 0 or node in self._others

    def has(self, node: int) -> bool:
        """Whether it is one of the other graph, in one order."""
        if self._node[node] < 0:
            match = self._others.get(node)
            return match is not None and match.is_in_order
        return bool(self._kind[node] & _IN_ORDER)

    def is_known(self, node: int) -> bool:
        """Whether what a node holds is what the other run has, without an error of its own."""
        if self._node[node] < 0:
            match = self._others.get(node)
            return match is not None and match.is_exact
        return bool(self._kind[node] & (_EXACT | _TAKEN))

    def found(self) -> Iterator[tuple[int, Match]]:
        """The nodes that match, and what they are."""
        for node in range(len(self)):
            match = self[node]
            if match is not None:
                yield node, match

    def copy(self, values: Holding) -> Matches:
        made = Matches(self._theirs, values, 0)
        made._node, made._kind, made._others = self._node[:], self._kind[:], dict(self._others)
        return made


class Chains:
    """What has rounded on the way to each node; few chains differ."""

    def __init__(self, count: int) -> None:
        self._number = column("i", [0]) * count
        self._chains = [NO_CHAIN]
        self._numbers = {NO_CHAIN: 0}

    def __getitem__(self, node: int) -> Chain:
        return self._chains[self._number[node]]

    def __setitem__(self, node: int, chain: Chain) -> None:
        number = self._numbers.setdefault(chain, len(self._chains))
        if number == len(self._chains):
            self._chains.append(chain)
        self._number[node] = number

    def copy(self) -> Chains:
        made = Chains(0)
        made._number = self._number[:]
        made._chains, made._numbers = self._chains, self._numbers
        return made


@define(eq=False)
class State:
    """What each node of `after` holds in a replay."""

    raw: Holding
    """As computed."""
    values: Holding
    """What others compute with: `before`'s value, where it agrees."""
    matches: Matches
    chains: Chains
    """What has rounded on the way from values of `before`."""
    bounds: dict[int, Bound]
    """The error bounds of its elements, once they have been used (`Replay.bounds`)."""
    matched: Numbers
    """The nodes of `before` that `after` has."""
    changed: bytearray
    """By node, whether it has been computed again since the state was copied from another one."""
    takes_roundings_back: bool = False
    """Whether what is a value of `before`, rounded to fewer bits, is held as `before` has it."""

    @classmethod
    def recorded(cls, ours: Graph, theirs: Graph) -> State:
        """That in which each node holds what was recorded, and matches nothing."""
        raw, values = (Holding(ours.arrays, ours.columns.array[:]) for _ in range(2))
        count = len(ours.nodes)
        return cls(raw, values, Matches(theirs, values, count), Chains(count), {}, Numbers(), bytearray(count))

    def has(self, node: Node) -> bool:
        """Whether `before` has what a node of `after` holds, in one order."""
        return self.matches.has(node.number)

    def copy(self) -> State:
        values = self.values.copy()
        return State(
            self.raw.copy(),
            values,
            self.matches.copy(values),
            self.chains.copy(),
            dict(self.bounds),
            self.matched.copy(),
            bytearray(len(self.changed)),
            self.takes_roundings_back,
        )
