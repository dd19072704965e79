"""The devices of a module as a grid of axes, some of which get shorter, and pairs that send along them.

Device numbers count along the axes, major to minor. A list of numbers is *regular* if it is a sum of multiples of
coordinates: groups of collectives, the tiles of shardings, and what devices compute from their number are. What a
regular list steps over says where one axis ends and the next begins.

Pairs between which collectives send, for a grid with shorter axes.

Pairs that send along axes, each by itself, are the product of a pattern on each: to a neighbour, around a ring, to a
partner. A pattern stays the same on a shorter axis; pairs that exchange axes stay where these have equal sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.wording import truncated
from hloexec.errors import InputError
from hloexec.tools.shrinking.grouping import divisors

Run: TypeAlias = tuple[int, int]
"""So many numbers, each larger than the one before by a step."""
Block: TypeAlias = tuple[int, ...]
"""Axes of a grid, major to minor."""
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def runs_of(numbers: Sequence[int] | Numbers) -> list[Run] | None:
    """The runs of which a regular list of numbers consists, major to minor; None where it is not regular."""
    rest = np.asarray(numbers, np.int64)
    runs: list[Run] = []
    while rest.size > 1:
        step = int(rest[1] - rest[0])
        length = next((size for size in _lengths(rest.size) if _has_runs(rest, size, step)), 0)
        if not length:
            return None
        runs.append((length, step))
        rest = rest[::length]
    return runs[::-1]


def _lengths(count: int) -> Iterator[int]:
    """The divisors of a number but 1, the largest first."""
    return (size for size in range(count, 1, -1) if count % size == 0)


def _has_runs(numbers: Numbers, length: int, step: int) -> bool:
    rows = numbers.reshape(-1, length)
    return bool((rows == rows[:, :1] + step * np.arange(length)).all())


@frozen
class Grid:
    """Axes of the sizes given, major to minor."""

    sizes: tuple[int, ...]

    @classmethod
    def of_cuts(cls, count: int, cuts: Sequence[int]) -> Grid:
        """The grid whose axes end at these numbers, each of which divides the next."""
        bounds = sorted({1, count, *cuts})
        return cls(tuple(high // low for low, high in pairwise(bounds))[::-1])

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def every(self) -> Block:
        return tuple(range(len(self.sizes)))

    def stride(self, axis: int) -> int:
        return prod(self.sizes[axis + 1 :])

    def size(self, block: Block) -> int:
        return prod(self.sizes[axis] for axis in block)

    def coordinates(self, device: int) -> tuple[int, ...]:
        return tuple(device // self.stride(axis) % size for axis, size in enumerate(self.sizes))

    def index(self, block: Block) -> Numbers:
        """Of each device, its number along a block of axes."""
        index = np.zeros(self.count, np.int64)
        for axis in block:
            index = index * self.sizes[axis] + np.arange(self.count) // self.stride(axis) % self.sizes[axis]
        return index

    def along(self, numbers: Sequence[int] | Numbers) -> Block | None:
        """The axes along which a list of devices runs, each of them as a whole; None where it does not."""
        runs = runs_of(numbers)
        if runs is None:
            return None
        axes: list[int] = []
        for length, step in runs:
            part = [axis for axis in self.every if step <= self.stride(axis) < step * length]
            if step < 1 or not part or self.stride(part[-1]) != step or self.size(tuple(part)) != length:
                return None
            axes += part
        return tuple(axes)

    def weights(self, values: Numbers) -> list[int] | None:
        """Of a value for each device that is a sum of multiples of coordinates, the multiple for each axis."""
        weights = []
        for axis in self.every:
            weights.append(int(values[self.stride(axis)] - values[0]) if self.sizes[axis] > 1 else 0)
        total = values[0] + sum(weight * self.index((axis,)) for axis, weight in enumerate(weights))
        return weights if np.array_equal(np.broadcast_to(total, values.shape), values) else None

    def counting(self, values: Numbers) -> tuple[Block, int] | None:
        """The block along which a value for each device counts, and its step."""
        weights = self.weights(values)
        if weights is None or values[0] != 0 or min(weights, default=0) < 0:
            return None
        axes = sorted((axis for axis in self.every if weights[axis]), key=lambda axis: -weights[axis])
        if not axes:
            return None
        step = weights[axes[-1]]
        block = tuple(axes)
        return (block, step) if np.array_equal(values, self.index(block) * step) else None

    def rotating(self, values: Numbers) -> tuple[Block, int, int] | None:
        """The neighbouring axes along which a value for each device counts from a shift on and around, and its step."""
        for first, last in combinations(range(len(self.sizes) + 1), 2):
            block = tuple(range(first, last))
            size = self.size(block)
            step = int(values.max()) // max(1, size - 1)
            if size < 2 or step < 1 or values[0] < 0:
                continue
            shift = int(values[0]) // step
            if np.array_equal((self.index(block) + shift) % size * step, values):
                return block, shift, step
        return None

    def block_of(self, values: Numbers) -> Block | None:
        """The axes along which a value for each device counts, from wherever it starts."""
        counting = self.counting(values) or self.counting(values - values.min()) or self.rotating(values)
        return None if counting is None else counting[0]


@frozen
class Shorter:
    """A grid, and the same grid with shorter axes: devices with coordinates that are left keep them."""

    before: Grid
    after: Grid

    def kept(self) -> Numbers:
        """The old numbers of the devices of the new grid, in their new order."""
        coordinates = product(*map(range, self.after.sizes))
        strides = [self.before.stride(axis) for axis in self.before.every]
        return np.array([sum(map(int.__mul__, coordinate, strides)) for coordinate in coordinates], np.int64)

    def renumbered(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The devices of a list that are left, by their new numbers."""
        new = {int(old): number for number, old in enumerate(self.kept())}
        return tuple(new[device] for device in devices if device in new)

    def changes(self, block: Block) -> bool:
        return self.before.size(block) != self.after.size(block)

    def expected(self, values: Numbers) -> Numbers | None:
        """What devices of the new grid should compute where those of the old one computed `values`; None if unclear.

        What counts along axes does so still; what is the same along the axes that get shorter stays; a number that goes
        around does so after fewer devices.
        """
        counting = self.before.counting(values - values[0])
        if counting is not None:
            return self.after.index(counting[0]) * counting[1] + int(values[0])
        weights = self.before.weights(values)
        if weights is not None and sum(map(bool, weights)) <= 1:
            return values[self.kept()]
        unchanged = self._unchanged(values)
        return self._rotated(values) if unchanged is None else unchanged

    def _unchanged(self, values: Numbers) -> Numbers | None:
        table = values.reshape(self.before.sizes or (1,))
        for axis in self.before.every:
            if self.changes((axis,)) and not (table == table.take([0], axis)).all():
                return None
        return values[self.kept()]

    def _rotated(self, values: Numbers) -> Numbers | None:
        """(index + k) mod size, for numbers along neighbouring axes, with a step."""
        found = self.before.rotating(values)
        if found is None:
            return None
        block, shift, step = found
        smaller = self.after.size(block)
        return (self.after.index(block) + rotation(shift, self.before.size(block), smaller)) % smaller * step


