"""The JSON that a measurement leaves: schema, figures derived from it, and the comparison of two commits."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "SCHEMA",
    "ResultsError",
    "Spread",
    "cold_ratio",
    "compared",
    "geometric_mean",
    "interpreter_ratio",
    "machine",
    "read_results",
    "warm_ratio",
]

SCHEMA = 1

_PACKAGES = ("numpy", "jaxlib", "ml_dtypes")


class ResultsError(Exception):
    """A file that is not the JSON of a measurement."""


@attrs.frozen
class Spread:
    """The median of turn-by-turn ratios, with the lowest and the highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def machine() -> dict[str, Any]:
    """What the figures were measured on, and which commit was."""
    try:
        cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu.partition(":")[2].strip() or cpu,
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "commit": commit or "unknown",
    }


def read_results(path: Path) -> dict[str, Any]:
    """The JSON of an earlier measurement; raises ResultsError for anything else."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("modules"), dict):
        raise ResultsError(f"{path} is not what `python -m benchmarks` writes: it has no modules")
    if content.get("schema") != SCHEMA:
        raise ResultsError(f"{path} is of schema {content.get('schema')}, this is for schema {SCHEMA}")
    return content


def warm_ratio(module: dict[str, Any]) -> Spread:
    """hloexec's time for a warm run as a multiple of XLA:CPU's."""
    return _ratio(module["hloexec"]["warm"], module["xla"]["warm"])


def cold_ratio(module: dict[str, Any]) -> Spread:
    """The same from the start of the process to the first output."""
    return _ratio(module["hloexec"]["cold"], module["xla"]["cold"])


def interpreter_ratio(entry: dict[str, Any]) -> Spread:
    """How many times as long as hloexec the StableHLO interpreter takes."""
    return _ratio(entry["stablehlo"], entry["hloexec"])


def geometric_mean(values: Iterable[float]) -> float:
    """NaN without values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan


def _ratio(ours: list[float], theirs: list[float]) -> Spread:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Spread(statistics.median(ratios), min(ratios), max(ratios))


def compared(old: dict[str, Any], new: dict[str, Any]) -> Iterator[dict[str, str]]:
    """One row per module that both have: the ratios to XLA:CPU before and after, and whether their spreads are apart.

    Ratios, because two measurements are of two days: what slowed down XLA:CPU slowed down hloexec.
    """
    for name, before in old["modules"].items():
        after = new["modules"].get(name)
        if after is None or after["scale"] != before["scale"]:
            continue
        row = {"module": name}
        for what, ratio in (("warm", warm_ratio), ("cold", cold_ratio)):
            earlier, later = ratio(before), ratio(after)
            row[f"{what} before"], row[f"{what} after"] = f"{earlier.median:.2f}", f"{later.median:.2f}"
            row[f"{what} change"] = f"{(later.median / earlier.median - 1) * 100:+.0f} % {_verdict(earlier, later)}"
        yield row


def _verdict(earlier: Spread, later: Spread) -> str:
    if later.high < earlier.low:
        return "faster"
    return "slower" if later.low > earlier.high else "within the spread"
