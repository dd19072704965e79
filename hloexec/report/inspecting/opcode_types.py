"""The table of opcodes and their element types, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.structs import frozen
from hloexec.core.wording import plural
from hloexec.ops.registry import Entry, Role

_TYPES = [element_type for element_type in ELEMENT_TYPES.values() if element_type.is_array]


def opcode_types_view(
    opcodes: Sequence[Entry], accepted: Mapping[str, tuple[ElementType, ...] | None]
) -> RenderableType:
    """One row per opcode, one column per element type, whose name reads downwards; a paragraph per opcode where the
    console is too narrow for that.

    `accepted` says which types an opcode takes; None: it has no rule about them, and takes all.
    """
    pairs = sum(len(_TYPES if types is None else types) for types in accepted.values())
    counts = f"{plural(len(opcodes), 'opcode')}, {plural(pairs, 'pair')} of opcode and element type"
    legend = Text(f"\n● runs   ○ needs devices   · not allowed\n{counts}", style="dim")
    return Group(_Types(opcodes, accepted), legend)


@frozen
class _Types:
    opcodes: Sequence[Entry]
    accepted: Mapping[str, tuple[ElementType, ...] | None]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = max(len(entry.name) for entry in self.opcodes) + 1
        if width + len(_TYPES) > options.max_width:
            for entry in self.opcodes:
                yield Text.assemble(("opcode ", "dim"), entry.name)
                named = (
                    Text.assemble(mark, opcode_type.name)
                    for mark, opcode_type in zip(self._marks(entry), _TYPES, strict=True)
                )
                yield Padding(Text(" ").join(named), (0, 0, 0, 2))
            return
        table = Table(box=None, pad_edge=False, padding=0, header_style="dim")
        table.add_column("opcode", no_wrap=True, vertical="bottom", min_width=width)
        for element_type in _TYPES:
            table.add_column("\n".join(element_type.name), vertical="bottom")
        for entry in self.opcodes:
            table.add_row(entry.name, *(Text(*mark) for mark in self._marks(entry)))
        yield table

    def _marks(self, entry: Entry) -> list[tuple[str, str]]:
        """A character and its style for each element type."""
        types = self.accepted[entry.name]
        taken = ("●", "green") if entry.is_supported else ("○", "yellow")
        return [taken if types is None or element_type in types else ("·", "dim") for element_type in _TYPES]


@frozen
class OpcodeFacts:
    """What is known of an opcode."""

    name: str
    minimum_operands: int
    """The fewest operands it takes."""
    maximum_operands: int | None
    """The most operands it takes; None for any number."""
    role: Role
    """What it is to a plan."""
    is_elementwise: bool
    """Whether it computes each element by itself."""
    is_supported: bool
    """Whether it runs on one device."""
    documentation: str
    """What it computes."""
    element_types: tuple[ElementType, ...] | None
    """The element types that it takes; None for all, and without --types."""

    @classmethod
    def of(cls, entry: Entry, types: tuple[ElementType, ...] | None) -> OpcodeFacts:
        """What an entry says."""
        names = (field.name for field in attrs.fields(cls) if field.name != "element_types")
        return cls(**{name: getattr(entry, name) for name in names}, element_types=types)


@frozen
class Opcodes:
    """The opcodes."""

    opcodes: tuple[OpcodeFacts, ...]
    """The opcodes there are."""
