"""`python -m benchmarks.shrinking [MB…]`: how shrinking grows with the module.

Layers of a training step for eight devices, as many as a size of text asks for, are made to fit into 2 GiB. Each size
runs in a process of its own, which has a peak of memory of its own. A slope of 1 is growth in proportion to the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.growth import main, measured_apart, measured_stages
from benchmarks.sharded_layers import layers_of, sharded_layers

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Megabytes of text."""


def rows(sizes: Iterable[float] = SIZES) -> Iterator[dict[str, object]]:
    """One row per size: seconds of processors and peak memory, and by which power they grew since the row before."""
    before: dict[str, Any] | None = None
    for size in sizes:
        found = measured_apart("benchmarks.shrinking", size)
        yield {
            "MB": f"{found['megabytes']:.1f}",
            "instructions": found["instructions"],
            "parse s": f"{found['parse']:.1f}",
            "shrink s": f"{found['shrink']:.1f}",
            "slope": _slope(before, found, "shrink"),
            "peak MB": f"{found['peak'] / 1e6:.0f}",
            "slope of peak": _slope(before, found, "peak"),
        }
        before = found


def _slope(before: dict[str, Any] | None, found: dict[str, Any], quantity: str) -> str:
    if before is None:
        return ""
    growth = math.log(found["megabytes"] / before["megabytes"])
    return f"{math.log(found[quantity] / before[quantity]) / growth:.2f}"


def _measure(size: float) -> dict[str, float]:
    import hloexec

    hloexec.shrink(hloexec.parse(sharded_layers(1)), max_bytes="100M")  # imports
    return measured_stages(sharded_layers(layers_of(size)), {"shrink": hloexec.shrink})


if __name__ == "__main__":
    main(rows, _measure, SIZES)
