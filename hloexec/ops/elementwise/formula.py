"""What an elementwise opcode computes: a function of arrays of compute types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloexec.core.dtypes import ElementType
from hloexec.core.values import Array

Function = Callable[..., Any]
Formula = Callable[..., Any]
"""Compute-type arrays to a compute-type array."""
Chosen = Callable[[Any, ElementType], Formula | None]
"""From an instruction's attributes and the element type of its first operand, a formula that needs nothing else."""


class ByKind:
    """A formula for floats, others for integers and complex numbers where that is not theirs, too."""

    def __init__(self, floating: Formula, integral: Formula | None = None, complex_: Formula | None = None) -> None:
        integral, complex_ = integral or floating, complex_ or floating
        self.formulas = {"f": floating, "i": integral, "u": integral, "c": complex_}
        """By the kinds of NumPy's types."""

    def __call__(self, *operands: Array) -> Any:
        return self.formulas[operands[0].dtype.kind](*operands)
