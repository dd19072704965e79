"""The modules that the benchmarks read and run: the project's examples, and dumps where a folder of them is named."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["dumps", "examples"]

_ROOT = Path(__file__).resolve().parent.parent


def examples() -> list[Path]:
    """The example modules of this repository."""
    return sorted(_ROOT.glob("examples/*.hlo"))


def dumps() -> list[Path]:
    """HLO dumps in the folder that HLOEXEC_SEEDS names, or in `shared/seeds` beside or above the repository."""
    named = os.environ.get("HLOEXEC_SEEDS")
    folders = [Path(named)] if named else [parent / "shared" / "seeds" for parent in (_ROOT, *_ROOT.parents)]
    for folder in folders:
        if folder.is_dir():
            return sorted(path for path in folder.glob("*.txt") if path.read_text()[:10].startswith("HloModule"))
    return []
