"""Agreement along the way, as a line of characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hloexec.diffing.graph import Node
from hloexec.diffing.localization.blaming import Blamed
from hloexec.diffing.replay import State

__all__ = ["picture_of"]

_ORDER = "█▓·?×"
_WIDTH = 100


def picture_of(nodes: Sequence[Node], state: State, blamed: Sequence[Blamed]) -> str:
    """A character per node, or for the worst of several where there are more than fit."""
    guilty = {entry.node.instance.static for entry in blamed}
    wrong = {number for entry in blamed for number in entry.wrong}
    characters = []
    for node in nodes:
        match = state.matches[node.number]
        if node.instance.static in guilty:
            characters.append("×")
        elif match is not None:
            characters.append("█" if match.is_exact else "▓")
        else:
            characters.append("?" if node.number in wrong else "·")
    if len(characters) <= _WIDTH:
        return "".join(characters)
    edges = [len(characters) * place // _WIDTH for place in range(_WIDTH + 1)]
    return "".join(max(characters[start:stop], key=_ORDER.index) for start, stop in pairwise(edges))
