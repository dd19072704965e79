"""Pairs between which collectives send, for a grid with shorter axes.

Pairs that send along axes, each by itself, are the product of a pattern on each: to a neighbour, around a ring, to a
partner. A pattern stays the same on a shorter axis; pairs that exchange axes stay where these have equal sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from hloexec.errors import InputError
from hloexec.tools.shrinking.devices.grid import Block, Grid, Shorter, rotation

_Pairs = Sequence[tuple[int, int]]


def pairs_for(pairs: _Pairs, shorter: Shorter, where: str) -> tuple[tuple[int, int], ...]:
    """The pairs for fewer devices; InputError where there is no pattern, or it does not fit."""
    for blocks in _divisions(len(shorter.before.sizes)):
        patterns = _patterns(pairs, shorter.before, blocks)
        if patterns is None:
            continue
        found = [_shortened(pattern, shorter, block, where) for pattern, block in zip(patterns, blocks, strict=True)]
        return _product(found, shorter.after, blocks, pairs)
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
    found: list[dict[int, int]] = []
    for block in blocks:
        index = grid.index(block)
        pattern: dict[int, int] = {}
        for source, target in pairs:
            if pattern.setdefault(int(index[source]), int(index[target])) != index[target]:
                return None
        found.append(pattern)
    return found if np.prod([len(pattern) for pattern in found]) == len(pairs) else None


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
    kept = {source: target for source, target in pattern.items() if source < smaller and target < smaller}
    if len(pattern) == size and len(kept) == smaller:
        return kept
    ends = {0: 0, size - 1: smaller - 1}
    if len(pattern) == 1 and all(each in ends for item in pattern.items() for each in item):
        return {ends[source]: ends[target] for source, target in pattern.items()}
    raise InputError(f"what {where} sends along {size} devices has no counterpart along {smaller}: {dict(pattern)}")


def _product(
    patterns: Sequence[Mapping[int, int]], grid: Grid, blocks: Sequence[Block], before: _Pairs
) -> tuple[tuple[int, int], ...]:
    number = {tuple(int(grid.index(block)[device]) for block in blocks): device for device in range(grid.count)}
    found = []
    for choice in product(*(pattern.items() for pattern in patterns)):
        source, target = zip(*choice, strict=True) if choice else ((), ())
        found.append((number[source], number[target]))
    by_target = [target for _, target in before] == sorted(target for _, target in before)
    return tuple(sorted(found, key=lambda pair: pair[::-1] if by_target else pair))


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
