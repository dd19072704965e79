"""The records that `--json` prints, each with the classes of what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

RECORDS: Mapping[str, str] = {
    "run": "Run RunResult",
    "trace": "Run Folder tools.tracing.running.Traced",
    "nan": "Run tools.nan_search.NanSearch",
    "shadow": "Run tools.shadowing.ShadowRun",
    "explain": "Run Expected tools.explaining.Explanation",
    "extract": "Run report.reducing.extractions.Extracted tools.extraction.Extraction tools.extraction.Rerun",
    "compare": "Compared analysis.numerics.comparison.Comparison",
    "diff": "Sides tools.diffing.Diff Pair",
    "diff-folders": "Sides tools.diffing.FolderDiff",
    "golden-record": "Recorded",
    "golden-check": "Checks",
    "info": "File tools.summary.Summary Computations",
    "info-arrays": "Arrays",
    "info-assignment": "Assignment",
    "stepping": "Run Stepping",
    "plan": "Planned",
    "memory": "File analysis.buffers.MemoryUsage Memory",
    "precision": "Run Output tools.narrowing.Narrowing",
    "shrink": "File Output tools.shrinking.Shrinkage",
    "minify": "Run Folder tools.minifying.Minified",
    "graph": "File Files tools.graphing.Graph",
    "triage": "tools.triaging.Triage",
    "ops": "Opcodes",
    "error": "Error",
}
"""Names without a package are those of `report.json.printed`."""


def classes_of(name: str) -> list[Any]:
    """The classes of what a record is made of that is printed."""
    places = [place.rpartition(".") for place in RECORDS[name].split()]
    return [getattr(import_module(f"hloexec.{package or 'report.json.printed'}"), cls) for package, _, cls in places]
