"""Sets of many of a graph's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_MANY = 32
"""Fewer are added sooner one by one."""


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

    def update(self, numbers: Sequence[int]) -> None:
        """Add numbers that are in order."""
        if len(numbers) < _MANY:
            for number in numbers:
                self.add(number)
        else:
            self.add(numbers[-1])
            np.frombuffer(self._flags, np.bool_)[np.asarray(numbers)] = True

    def copy(self) -> Numbers:
        return Numbers(self._flags[:])
