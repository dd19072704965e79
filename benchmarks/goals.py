"""What hloexec is meant to reach beside XLA:CPU, and whether a measurement shows that it does, module by module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from benchmarks.results import WAYS, Way, cold_ratio, geometric_mean, warm_ratio

_SMALL_BYTES = 1 << 20
"""A process grows by as much without arrays: stacks of threads, code that is loaded, pages that Linux counts late."""

_Figure: TypeAlias = Callable[[Mapping[str, Any], Way], float]


@attrs.frozen
class _Goal:
    """A limit for a ratio to XLA:CPU, for each module or for the geometric mean of all."""

    what: str
    limit: float
    figure: _Figure
    """Of a module; NaN where it was not measured."""
    is_mean: bool = False


def _memory_ratio(module: Mapping[str, Any], way: Way) -> float:
    """By how much the process grew in its first run; 0 where that is next to nothing."""
    ours, theirs = module[way.side]["resident_bytes"], module["xla"]["resident_bytes"]
    if ours is None or theirs is None:
        return math.nan
    return 0.0 if ours <= _SMALL_BYTES else ours / max(theirs, 1)


def _warm(module: Mapping[str, Any], way: Way) -> float:
    return warm_ratio(module, way).median


def _cold(module: Mapping[str, Any], way: Way) -> float:
    return cold_ratio(module, way).median


_GOALS = (
    _Goal("warm run, geometric mean", 0.8, _warm, is_mean=True),
    _Goal("warm run, each module", 1.5, _warm),
    _Goal("first output, geometric mean", 0.4, _cold, is_mean=True),
    _Goal("first output, each module", 0.6, _cold),
    _Goal("memory at the peak, each module", 1.0, _memory_ratio),
)


def rows(results: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """One row per goal and way: the limit, what was measured, the verdict, and which modules are beyond the limit.

    A goal is met only if every module was measured. Those beyond the limit of a mean are the modules that raise it.
    """
    for way in WAYS:
        modules = {name: module for name, module in results["modules"].items() if way.is_measured(module)}
        for goal in _GOALS if modules else ():
            figures = {name: goal.figure(module, way) for name, module in modules.items()}
            missing = [name for name, figure in figures.items() if math.isnan(figure)] + [*results.get("failures", ())]
            known = {name: figure for name, figure in figures.items() if not math.isnan(figure)}
            yield _row(goal, way, known, missing)


def _row(goal: _Goal, way: Way, figures: Mapping[str, float], missing: list[str]) -> dict[str, str]:
    measured = geometric_mean(figures.values()) if goal.is_mean else max(figures.values(), default=math.nan)
    if measured > goal.limit:
        verdict = "**missed**"
    else:
        verdict = f"open: {', '.join(missing)} not measured" if missing or not figures else "met"
    beyond = sorted(((figure, name) for name, figure in figures.items() if figure > goal.limit), reverse=True)
    return {
        "goal": goal.what,
        "way": way.name,
        "at most": f"{goal.limit:g}",
        "measured": f"{measured:.2f}",
        "verdict": verdict,
        "beyond it": ", ".join(f"{name} {figure:.2f}" for figure, name in beyond),
    }
