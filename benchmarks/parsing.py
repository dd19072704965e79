"""Parsing: hloexec against XLA's own parser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import side_by_side


def rows(paths: list[Path]) -> Iterator[dict[str, object]]:
    """One row per file: sizes, times and the ratio."""
    from conformance import xla
    from hloexec.language.text import parse

    for path in paths:
        text = path.read_text(encoding="utf-8")
        turns = 5 if len(text) > 1 << 20 else 15
        timings = side_by_side(
            {"hloexec": lambda t=text: parse(t), "XLA": lambda t=text: xla.parse_hlo(t)}, turns=turns
        )
        ratio, low, high = timings["hloexec"].ratio(timings["XLA"])
        yield {
            "module": path.name,
            "kB": f"{len(text) / 1000:.0f}",
            "hloexec ms": f"{timings['hloexec'].median * 1e3:.1f}",
            "XLA ms": f"{timings['XLA'].median * 1e3:.1f}",
            "hloexec MB/s": f"{len(text) / 1e6 / timings['hloexec'].median:.1f}",
            "XLA MB/s": f"{len(text) / 1e6 / timings['XLA'].median:.1f}",
            "ratio": f"{ratio:.2f}",
            "spread": f"{low:.2f} to {high:.2f}",
        }
