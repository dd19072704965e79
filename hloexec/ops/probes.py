"""Tiny programs, one per opcode, that show which element types its shape rule takes.

An entry has one as `probe` if its rule needs attributes or operands of several shapes. `T` is replaced by the element
type that is tried, `U` by the unsigned integer of its width (u64 if there is none), and `C` by the complex type whose
parts have it.
"""

from __future__ import annotations

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.structs import frozen

REDUCER = "c { x = T[] parameter(0) y = T[] parameter(1) ROOT r = T[] copy(y) }"
SELECT = "s { x = T[] parameter(0) y = T[] parameter(1) ROOT r = pred[] compare(x, y), direction=GE }"
COMPARATOR = SELECT.replace("s {", "c {", 1)


@frozen
class Probe:
    """An instruction on operands a0, a1, … of the given shapes, and the computations that it calls."""

    instruction: str
    operands: tuple[str, ...] = ()
    computations: str = ""
    otherwise: Probe | None = None
    """Tried with the element types that the rule does not take here."""

    def text(self, element_type: ElementType) -> str:
        """The program for an element type."""
        lines = [f"a{number} = {shape} parameter({number})" for number, shape in enumerate(self.operands)]
        body = " ".join([*lines, f"ROOT r = {self.instruction}"])
        unsigned = f"u{element_type.bits}"
        names = {
            "T": element_type.name,
            "U": unsigned if unsigned in ELEMENT_TYPES else "u64",
            "C": _COMPLEX.get(element_type.name, element_type.name),
        }
        found = f"HloModule m\n{self.computations}\nENTRY e {{ {body} }}\n"
        for letter, name in names.items():
            found = found.replace(f"{letter}[", f"{name}[")
        return found


_COMPLEX = {"f32": "c64", "f64": "c128"}
