"""The graph around an instruction, laid out by Graphviz where that is installed."""

from __future__ import annotations

from hloexec.ir import Module
from hloexec.report.html.content import Figure
from hloexec.report.html.recording import Key
from hloexec.report.html.values import Recording

__all__ = ["neighbourhood"]


def neighbourhood(module: Module, key: Key, values: Recording) -> tuple[Figure | None, str]:
    """The plot, or a sentence that says why there is none."""
    return None, ""
