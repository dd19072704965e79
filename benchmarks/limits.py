"""How close hloexec and XLA:CPU come to what the machine can do: a table of bytes, FLOPs, and the time that they take.

The time of a run cannot be less than that of the bytes that must move (`benchmarks.work`) at the bandwidth of a triad,
or that of the FLOPs at the rate of a large matrix product (`benchmarks.contestants.machine`), whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.results import WAYS


def measured_rates() -> dict[str, float]:
    """The `bytes_per_second` and `flops_per_second` of this machine."""
    from benchmarks.driving import Contestant

    with Contestant("machine") as machine:
        return dict(machine.first)


def rows(modules: Mapping[str, Any], rates: Mapping[str, float]) -> Iterator[dict[str, str]]:
    """One row per module whose work was counted; a percentage is the limit as a part of the shortest run."""
    for name, module in modules.items():
        work = module.get("work")
        if not work:
            continue
        moving, computing = work["bytes"] / rates["bytes_per_second"], work["flops"] / rates["flops_per_second"]
        limit = max(moving, computing)
        row = {
            "module": name,
            "must move MB": f"{work['bytes'] / 1e6:.1f}",
            "plan moves MB": f"{work['plan_bytes'] / 1e6:.1f}",
            "GFLOP": f"{work['flops'] / 1e9:.3f}",
            "limit ms": f"{limit * 1e3:.3f}",
            "limited by": "bandwidth" if moving >= computing else "peak",
        }
        for way in WAYS:
            if way.is_measured(module):
                row[f"hloexec, {way.name}"] = f"{limit / min(module[way.side]['warm']):.1%}"
        yield row | {"XLA:CPU": f"{limit / min(module['xla']['warm']):.1%}"}
