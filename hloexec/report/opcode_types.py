"""The table of opcodes and the element types that they take, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloexec.dtypes import ELEMENT_TYPES, ElementType
from hloexec.ops.registry import Opcode
from hloexec.report.units import plural

__all__ = ["opcode_types_view"]

_TYPES = [element_type for element_type in ELEMENT_TYPES.values() if element_type.is_array]


def opcode_types_view(
    opcodes: Sequence[Opcode], accepted: Mapping[str, tuple[ElementType, ...] | None]
) -> RenderableType:
    """One row per opcode, one column per element type, whose name reads downwards.

    `accepted` says which types an opcode takes; None: it has no rule about them, and takes all.
    """
    table = Table(box=None, pad_edge=False, padding=0, header_style="dim")
    table.add_column("opcode", no_wrap=True, vertical="bottom", min_width=max(len(o.name) for o in opcodes) + 1)
    for element_type in _TYPES:
        table.add_column("\n".join(element_type.name), vertical="bottom")
    for entry in opcodes:
        types = accepted[entry.name]
        taken = ("●", "green") if entry.is_supported else ("○", "yellow")
        marks = [taken if types is None or each in types else ("·", "dim") for each in _TYPES]
        table.add_row(entry.name, *(Text(*mark) for mark in marks))
    pairs = sum(len(_TYPES if types is None else types) for types in accepted.values())
    counts = f"{plural(len(opcodes), 'opcode')}, {plural(pairs, 'pair')} of opcode and element type"
    return Group(table, Text(f"\n● runs   ○ needs devices   · not allowed\n{counts}", style="dim"))
