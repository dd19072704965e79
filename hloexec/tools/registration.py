"""The tools that there are: those of `rows`, and those that are registered later."""

from __future__ import annotations

from hloexec.tools import GROUPS, Tool
from hloexec.tools.rows import _ROWS

__all__ = ["GROUPS", "TOOLS", "Tool", "register"]

TOOLS: dict[str, Tool] = {}
"""The tools by their names, in the order of the help."""


def register(*tools: Tool) -> None:
    """Make tools known, each under its name."""
    TOOLS.update({tool.name: tool for tool in tools})


register(*_ROWS)
