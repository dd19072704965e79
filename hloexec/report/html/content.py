"""What a page is made of: lines of text with tones and links, tables, figures and sections.

All of it is plain text; only `Figure.svg` is markup, which `report.html.drawing` has made.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hloexec.core.structs import frozen

Tone: TypeAlias = Literal["", "good", "near", "doubt", "bad", "muted", "strong"]
"""How a text is to be taken: agrees, rounding only, a warning, differs; beside the point; of weight."""


@frozen
class Part:
    """A piece of a line."""

    text: str
    tone: Tone = ""
    link: str | None = None
    """Where it leads, as a URL; None for nowhere."""


Line: TypeAlias = tuple[Part, ...]


@frozen
class Paragraph:
    """A line of prose."""

    line: Line


@frozen
class Lines:
    """Lines of code or of aligned text."""

    lines: tuple[Line, ...]


@frozen
class Cell:
    """A cell of a table."""

    line: Line
    is_figure: bool = False
    """Whether it is a number, which is aligned to the right."""


@frozen
class Table:
    """A table; headers may be empty."""

    headers: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    has_header: bool = True


@frozen
class Figure:
    """A plot."""

    title: str
    description: str
    """What can be seen, for those who do not see it."""
    svg: str
    """Its markup."""
    note: str = ""
    is_wide: bool = False
    is_graph: bool = False
    """Whether it has its own size, and is not made as wide as there is room."""


@frozen
class Section:
    """A part of a page with a title."""

    title: str
    remark: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Paragraph | Lines | Table | Figure | Section
