"""Digests in columns: a digest as an object takes five times as much."""

from __future__ import annotations

from array import array as column

import numpy as np

from hloexec.core.values import Array
from hloexec.tools.diffing.digests import Digest

_FINITE = (0, 0, 0)


class DigestTable:
    """Digests by number; what follows from the arrays' shapes and types aside."""

    def __init__(self) -> None:
        self._in_order = column("Q")
        self._in_any_order = column("Q")
        self._sums = column("d")
        self._is_uniform = column("b")
        self._nonfinite: dict[int, tuple[int, int, int]] = {}

    def append(self, digest: Digest) -> None:
        """Add a digest; it has the next number."""
        if digest.nonfinite != _FINITE:
            self._nonfinite[len(self._in_order)] = digest.nonfinite
        self._in_order.append(digest.in_order)
        self._in_any_order.append(digest.in_any_order)
        self._sums.extend((digest.total, digest.magnitude, digest.squares))
        self._is_uniform.append(digest.is_uniform)

    def of(self, number: int, count: int, family: str) -> Digest:
        """The digest of that number, of an array of so many elements of a family."""
        total, magnitude, squares = self._sums[3 * number : 3 * number + 3]
        return Digest(
            count,
            family,
            self._in_order[number],
            self._in_any_order[number],
            total,
            magnitude,
            squares,
            self.nonfinite(number),
            bool(self._is_uniform[number]),
        )

    def in_any_order(self, number: int) -> int:
        return self._in_any_order[number]

    def in_order(self, number: int) -> int:
        return self._in_order[number]

    def nonfinite(self, number: int) -> tuple[int, int, int]:
        return self._nonfinite.get(number, _FINITE)

    def columns(self) -> tuple[Array, Array, Array]:
        """All `in_order`, all `in_any_order`, and rows of (total, magnitude, squares)."""
        return np.array(self._in_order), np.array(self._in_any_order), np.array(self._sums).reshape(-1, 3)