def rotation(shift: int, size: int, smaller: int) -> int:
    """By how much a ring of fewer devices turns: as far forwards or backwards, and by half where it was half."""
    if 2 * shift == size:
        return smaller // 2
    return (shift if 2 * shift < size else shift - size) % smaller


_LONGEST = 120
_Pairs = Sequence[tuple[int, int]]


def pairs_for(pairs: _Pairs, shorter: Shorter, where: str) -> tuple[tuple[int, int], ...]:
    """The pairs for fewer devices; InputError where there is no pattern, or it does not fit."""
    for blocks in _divisions(len(shorter.before.sizes)):
        patterns = _patterns(pairs, shorter.before, blocks)
        if patterns is None:
            continue
        try:
            new_patterns = [
                _shortened(pattern, shorter, block, where) for pattern, block in zip(patterns, blocks, strict=True)
            ]
        except InputError:
            if (exchanged := _exchanged(pairs, shorter)) is not None:
                return exchanged
            raise
        return _product(new_patterns, shorter.after, blocks, pairs)
    exchanged = _exchanged(pairs, shorter)
    if exchanged is None:
        raise InputError(f"the source_target_pairs of {where} do not lie along axes of devices that can get shorter")
    return exchanged


def _divisions(count: int) -> Iterator[list[Block]]:
    """All ways to divide axes into runs of neighbours, the finest first."""
    for joins in sorted(product((False, True), repeat=max(0, count - 1)), key=sum):
        blocks: list[list[int]] = [[0]] if count else []
        for axis, is_joined in enumerate(joins, 1):
            if is_joined:
                blocks[-1].append(axis)
            else:
                blocks.append([axis])
        yield [tuple(block) for block in blocks]


