"""Dimensions of arrays that hold the same elements, or the same bytes, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hloexec.ops.relations.rules import Axes, Relating


def matching_groups(left: Sequence[int], right: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Positions of two lists of sizes, of equal products, in the smallest runs of which the products are equal.

    Sizes 1 are left out. With a size 0 in the lists, there is one run.
    """
    ours = [position for position, size in enumerate(left) if size != 1]
    theirs = [position for position, size in enumerate(right) if size != 1]
    if 0 in left or 0 in right:
        return [(ours, theirs)]
    groups: list[tuple[list[int], list[int]]] = []
    while ours or theirs:
        group: tuple[list[int], list[int]] = ([], [])
        while True:
            products = prod(left[p] for p in group[0]), prod(right[p] for p in group[1])
            if products[0] == products[1] and group[0]:
                break
            if (products[0] <= products[1] and ours) or not theirs:
                if not ours:
                    break
                group[0].append(ours.pop(0))
            else:
                group[1].append(theirs.pop(0))
        groups.append(group)
    return groups


def relate_reshape(use: Relating, left: Axes | Sequence[int], right: Sequence[int], kept: str | None = None) -> None:
    """Two arrays hold the same elements in the same order; the reason `kept` is why dimensions may not be merged."""
    ours, theirs = [use.size(axis) for axis in left], [use.size(axis) for axis in right]
    if prod(ours) != prod(theirs):
        use.keep((*left, *right), "only a part of what it is a dimension of is used")
        return
    for first, second in matching_groups(ours, theirs):
        group = [left[number] for number in first], [right[number] for number in second]
        sizes = [[use.size(axis) for axis in side] for side in group]
        if kept is None and sorted(sizes[0]) == sorted(sizes[1]) and len({*sizes[0]}) == len(sizes[0]):
            # [400, 800] read as [800, 400] stays that.
            use.same(group[0], [group[1][sizes[1].index(size)] for size in sizes[0]])
        elif kept is None:
            use.product(*group)
        else:
            use.keep((*group[0], *group[1]), kept)


def relate_bytes(use: Relating, left: Sequence[int], right: Sequence[int]) -> None:
    """Two arrays hold the same bytes as elements of different widths, in dimensions from major to minor."""
    widths = use.operands[0].array.element_type.bits, use.result.array.element_type.bits
    counts = prod(map(use.size, left)), prod(map(use.size, right))
    if counts[0] * widths[0] == counts[1] * widths[1]:
        use.product(left, right)
    else:
        use.keep((*left, *right), "only a part of what it is a dimension of is used")
