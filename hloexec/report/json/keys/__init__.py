"""The keys of what `--json` prints: each with its type and its meaning.

A key means the same wherever it stands, so there is one table of keys, in parts by what a command is for
(`cli.commands`), and one for what is `shared`. Counts end in `_count` and sizes in `_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.report.json.keys.inspecting import INSPECTING
from hloexec.report.json.keys.making import MAKING
from hloexec.report.json.keys.numerics import NUMERICS
from hloexec.report.json.keys.running import RUNNING
from hloexec.report.json.keys.shared import SHARED

__all__ = ["KEYS", "PARTS"]

PARTS = (SHARED, RUNNING, NUMERICS, INSPECTING, MAKING)
"""The parts of the table; no key is in two of them."""

KEYS: Mapping[str, tuple[str, str]] = {key: row for part in PARTS for key, row in part.items()}
"""Each key, with its type and its meaning. `[…]` are lists, `{…}` objects with any keys; a name is that of a record."""
