"""The halves of the programs whose operations have numbers."""

from __future__ import annotations

from evaluation.explaining.blind.half_precision import HALF_PRECISION
from evaluation.explaining.blind.networks import NETWORKS
from evaluation.explaining.blind.sciences import SCIENCES
from evaluation.explaining.fresh.learning import LEARNING
from evaluation.explaining.fresh.methods import METHODS
from evaluation.explaining.fresh.narrow import NARROW

HALVES = {"fresh": {**LEARNING, **METHODS, **NARROW}, "blind": {**NETWORKS, **SCIENCES, **HALF_PRECISION}}
"""Programs by their names, which no two halves share."""
PROGRAMS = {name: program for programs in HALVES.values() for name, program in programs.items()}


def half_of(name: str) -> str | None:
    """The half that has a program; None where none of these has."""
    return next((half for half, programs in HALVES.items() if name in programs), None)
