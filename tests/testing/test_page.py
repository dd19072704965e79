"""The walk-through of docs/testing.md works as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import ROOT, run_page


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "testing.md", tmp_path)
