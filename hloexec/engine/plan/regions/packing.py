"""Packing: places in one piece of memory for buffers of known sizes and lives."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""The first and the last step at which a buffer is in use."""


def packed(sizes: Sequence[int], spans: Sequence[Span]) -> tuple[list[int], int]:
    """Where each buffer begins, given what each takes, and where the last one ends.

    Buffers of which one is done with before the other is used may lie over one another. The largest is placed first,
    and each in the first gap between those that it must not touch.
    """
    starts: dict[int, int] = {}
    for buffer in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        first, last = spans[buffer]
        beside = (other for other in starts if first <= spans[other][1] and spans[other][0] <= last)
        start = 0
        for begin, other in sorted((starts[other], other) for other in beside):
            if begin - start >= sizes[buffer]:
                break
            start = max(start, begin + sizes[other])
        starts[buffer] = start
    ends = (starts[buffer] + size for buffer, size in enumerate(sizes))
    return [starts[buffer] for buffer in range(len(sizes))], max(ends, default=0)
