"""Values that differ between devices.

If all devices of a task agree, a slot holds their one value; otherwise it holds a `Varying`: a partition of the devices
into classes, and one value per class. An operation on varying values runs once per class of their common refinement.
Devices have positions, numbered within their task; classes are numbered in the order of their first positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.values import Array

Classes: TypeAlias = tuple[int, ...]
"""The class of each position."""

_SMALL_BYTES = 64
"""Values of up to this many bytes are compared, so that devices that compute equal indices or predicates agree
again."""


class Varying:
    """One value per class of devices; there are at least two classes."""

    __slots__ = ("classes", "values")

    def __init__(self, classes: Classes, values: list[Any]) -> None:
        self.classes = classes
        self.values = values

    def __repr__(self) -> str:
        return f"Varying({self.classes}, {self.values})"


@lru_cache(maxsize=4096)
def joined(partitions: tuple[Classes, ...]) -> tuple[Classes, tuple[tuple[int, ...], ...]]:
    """The coarsest partition finer than all of these, and in which of their classes each of its classes lies."""
    numbers: dict[tuple[int, ...], int] = {}
    classes = tuple(numbers.setdefault(row, len(numbers)) for row in zip(*partitions, strict=True))
    return classes, tuple(numbers)


@lru_cache(maxsize=4096)
def last_uses(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[bool, ...], ...]:
    """For each of the partitions that were joined, and each class of the join: whether none after it has its part."""
    rows_of_flags = []
    for column in zip(*rows, strict=True):
        last = {part: number for number, part in enumerate(column)}
        rows_of_flags.append(tuple(last[part] == number for number, part in enumerate(column)))
    return tuple(rows_of_flags)


@lru_cache(maxsize=4096)
def belongs_to_one(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[bool, ...], ...]:
    """For each of the partitions that were joined, and each class of the join: whether no other has its part."""
    flags = []
    for column in zip(*rows, strict=True):
        counts = Counter(column)
        flags.append(tuple(counts[part] == 1 for part in column))
    return tuple(flags)


@lru_cache(maxsize=4096)
def members(devices: tuple[int, ...], classes: Classes) -> tuple[tuple[int, ...], ...]:
    """The devices of each class."""
    groups: list[list[int]] = [[] for _ in range(max(classes) + 1)]
    for device, number in zip(devices, classes, strict=True):
        groups[number].append(device)
    return tuple(map(tuple, groups))


def of_position(value: object, position: int) -> Any:
    """The value that the device at a position holds."""
    return value.values[value.classes[position]] if type(value) is Varying else value


def of_class(operands: Sequence[Any], places: Sequence[int], parts: Sequence[int]) -> list[Any]:
    """Operands as one class of devices holds them: at `places` stand those that are split, and `parts` says for each of
    them which part is its own."""
    held = list(operands)
    for place, part in zip(places, parts, strict=True):
        held[place] = operands[place].values[part]
    return held


def split(operands: Sequence[Any]) -> tuple[list[int], Classes, tuple[tuple[int, ...], ...]]:
    """The places of operands that devices hold several values of, the coarsest classes that agree on all of them, and
    of each class which part of each of these operands is its own."""
    places = [place for place, operand in enumerate(operands) if type(operand) is Varying]
    return places, *joined(tuple(operands[place].classes for place in places))


def combined(classes: Classes, values: Sequence[object]) -> Any:
    """One value per class, those of equal classes merged where that is easily seen."""
    keys = [_key(value) for value in values]
    if len(set(keys)) < len(keys):
        numbers: dict[Any, int] = {}
        by_class = [numbers.setdefault(key, len(numbers)) for key in keys]
        if len(numbers) == 1:
            return values[0]
        firsts: dict[int, Any] = {}
        for number, value in zip(by_class, values, strict=True):
            firsts.setdefault(number, value)
        return Varying(tuple(by_class[number] for number in classes), list(firsts.values()))
    return values[0] if len(values) == 1 else Varying(classes, list(values))


def of_positions(values: Sequence[object]) -> Any:
    """One value per position; positions that hold the same object, or equal small ones, form a class."""
    first = values[0]
    if all(value is first for value in values):
        return first
    numbers: dict[int, int] = {}
    classes = tuple(numbers.setdefault(id(value), len(numbers)) for value in values)
    firsts: dict[int, Any] = {}
    for number, value in zip(classes, values, strict=True):
        firsts.setdefault(number, value)
    return combined(classes, list(firsts.values()))


def _key(value: object) -> Any:
    """Equal for values that are known to be equal."""
    if isinstance(value, np.ndarray) and value.nbytes <= _SMALL_BYTES:
        return value.dtype.str, value.dtype.name, value.shape, value.tobytes()
    return id(value)


def restricted(value: object, positions: Sequence[int]) -> Any:
    """The value for the devices at some positions only."""
    if type(value) is not Varying:
        return value
    classes, rows = joined((tuple(value.classes[position] for position in positions),))
    values = [value.values[number] for (number,) in rows]
    return values[0] if len(values) == 1 else Varying(classes, values)


def merged(values: Sequence[object], order: Sequence[tuple[int, int]]) -> Any:
    """What several tasks hold, for all their devices: position p has the value of position order[p][1] of task
    order[p][0].
    """
    first = values[0]
    if type(first) is not Varying and all(value is first for value in values):
        return first
    return of_positions([of_position(values[task], position) for task, position in order])


def arrays_among(values: Iterable[object]) -> list[Array]:
    """All arrays among values, those of every class."""
    arrays: list[Array] = []
    for value in values:
        if isinstance(value, np.ndarray):
            arrays.append(value)
        elif type(value) is Varying:
            arrays += [part for part in value.values if isinstance(part, np.ndarray)]
    return arrays
