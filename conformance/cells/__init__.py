"""Where examples come from: one generator per opcode, one file per family."""

from __future__ import annotations

from conformance.cells import contractions, control, data_movement, devices, elementwise, indexing, numerics, reductions
from conformance.cells.generator import Generator

__all__ = ["GENERATORS"]

_FAMILIES = (elementwise, data_movement, indexing, reductions, contractions, numerics, control, devices)

GENERATORS: dict[str, Generator] = {name: one for family in _FAMILIES for name, one in family.GENERATORS.items()}
"""The generator of each opcode: element type, random numbers and a count to that many examples, or a few more."""
