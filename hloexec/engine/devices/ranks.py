"""Which process, a rank, holds which devices."""

from __future__ import annotations

from hloexec.core.arguments import require_integer
from hloexec.core.wording import argument, counted
from hloexec.errors import InputError


def devices_of_rank(rank: int, ranks: int, count: int) -> range:
    """The devices that a rank holds, of `count` in all, where so many ranks hold blocks of neighbours: device d is on
    rank ⌊d · ranks / count⌋. Where there are more ranks than devices, some hold none."""
    for name, value, least in ("rank", rank, 0), ("ranks", ranks, 1), ("count", count, 1):
        require_integer(name, value, least)
    if rank >= ranks:
        raise InputError(f"rank must be less than {ranks}, as there are so many ranks, but is {rank}")
    return range(-(-rank * count // ranks), -(-(rank + 1) * count // ranks))


def rank_of_device(device: int, ranks: int, count: int) -> int:
    """The rank that holds a device."""
    return device * ranks // count


def blocks_of(count: int, ranks: int) -> tuple[range, ...]:
    """The devices of each rank, where so many ranks hold `count` devices in blocks of neighbours, none of them empty:
    device d is on rank ⌊d · ranks / count⌋. InputError where there are fewer than one rank, or more than devices."""
    require_integer("ranks", ranks, 1)
    if ranks > count:
        raise InputError(
            f"{argument('ranks')} must be at most {count}, as there {'is' if count == 1 else 'are'} "
            f"{counted(count, 'device')} and each rank holds one or more, but is {ranks}"
        )
    return tuple(devices_of_rank(rank, ranks, count) for rank in range(ranks))
