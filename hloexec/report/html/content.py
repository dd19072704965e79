"""What a page is made of, and how the views of the terminal become it.

All of it is plain text; only `Figure.svg` is markup, which `report.html.drawing` has made.

The views of the terminal as content of pages: rich's texts and tables become paragraphs, lines of code and tables. A
page therefore says what the terminal says, with the same verdict.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from hloexec.core.structs import frozen
from hloexec.errors import printable
from hloexec.report.layout import TerminalOnly, Titled

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


Linker = Callable[[str], str | None]
"""From the name or the path of an instruction to where it is on the page."""

_TONES: Sequence[tuple[str, Tone]] = (
    ("red", "bad"),
    ("green", "good"),
    ("cyan", "near"),
    ("yellow", "doubt"),
    ("dim", "muted"),
    ("bold", "strong"),
)
"""Words of rich's styles, the telling ones first."""
_NAME = re.compile(r"%[\w.\-]+(?:/[\w.\-]+)*")
_HLO = re.compile(r"(?:\w+ +)?(?:ROOT )?%[\w.\-]+ = ")
_NUMBER = re.compile(r"(?:-?[\d.]+(?:e[+-]?\d+)?(?:[ \u202f]?[\d.]+)* ?%?|-?inf|nan|∞|–)?")
_WIDTH = 160


def no_links(_: str) -> str | None:
    """No instruction is on the page."""
    return None


def blocks_of(shown: RenderableType, link: Linker = no_links) -> list[Block]:
    """What is shown, block by block, without empty lines."""
    blocks: list[Block] = []
    for is_code, group in groupby(_flat(shown), _is_code):
        if is_code:
            lines = [line for text in group if isinstance(text, Text) for line in text.split("\n", allow_blank=True)]
            blocks.append(Lines(tuple(line_of(line, link) for line in lines)))
        else:
            blocks += [block for renderable in group for block in _blocks(renderable, link)]
    return blocks


def _flat(shown: RenderableType) -> Iterator[RenderableType]:
    """The parts of nested groups, without empty texts; strings as texts."""
    stack = [shown]
    while stack:
        current = stack.pop()
        if isinstance(current, TerminalOnly):
            continue
        if isinstance(current, Group):
            stack.extend(reversed(current.renderables))
        elif isinstance(current, (Text, str)):
            text = _trimmed(Text(current) if isinstance(current, str) else current)
            if text.plain:
                yield text
        else:
            yield current


def _trimmed(text: Text) -> Text:
    """Without line breaks before and after."""
    plain = text.plain
    start, stop = len(plain) - len(plain.lstrip("\n")), len(plain.rstrip())
    return text[start:stop] if start < stop else Text("")


def _is_code(shown: RenderableType) -> bool:
    """Indented lines are code, as are several lines in one text, and pictures made of characters."""
    if not isinstance(shown, Text):
        return False
    plain = shown.plain
    return plain.startswith("  ") or "\n" in plain or bool(_HLO.match(plain)) or set(plain) <= set("█▓·?×")


def _blocks(shown: RenderableType, link: Linker) -> Iterator[Block]:
    if isinstance(shown, Text):
        yield Paragraph(line_of(shown, link))
    elif isinstance(shown, Titled):
        yield Section(shown.title, shown.remark, tuple(blocks_of(shown.body, link)))
    elif isinstance(shown, RichTable):
        yield _table(shown, link)
    else:
        console = Console(file=io.StringIO(), width=_WIDTH, highlight=False, markup=False, emoji=False)
        with console.capture() as capture:
            console.print(shown, crop=False)
        yield Lines(tuple((Part(printable(line)),) for line in capture.get().rstrip("\n").split("\n")))


def _table(table: RichTable, link: Linker) -> Table:
    are_figures = [column.justify == "right" or _are_numbers(list(column.cells)) for column in table.columns]
    headers = tuple(
        Cell(line_of(_as_text(column.header), no_links), is_figure)
        for column, is_figure in zip(table.columns, are_figures, strict=True)
    )
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return Table(
        headers,
        tuple(
            tuple(
                Cell(line_of(_as_text(cell), no_links if is_figure else link, is_cell=True), is_figure)
                for cell, is_figure in zip(row, are_figures, strict=True)
            )
            for row in rows
        ),
        table.show_header and any(cell.line for cell in headers),
    )


def _are_numbers(cells: Sequence[RenderableType]) -> bool:
    """Whether a column is one of figures, however the terminal aligns it."""
    texts = [_as_text(cell).plain for cell in cells]
    return any(texts) and all(_NUMBER.fullmatch(text) for text in texts)


def _as_text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def line_of(text: Text, link: Linker, *, is_cell: bool = False) -> Line:
    """A text with its tones, and with links from the names of instructions; of a cell, all of it may be such a name."""
    plain = text.plain
    whole = link(plain) if is_cell and plain else None
    if whole is not None:
        return (Part(printable(plain), _tone([str(text.style)]), whole),)
    cuts = {0, len(plain), *(place for span in text.spans for place in (span.start, span.end) if place <= len(plain))}
    edges = sorted(cuts)
    parts: list[Part] = []
    for start, stop in pairwise(edges):
        styles = [str(text.style), *(str(span.style) for span in text.spans if span.start <= start < span.end)]
        parts += linked(printable(plain[start:stop]), _tone(styles), link)
    return tuple(parts)


def linked(text: str, tone: Tone, link: Linker) -> Iterator[Part]:
    """A text of one tone, with a link for each `%name` that is on the page."""
    done = 0
    for match in _NAME.finditer(text):
        target = link(match[0])
        if target is None:
            continue
        if match.start() > done:
            yield Part(text[done : match.start()], tone)
        yield Part(match[0], tone, target)
        done = match.end()
    if done < len(text):
        yield Part(text[done:], tone)


def _tone(styles: Iterable[str]) -> Tone:
    words = " ".join(styles).split()
    return next((tone for word, tone in _TONES if word in words), "")
