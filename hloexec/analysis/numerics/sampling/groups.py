"""Samples of one element that fall into groups: a decision (a floor at a tie, the sign of what is nearly 0, a route)
goes one way in some runs, and the other way in the others.

A standard deviation of all samples says nothing of such an element. Each group has a centre and a spread of its own,
and a number belongs to the group whose centre it is nearest to. Groups are separate if each gap between them is twice
as wide as all of them together, and wider than a few last roundings.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hloexec.analysis.numerics.sampling.student import student_quantile
from hloexec.core.structs import frozen
from hloexec.core.values import Array

_MOST_GROUPS = 4
_ROUNDINGS = 4.0
"""How many times wider than what the last roundings take each gap between groups is."""
_GAP = 2.0
"""And how many times wider than all groups together."""
_TAIL = 1 / 64
"""How much of the gap to the next group the tail of a group takes, beside a pole."""
_PRIOR = 4.0
"""For how many samples of a group the spread within all groups counts."""
_FURTHER = 2.0
"""How many times further than the farthest sample a side may be beside a pole: of x / y for y about 0, whose tails are
of index 1, half of those that are beyond all samples are within twice as much."""
_MOST_FACTOR = 5.5
"""As of other spreads (`numerics.sampling.spread`)."""


@frozen
class Group:
    """Samples of an element that lie close together."""

    centre: float
    count: int
    scale: float
    """Their standard deviation, drawn towards that within all groups."""
    degrees: float


class Membership(enum.Enum):
    """Where two numbers lie."""

    SAME = "in one group, as far apart as its spread explains"
    OTHER = "in two groups, or in the tail of one"
    BETWEEN = "one of them between groups"
    NONE = "one of them beyond all groups"


def groups_of(samples: Array, last: float, reaches: Array | None = None) -> tuple[Group, ...]:
    """The groups that samples of an element fall into; empty where they are not separate, or not all finite. `last` is
    what its last roundings take. Errors of samples are `reaches` times as large as those of rounding."""
    order = np.argsort(samples, kind="stable")
    found = np.asarray(samples, np.float64)[order]
    reaches = np.ones(found.size) if reaches is None else reaches[order]
    last *= reaches.max(initial=1.0)
    if not np.isfinite(found).all():
        return ()
    gaps = np.diff(found)
    by_gap = np.argsort(-gaps, kind="stable")
    for count in range(1, min(_MOST_GROUPS, gaps.size + 1)):
        cuts = np.sort(by_gap[:count])
        smallest = float(gaps[cuts].min())
        within = float(found[-1] - found[0] - gaps[cuts].sum())
        if smallest > _ROUNDINGS * last and smallest > _GAP * within:
            edges = [0, *(cuts + 1).tolist(), found.size]
            return _groups([(found[i:j], 1 / reaches[i:j] ** 2) for i, j in pairwise(edges)])
    return ()


def _groups(parts: Sequence[tuple[Array, Array]]) -> tuple[Group, ...]:
    centres = [float(np.average(part, weights=weights)) for part, weights in parts]
    squares = [
        float(np.sum(weights * (part - centre) ** 2)) for (part, weights), centre in zip(parts, centres, strict=True)
    ]
    degrees = sum(part.size - 1 for part, _ in parts)
    common = sum(squares) / degrees if degrees else 0.0
    return tuple(
        Group(
            centre,
            part.size,
            math.sqrt((own + _PRIOR * common) / (part.size - 1 + _PRIOR)),
            part.size - 1 + _PRIOR,
        )
        for (part, _), centre, own in zip(parts, centres, squares, strict=True)
    )


def membership(
    x: float, y: float, groups: Sequence[Group], last: float, chance: float, *, is_steep: bool
) -> Membership:
    """Where the two sides of an element lie; rounding alone is farther from a centre with the given chance.

    Near a pole, groups have long tails towards each other: a side may be a small share of the way to the next group
    away from its own. Where a numerator cancels to 0, as x / |x| has either sign beside it, a side is midway.
    """
    first, second = (min(groups, key=lambda group: abs(side - group.centre)) for side in (x, y))
    is_far = False
    for side, group in ((x, first), (y, second)):
        distance = abs(side - group.centre)
        reach = reach_of(group.scale, group.degrees, last, chance)
        if not distance <= reach:
            is_far = True
            gap = min(abs(group.centre - other.centre) for other in groups if other is not group)
            is_outside = _is_outside(side, groups)
            is_midway = not is_outside and abs(distance - gap / 2) <= reach
            if not (is_steep and (distance <= _TAIL * gap or is_midway)):
                return Membership.NONE if is_outside else Membership.BETWEEN
    return Membership.SAME if first is second and not is_far else Membership.OTHER


def are_in_tails(x: float, y: float, samples: Array) -> bool:
    """Whether two sides are no further from the middle of samples than these themselves lead to expect, which lie much
    further away on that side than the middle half does."""
    low, centre, high = np.quantile(samples, (0.25, 0.5, 0.75))
    reach = _MOST_FACTOR * (high - low) / 1.35  # Of a normal distribution.
    is_far = False
    for side in (x, y):
        if not abs(side - centre) <= reach:
            farthest = float(np.max((samples - centre) * np.sign(side - centre)))
            if not (farthest > reach and abs(side - centre) <= _FURTHER * farthest):
                return False
            is_far = True
    return is_far


def _is_outside(side: float, groups: Sequence[Group]) -> bool:
    return not groups[0].centre <= side <= groups[-1].centre


def reach_of(scale: float, degrees: float, last: float, chance: float) -> float:
    """How far off rounding may be."""
    return math.hypot(last, min(_MOST_FACTOR, student_quantile(degrees, chance)) * scale)
