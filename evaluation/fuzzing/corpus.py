"""What mutants are made of: small modules with every opcode, with loops, devices, library calls, tuples and literals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation.fuzzing.modules import modules
from tests.plan.random_programs import random_program
from tests.text.cases import ACCEPTED

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 6000


def corpus(folders: Sequence[Path] = ()) -> list[str]:
    """Texts of at most 6 000 characters; those in `folders` besides."""
    paths = [
        path for folder in (_ROOT / "docs/opcodes", _ROOT / "examples", *folders) for path in folder.rglob("*.hlo")
    ]
    texts = [path.read_text(encoding="utf-8", errors="surrogateescape") for path in sorted(paths)]
    texts += ACCEPTED.values()
    texts += modules()
    texts += (random_program(seed, length=6).text for seed in range(60))
    return [text for text in texts if len(text) <= _LONGEST]
