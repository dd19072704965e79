"""What the matrix is made of: examples (one small program each), and the ways in which a result can be checked.

A cell is an opcode with an element type; it holds as many examples as its generator draws. Many examples share one
module when they run, so an example is written with placeholders: `$0`, `$1`, … are its operands, and names that start
with `@` (its own instructions and computations) are made unique when modules are put together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of

Array = np.ndarray[Any, Any]

TYPES: tuple[ElementType, ...] = tuple(entry for entry in ELEMENT_TYPES.values() if entry.is_array)
"""The columns of the matrix."""


@attrs.frozen
class Equal:
    """Bit-equal to XLA, NaNs aside, which need only be NaNs at the same places."""


@attrs.frozen(eq=False)
class Correct:
    """Within a number of representable values of the correctly rounded one; XLA's distance is measured beside ours.

    `reference` takes the operands in f64 (c128) and gives the exact results as f64, or as mpmath numbers.
    """

    reference: Callable[..., Any]
    steps: float | None = None
    """The bound where it is not the usual one of the element type."""


@attrs.frozen
class Accumulated:
    """Within the bound of a sum of `length` terms, see `conformance.bounds.accumulation`; against XLA in f64."""

    length: int
    stepwise: bool = False
    """Whether every step is rounded to the element type, instead of the whole once."""


@attrs.frozen
class Normwise:
    """‖error‖₂ ≤ `factor` · u · ‖result‖₂ over the whole result; against XLA in f64."""

    factor: float


@attrs.frozen
class Within:
    """No result is fixed (random numbers): every element lies in a closed interval."""

    low: float
    high: float


Check = Equal | Correct | Accumulated | Normwise | Within
EXACT = Equal()


@attrs.frozen(eq=False)
class Example:
    """One program: some instructions, the last of which gives the result."""

    opcode: str
    element_type: str
    result: str
    """The result's shape, as text."""
    instruction: str
    """What follows `= shape`, e.g. `add($0, $1)`."""
    operands: tuple[Array, ...] = ()
    before: tuple[str, ...] = ()
    """Instructions that come first, each `@name = shape opcode(...)`."""
    after: tuple[str, ...] = ()
    """Instructions that follow, which see the result as `@r`; the last one, `@result`, is what is compared."""
    computations: str = ""
    layouts: tuple[str, ...] = ()
    """The operands' layouts, as text."""
    check: Check = EXACT
    placeholder_operands: tuple[str, ...] = ()
    """Operands that have no value (tokens): their shapes, as text."""
    final: str = ""
    """The shape of `@result` where it is not `result`."""
    runs: bool = True
    """Whether it can run on one device; else it is parsed, verified and printed only."""

    @property
    def compared(self) -> str:
        return self.final or self.result

    def __str__(self) -> str:
        operands = ", ".join(shape_of(operand) for operand in self.operands)
        return f"{self.result} {self.instruction} with operands {operands}"


def text_of(element_type: str, dimensions: Sequence[int]) -> str:
    """The shape as text, e.g. `f32[2,3]`."""
    return f"{element_type}[{','.join(map(str, dimensions))}]"


def shape_of(array: Array) -> str:
    """An array's shape as text."""
    return text_of(element_type_of(array.dtype).name, array.shape)


def module_text(examples: Sequence[Example], header: str = "HloModule cells") -> str:
    """A module that takes all the examples' operands and returns the tuple of their results."""
    computations, lines, roots, parameter = [], [], [], 0
    for number, example in enumerate(examples):
        names = []
        shapes = [*map(shape_of, example.operands), *example.placeholder_operands]
        for position, shape in enumerate(shapes):
            layout = example.layouts[position] if position < len(example.layouts) else ""
            lines.append(f"  p{parameter} = {shape}{layout} parameter({parameter})")
            names.append(f"p{parameter}")
            parameter += 1
        body = [*example.before, f"@r = {example.result} {example.instruction}", *example.after]
        placed = "\n".join(f"  {line}" for line in body).replace("@", f"x{number}_")
        lines.append(re.sub(r"\$(\d+)", lambda match, names=names: names[int(match[1])], placed))  # type: ignore[misc]
        roots.append(f"x{number}_{'result' if example.after else 'r'}")
        if example.computations:
            computations.append(example.computations.replace("@", f"x{number}_"))
    shapes = ", ".join(example.compared for example in examples)
    lines.append(f"  ROOT all = ({shapes}) tuple({', '.join(roots)})")
    return "\n".join([header, "", *computations, "ENTRY main {", *lines, "}", ""])