def _patterns(pairs: _Pairs, grid: Grid, blocks: Sequence[Block]) -> list[dict[int, int]] | None:
    """Of each block, from which index to which pairs go, if they are the product of these."""
    patterns: list[dict[int, int]] = []
    for block in blocks:
        index = grid.index(block)
        pattern: dict[int, int] = {}
        for source, target in pairs:
            if pattern.setdefault(int(index[source]), int(index[target])) != index[target]:
                return None
        patterns.append(pattern)
    return patterns if np.prod([len(pattern) for pattern in patterns]) == len(pairs) else None


def _shortened(pattern: Mapping[int, int], shorter: Shorter, block: Block, where: str) -> dict[int, int]:
    size, smaller = shorter.before.size(block), shorter.after.size(block)
    if size == smaller:
        return dict(pattern)
    shifts = {target - source for source, target in pattern.items()}
    if len(pattern) == size and len({shift % size for shift in shifts}) == 1:
        shift = rotation(shifts.pop() % size, size, smaller)
        return {index: (index + shift) % smaller for index in range(smaller)}
    if len(shifts) == 1 and len(pattern) == size - abs(next(iter(shifts))):
        (shift,) = shifts
        if abs(shift) == 1 or abs(shift) < smaller:
            return {index: index + shift for index in range(smaller) if 0 <= index + shift < smaller}
    if len(pattern) == size and all(size - 1 - source == target for source, target in pattern.items()):
        return {index: smaller - 1 - index for index in range(smaller)}
    for rows in divisors(size)[:-1]:
        if dict(pattern) == _transposed(rows, size):
            columns = size // rows
            fewer = [smaller // columns] * (smaller % columns == 0) + [rows] * (smaller % rows == 0)
            fewer = [count for count in fewer if 1 < count < smaller]
            if fewer:
                return _transposed(fewer[0], smaller)
    kept = {source: target for source, target in pattern.items() if source < smaller and target < smaller}
    if len(pattern) == size and len(kept) == smaller:
        return kept
    ends = {0: 0, size - 1: smaller - 1}
    if len(pattern) == 1 and all(end in ends for item in pattern.items() for end in item):
        return {ends[source]: ends[target] for source, target in pattern.items()}
    raise InputError(
        f"what {where} sends along {size} devices has no counterpart along {smaller}: {_pattern_text(pattern)}"
    )


def _transposed(rows: int, size: int) -> dict[int, int]:
    """Where the indices of a matrix of so many rows lie in its transpose."""
    columns = size // rows
    return {index: index % columns * rows + index // columns for index in range(size)}


def _pattern_text(pattern: Mapping[int, int]) -> str:
    return truncated(str(dict(pattern)), _LONGEST)


def _product(
    patterns: Sequence[Mapping[int, int]], grid: Grid, blocks: Sequence[Block], before: _Pairs
) -> tuple[tuple[int, int], ...]:
    number = {tuple(int(grid.index(block)[device]) for block in blocks): device for device in range(grid.count)}
    new_pairs = []
    for choice in product(*(pattern.items() for pattern in patterns)):
        source, target = zip(*choice, strict=True) if choice else ((), ())
        new_pairs.append((number[source], number[target]))
    by_target = [target for _, target in before] == sorted(target for _, target in before)
    return tuple(sorted(new_pairs, key=lambda pair: pair[::-1] if by_target else pair))


def _exchanged(pairs: _Pairs, shorter: Shorter) -> tuple[tuple[int, int], ...] | None:
    """Pairs of all devices that exchange axes of equal sizes."""
    before, after = shorter.before, shorter.after
    if len(pairs) != before.count:
        return None
    sources = [source for source, _ in sorted(pairs, key=lambda pair: pair[1])]
    block = before.along(sources)
    if block is None or len(block) != len(before.sizes):
        return None
    if any(before.sizes[a] != before.sizes[b] or after.sizes[a] != after.sizes[b] for a, b in enumerate(block)):
        return None
    grid = np.arange(after.count).reshape(after.sizes).transpose(block).reshape(-1)
    return tuple((int(source), target) for target, source in enumerate(grid))
