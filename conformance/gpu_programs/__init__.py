"""The programs that are recorded on a GPU: small JAX functions, each of which says what it is there for."""

from __future__ import annotations

# Each of these adds its programs to the table.
from conformance.gpu_programs import arrays, loops, mathematics, networks, products, training  # noqa: F401
from conformance.gpu_programs.program import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
