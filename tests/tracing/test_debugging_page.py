"""The walk-through of docs/debugging.md works as it is written."""

from __future__ import annotations

from pathlib import Path

from tests.docs import ROOT, run_page


def test_the_page_runs_as_written(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "debugging.md", tmp_path)
