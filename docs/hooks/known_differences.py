"""Differences from XLA:CPU by opcode, from docs/differences.md and docs/conformance.md.

A row of the table of values in differences.md is about the opcodes in backticks in its first cell. A paragraph of the
differences in conformance.md ends in `(opcode: types; …)`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

__all__ = ["known_differences"]

_DOCS = Path(__file__).resolve().parents[1]
_MEASURED = re.compile(r"^\*\*(.+?)\*\* (.*) \(([^()]*)\)$", re.MULTILINE)


def known_differences(opcodes: Collection[str]) -> dict[str, list[str]]:
    """Markdown for each opcode that has any."""
    found: dict[str, list[str]] = {}
    for row in _table_of_values():
        case, theirs, ours, why = row
        for name in re.findall(r"`([a-z0-9-]+)`", case):
            if name in opcodes:
                text = f"{_capital(case)}. XLA:CPU: {theirs}; hloexec: {ours} ({why})."
                found.setdefault(name, []).append(f"{text} [More](../differences.md#values)")
    for title, reason, cells in _MEASURED.findall((_DOCS / "conformance.md").read_text(encoding="utf-8")):
        for cell in cells.split("; "):
            name, _, types = cell.partition(": ")
            if name in opcodes:
                listed = ", ".join(f"`{each}`" for each in types.split(", "))
                found.setdefault(name, []).append(f"{title} {listed}: {reason} [More](../conformance.md#differences)")
    return found


def _table_of_values() -> list[list[str]]:
    text = (_DOCS / "differences.md").read_text(encoding="utf-8")
    section = text.partition("\n## Values\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
