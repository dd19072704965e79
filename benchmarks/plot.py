"""The plot of a measurement: how hloexec's times compare with XLA:CPU's, module by module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import Spread, cold_ratio, geometric_mean, warm_ratio

__all__ = ["draw"]


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the plot to `path`, in the format that its suffix names; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hloexec"
    from matplotlib import pyplot

    modules = results["modules"]
    warm = {name: warm_ratio(module) for name, module in modules.items()}
    cold = {name: cold_ratio(module) for name, module in modules.items()}
    names = sorted(warm, key=lambda name: warm[name].median)
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.32 * len(names)), layout="constrained")
    _points(axes, [warm[name] for name in names], "warm run", "o", 0.12)
    _points(axes, [cold[name] for name in names], "process start to first output", "s", -0.12)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="x", which="both", alpha=0.25)
    axes.set_xlabel("hloexec / XLA:CPU; left of 1 hloexec is faster; bars from the lowest to the highest turn")
    means = [geometric_mean(ratio.median for ratio in ratios.values()) for ratios in (warm, cold)]
    axes.set_title(f"Geometric means: warm {means[0]:.2f}, first output {means[1]:.2f}", fontsize="medium")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _points(axes: Any, ratios: list[Spread], label: str, marker: str, offset: float) -> None:
    medians = [ratio.median for ratio in ratios]
    below = [ratio.median - ratio.low for ratio in ratios]
    above = [ratio.high - ratio.median for ratio in ratios]
    places = [number + offset for number in range(len(ratios))]
    axes.errorbar(medians, places, xerr=[below, above], fmt=marker, markersize=5, capsize=2, label=label)
