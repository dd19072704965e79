"""Which process, a rank, holds which devices."""

from __future__ import annotations

from hloexec.core.arguments import require_integer
from hloexec.core.wording import argument, counted
from hloexec.errors import InputError


def blocks_of(count: int, ranks: int) -> tuple[range, ...]:
    """The devices of each rank, where so many ranks hold `count` devices in blocks of neighbours, none of them empty:
    device d is on rank ⌊d · ranks / count⌋. InputError where there are fewer than one rank, or more than devices."""
    require_integer("ranks", ranks, 1)
    if ranks > count:
        raise InputError(
            f"{argument('ranks')} must be at most {count}, as there {'is' if count == 1 else 'are'} "
            f"{counted(count, 'device')} and each rank holds one or more, but is {ranks}"
        )
    bounds = [-(-rank * count // ranks) for rank in range(ranks + 1)]
    return tuple(map(range, bounds, bounds[1:]))
