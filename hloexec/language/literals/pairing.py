"""Which arrays belong to which leaves where their names do not say so: by what they hold, in order, if there is but one
way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

_NUMBERED = re.compile(r"arr_\d+")

Fits: TypeAlias = Callable[[int, int], bool]
"""Whether an array, by its number, may be the leaf of a number."""


def are_numbered(keys: Sequence[str]) -> bool:
    """Whether `numpy.savez` has made up these keys for arrays without names: arr_0, arr_1, …"""
    return bool(keys) and all(map(_NUMBERED.fullmatch, keys))


def pairings(keys: Sequence[str], count: int, fits: Fits) -> list[list[int]]:
    """The ways to take arrays of these keys for `count` leaves: the number of an array for each of them. One way is an
    answer; of several there may be more than are listed.

    Numbered arrays stand in the order of the leaves. Named ones stand in that order, or in the order of their names, as
    JAX flattens a dict; or each fits one leaf alone. There may be arrays that belong to no leaf, if they are numbered.
    """
    numbers = range(len(keys))
    if are_numbered(keys):
        orders = [sorted(numbers, key=lambda number: int(keys[number][4:]))]
    elif len(keys) == count:
        orders = [list(numbers), sorted(numbers, key=lambda number: keys[number])]
    else:
        return []
    found = [way for order in orders for way in _ways(order, count, fits)]
    if not found and len(keys) == count:
        choices = [[number for number in numbers if fits(number, leaf)] for leaf in range(count)]
        if all(len(choice) == 1 for choice in choices):
            found = [[choice[0] for choice in choices]]
    return [way for place, way in enumerate(found) if len(set(way)) == count and way not in found[:place]]


def _ways(order: Sequence[int], count: int, fits: Fits) -> list[list[int]]:
    """The first and the last way to take arrays in this order: there is one alone if they are the same."""
    first = _first_way(order, range(count), fits)
    last = _first_way(order[::-1], range(count)[::-1], fits)
    return [] if first is None or last is None else [first, last[::-1]]


def _first_way(order: Sequence[int], leaves: Sequence[int], fits: Fits) -> list[int] | None:
    found = []
    rest = iter(order)
    for leaf in leaves:
        number = next((number for number in rest if fits(number, leaf)), None)
        if number is None:
            return None
        found.append(number)
    return found
