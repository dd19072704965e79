"""The plot of a measurement: how hloexec's times compare with XLA:CPU's, module by module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import WAYS, Spread, Way, cold_ratio, geometric_mean, warm_ratio


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the plot to `path`, in the format that its suffix names; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hloexec"
    from matplotlib import pyplot

    modules = results["modules"]
    ways = [way for way in WAYS if any(map(way.is_measured, modules.values()))]
    names = sorted(modules, key=lambda name: warm_ratio(modules[name]).median)
    size = (4 + 4 * len(ways), 1.2 + 0.32 * len(names))
    figure, row = pyplot.subplots(1, len(ways), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes, way in zip(row[0], ways, strict=True):
        _panel(axes, {name: modules[name] for name in names}, way)
    row[0][0].set_yticks(range(len(names)), names)
    row[0][0].set_ylim(-0.7, len(names) - 0.3)
    row[0][-1].legend(loc="lower right", fontsize="small")
    figure.supxlabel(
        "hloexec / XLA:CPU; left of 1 hloexec is faster; bars from the lowest to the highest turn", fontsize="medium"
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(axes: Any, modules: Mapping[str, Any], way: Way) -> None:
    """One way of using hloexec: a line per module."""
    from matplotlib.ticker import LogLocator, NullFormatter

    places = {name: place for place, name in enumerate(modules) if way.is_measured(modules[name])}
    warm = {places[name]: warm_ratio(modules[name], way) for name in places}
    cold = {places[name]: cold_ratio(modules[name], way) for name in places}
    _points(axes, warm, "warm run", "o", 0.12)
    _points(axes, cold, "process start to first output", "s", -0.12)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", which="both", alpha=0.25)
    means = [geometric_mean(ratio.median for ratio in ratios.values()) for ratios in (warm, cold)]
    title = f"{way.name}: geometric means {means[0]:.2f} warm, {means[1]:.2f} first output"
    axes.set_title(title, fontsize="medium")


def _points(axes: Any, ratios: Mapping[int, Spread], label: str, marker: str, offset: float) -> None:
    medians = [ratio.median for ratio in ratios.values()]
    below = [ratio.median - ratio.low for ratio in ratios.values()]
    above = [ratio.high - ratio.median for ratio in ratios.values()]
    heights = [place + offset for place in ratios]
    axes.errorbar(medians, heights, xerr=[below, above], fmt=marker, markersize=5, capsize=2, label=label)
