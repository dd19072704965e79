"""The JSON that a measurement leaves: schema, figures derived from it, and the comparison of two commits."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

SCHEMA = 2
_READABLE_SCHEMAS = (1, 2)
"""In schema 1, hloexec is measured as its command line runs it, and in no other way."""

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


@attrs.frozen
class Way:
    """A way of using hloexec, and where a module's figures for it are."""

    name: str
    side: str
    cold: str
    """Which of its starts is compared with XLA:CPU's."""
    peer_warm: str
    """Which of XLA:CPU's warm runs took turns with it."""

    def is_measured(self, module: Mapping[str, Any]) -> bool:
        return self.side in module


COMMAND_LINE = Way("command line", "hloexec", "cold", "warm")
"""A process of its own, with suitable BLAS kernels, that keeps freed memory; XLA:CPU has another one."""
API = Way("API", "api", "cold_alone", "warm_beside_api")
"""A process that has imported JAX, without any settings; XLA:CPU runs in it, too. The first output is that of a process
without JAX: hloexec does not need it, and no first output behind JAX's import can take less than the import does.
"""
WAYS = (COMMAND_LINE, API)


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
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "commit": commit or "unknown",
    }


def _memory_bytes() -> int | None:
    """What the machine has; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def read_results(path: Path) -> dict[str, Any]:
    """The JSON of an earlier measurement; raises ResultsError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("modules"), dict):
        raise ResultsError(f"{path} is not what `python -m benchmarks` writes: it has no modules")
    if content.get("schema") not in _READABLE_SCHEMAS:
        raise ResultsError(f"{path} is of schema {content.get('schema')}, this is for schema {SCHEMA} and before")
    return content


def warm_ratio(module: Mapping[str, Any], way: Way = COMMAND_LINE) -> Spread:
    """hloexec's time for a warm run as a multiple of XLA:CPU's."""
    return _ratio(module[way.side]["warm"], module["xla"][way.peer_warm])


def cold_ratio(module: Mapping[str, Any], way: Way = COMMAND_LINE) -> Spread:
    """The same from the start of the process to the first output."""
    return _ratio(module[way.side][way.cold], module["xla"]["cold"])


def cold_behind_jax_ratio(module: Mapping[str, Any]) -> Spread:
    """The same of the API where JAX is imported first, which counts on both sides."""
    return _ratio(module["api"]["cold"], module["xla"]["cold"])


def cold_beyond_jax_ratio(module: Mapping[str, Any]) -> Spread:
    """The same without the time in which JAX is imported and finds its devices, on both sides."""
    return _ratio(module["api"]["cold_beyond_jax"], module["xla"]["cold_beyond_jax"])


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
    """One row per module and way that both have: the ratios to XLA:CPU before and after, and whether their spreads are
    apart.

    Ratios, because two measurements are of two days: what slowed down XLA:CPU slowed down hloexec.
    """
    for name, before in old["modules"].items():
        after = new["modules"].get(name)
        if after is None or after["scale"] != before["scale"]:
            continue
        for way in WAYS:
            if way.is_measured(before) and way.is_measured(after):
                yield {"module": name, "way": way.name, **_changes(before, after, way)}


def not_compared(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """What only one of two measurements has, or has at another scale, in sentences."""
    for this, other, label in ((old, new, "old"), (new, old, "new")):
        only = [name for name in this["modules"] if name not in other["modules"]]
        if only:
            yield f"only the {label} measurement has {', '.join(only)}"
    pairs = {name: (old["modules"][name], new["modules"][name]) for name in old["modules"] if name in new["modules"]}
    scales = [name for name, (before, after) in pairs.items() if before["scale"] != after["scale"]]
    if scales:
        yield f"the scale is not the same for {', '.join(scales)}"
    for way in WAYS:
        for place, label in enumerate(("old", "new")):
            lacking = [name for name, pair in pairs.items() if name not in scales and not way.is_measured(pair[place])]
            if lacking:
                whose = "any module" if len(lacking) == len(pairs) - len(scales) else ", ".join(lacking)
                yield f"the {label} measurement has no figures of the {way.name} for {whose}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], way: Way) -> dict[str, str]:
    row = {}
    for what, ratio in (("warm", warm_ratio), ("cold", cold_ratio)):
        earlier, later = ratio(before, way), ratio(after, way)
        row[f"{what} before"], row[f"{what} after"] = f"{earlier.median:.2f}", f"{later.median:.2f}"
        row[f"{what} change"] = f"{(later.median / earlier.median - 1) * 100:+.0f} % {_verdict(earlier, later)}"
    return row


def _verdict(earlier: Spread, later: Spread) -> str:
    if later.high < earlier.low:
        return "faster"
    return "slower" if later.low > earlier.high else "within the spread"
