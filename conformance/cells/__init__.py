"""Where examples come from: one generator per opcode, one file per family."""

from __future__ import annotations

from conformance.cells import elementwise
from conformance.cells.generator import Generator

__all__ = ["GENERATORS"]

GENERATORS: dict[str, Generator] = {**elementwise.GENERATORS}
"""The generator of each opcode: element type, random numbers and a count to that many examples, or a few more."""
