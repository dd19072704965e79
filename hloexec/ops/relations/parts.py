"""Dimensions that are products, sums or parts of others, as in reshapes, concatenation, slices and padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

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
        if kept is None or len(first) == len(second) == 1:
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


_MOST_SHARES = 16
"""A part that is so many times smaller than the whole, or less, is a share of it."""
_MOST_WINDOWS = 64
_LEAST_TRIMMED = 8
"""Of so many elements or more, all but one are those that are left when one is taken away."""
_LEAST_SHARE = 8
"""A window of fewer elements in a much larger dimension is one of fixed size."""


def _kind_of_part(whole: int, start: int, size: int) -> str:
    """How a part of a dimension grows with the whole.

    A share starts and ends at fixed fractions of it; where a dimension is trimmed, fixed numbers of elements are left
    out at its ends; a piece has a fixed size. Else it is unclear, and nothing may change.
    """
    if size == whole:
        return "whole"
    common = gcd(whole, start, size)
    if common > 1 and whole <= _MOST_SHARES * common and size > 1:
        return "share"
    if _is_trimmed(whole, size):
        return "trim"
    return "piece" if size <= 1 or 4 * size <= whole else "unclear"


def _is_trimmed(whole: int, size: int) -> bool:
    left_out = whole - size
    return 4 * left_out <= whole and (whole > _MOST_SHARES or (left_out == 1 and whole >= _LEAST_TRIMMED))


def _is_at_end(whole: int, start: int, size: int) -> bool:
    """Whether a piece lies where it does because the dimension ends there."""
    return start + size == whole or (whole > _MOST_SHARES and 4 * (whole - start) <= whole)


def relate_part(use: Relating, whole: int, part: int, start: int) -> None:
    """A dimension is part of another, from `start` on."""
    full, size = use.size(whole), use.size(part)
    kind = _kind_of_part(full, start, size)
    if kind == "whole":
        use.same([whole], [part])
    elif kind == "share":
        use.equation({whole: size // gcd(full, size), part: -(full // gcd(full, size))})
        use.whole(whole, start)
    elif kind == "trim":
        use.equation({whole: 1, part: -1})
        use.at_least(part, 1)
    elif kind == "piece":
        use.keep([part], "it is a piece of fixed size of a larger dimension")
        use.at_least(whole, full - start if _is_at_end(full, start, size) else start + size)
    else:
        use.keep([whole, part], f"what part of it {start}:{start + size} is, of {full}, is unclear")


def resized_start(whole: int, start: int, size: int, new_whole: int) -> int:
    """Where a part of a dimension begins when the dimension has changed."""
    if whole == new_whole:
        return start
    kind = _kind_of_part(whole, start, size)
    if kind == "share":
        return start * new_whole // whole
    return new_whole - (whole - start) if kind == "piece" and _is_at_end(whole, start, size) else start


def relate_window_of(use: Relating, whole: int, window: int, devices: int | None = None) -> None:
    """A window of one size lies somewhere in the other: all of it, one of a few dozen equal parts, all but the ends, or
    a piece of fixed size.

    It may be the part of one of several devices, whose number is a dimension.
    """
    full, size = use.size(whole), use.size(window)
    if devices is not None and full == use.size(devices) * size:
        use.shared(whole, window, devices)
    elif full == size:
        use.same([whole], [window])
    elif size > 1 and full % size == 0 and full <= (_MOST_WINDOWS if size >= _LEAST_SHARE else _MOST_SHARES) * size:
        use.multiple(whole, window)
    elif _is_trimmed(full, size):
        use.equation({whole: 1, window: -1})
        use.at_least(window, 1)
    else:
        use.keep([window], "it is a window of fixed size in a larger dimension")
        use.at_least(whole, size)


def relate_sum(use: Relating, total: int, parts: Sequence[int]) -> None:
    """A dimension is the sum of others: of shares of it, or of one and a few short pieces of fixed size."""
    whole, sizes = use.size(total), [use.size(part) for part in parts]
    common = gcd(*(size for size in sizes if size != 1), whole)
    if len(parts) > 1 and (common <= 1 or whole > _MOST_WINDOWS * common):
        use.keep([part for part in parts if 8 * use.size(part) <= whole], "it is a short piece of a larger dimension")
    terms: dict[int, int] = {total: 1}
    for part in parts:
        root = use.relations.root(part)
        terms[root] = terms.get(root, 0) - 1
    use.equation(terms)
