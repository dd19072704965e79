"""docs/golden.md: its commands run as they are written, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import ROOT, run_page


@pytest.mark.slow
def test_the_walk_through_works(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "golden.md", tmp_path)
