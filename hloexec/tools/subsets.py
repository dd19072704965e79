"""Delta debugging: the search for a small subset that still shows what all show together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Unit = TypeVar("_Unit")


def parts_of(units: Sequence[_Unit], count: int) -> list[list[_Unit]]:
    """So many parts of about the same size, side by side."""
    size = len(units)
    return [list(units[size * number // count : size * (number + 1) // count]) for number in range(count)]


def reduced(
    units: Sequence[_Unit], first: Callable[[Sequence[list[_Unit]]], int | None], *, least: int = 0
) -> list[_Unit]:
    """A subset of units from which none of some size can be left out: `first` says which of some subsets is the first
    to show what the units do.

    Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002, algorithm ddmin):
    a part alone, then all but a part, for smaller and smaller parts.
    """
    left, parts = list(units), 2
    while len(left) > least and left:
        parts = min(parts, len(left))
        chunks = parts_of(left, parts)
        tried = [*chunks] if parts > 1 else []
        tried += [
            [unit for j, chunk in enumerate(chunks) if j != i for unit in chunk]
            for i in reversed(range(parts))
            if parts != 2
        ]
        if least == 0 and parts == len(left) == 1:
            tried = [[]]
        number = first(tried)
        if number is not None:
            is_alone = parts > 1 and number < parts
            left = tried[number]
            parts = 2 if is_alone else max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return left
