"""The values that two runs have in common, as the result of a diff lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from hloexec.core.values import Array
from hloexec.tools.diffing.findings import Pair
from hloexec.tools.diffing.recording.columns import Columns


class Pairs(Sequence[Pair]):
    """Pairs of nodes, made when they are asked for; the runs' arrays need not be kept for them."""

    def __init__(self, ours: Columns, theirs: Columns, pairs: Array) -> None:
        self._ours = ours
        self._theirs = theirs
        self._pairs = pairs
        """Rows of the numbers of both nodes, whether they hold the same numbers, and whether in one order."""

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Pair, ...]: ...
    def __getitem__(self, place: int | slice) -> Pair | tuple[Pair, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(len(self))[place])
        ours, theirs, is_exact, is_in_order = map(int, self._pairs[place])
        return Pair(self._ours.place(ours), self._theirs.place(theirs), bool(is_exact), bool(is_in_order))
