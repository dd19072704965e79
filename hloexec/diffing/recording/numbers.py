"""Sets of many of a graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Numbers"]


class Numbers:
    """A set of numbers that are not large: a byte for each that might be in it takes less, and is sooner copied."""

    def __init__(self, flags: bytearray | None = None) -> None:
        self._flags = bytearray() if flags is None else flags

    def __contains__(self, number: Any) -> bool:
        return number < len(self._flags) and bool(self._flags[number])

    def add(self, number: int) -> None:
        if number >= len(self._flags):
            self._flags.extend(bytes(number + 1 - len(self._flags)))
        self._flags[number] = True

    def update(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.add(number)

    def copy(self) -> Numbers:
        return Numbers(self._flags[:])
