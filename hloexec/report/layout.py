"""The layout of reports: tables without rules, titles, suggested commands, and text that fits the terminal.

Nothing outside this package and the command line imports rich.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hloexec.core.structs import frozen
from hloexec.core.wording import count_text
from hloexec.errors import printable

Command: TypeAlias = Callable[..., str]
"""Writes a command to go on with, from its name and its arguments."""
Parts: TypeAlias = list[RenderableType]
"""What is shown, one below the other."""

_ALL_SHOWN = "--top 0 shows all"
_PLAIN_WIDTH = 240
_LEAST_WIDTH, _LEAST_NAME_WIDTH = 16, 24
"""Columns of text, and those of names, are no narrower than this, or than their longest text."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1, which says of some commands that something differs."""
        raise


def console_for(*, stderr: bool = False) -> Console:
    """A console for standard output or error; where that is no terminal, lines are as long as they need to be."""
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def show(renderable: RenderableType) -> None:
    """Print to standard output: with colours and as wide as the terminal, or plain and without trailing blanks."""
    console = console_for()
    if console.is_terminal:
        console.print(WithoutControls(renderable), crop=False)
        return
    print(captured(console, WithoutControls(renderable), crop=False))


def captured(console: Console, renderable: RenderableType, *, crop: bool = True) -> str:
    """What a console would print, without trailing blanks."""
    with console.capture() as capture:
        console.print(renderable, crop=crop)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


@frozen
class WithoutControls:
    """What is shown, but for characters of a file that could steer the terminal."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self.shown, options):
            yield Segment(printable(segment.text), segment.style, segment.control)


def command_text(command: str) -> Text:
    """A command to type next, in one line however long it is, so that it can be copied."""
    return Text(f"  {command}", no_wrap=True, overflow="ignore")


def next_steps(*commands: str) -> RenderableType:
    """Suggested commands."""
    return Group(Text("\nnext:", style="dim"), *map(command_text, commands))


def plain_table(
    *folded: str,
    names: Sequence[str] = (),
    figures: Sequence[str] = (),
    remarks: Sequence[str] = (),
    has_header: bool = True,
) -> Table:
    """A table without lines, of columns of `names` and texts that are `folded`, of `figures`, and of `remarks`.

    Where the console is too narrow for them, each row is a paragraph: nothing is cut.
    """
    table = _PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=has_header)
    for name in (*names, *folded):
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    for name in remarks:
        table.add_column(name, overflow="fold")
    return table


class _PlainTable(Table):
    """A table that becomes a paragraph for each row where the console is too narrow for its columns; of no string is a
    part taken for markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = sum(map(_least_width, self.columns)) + 2 * (len(self.columns) - 1)
        if needed <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        headers = [_as_text(column.header, "dim") for column in self.columns]
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            yield from _paragraph(headers, list(map(_as_text, cells)), options.max_width)


def _least_width(column: Column) -> int:
    if column.width is not None:
        return column.width
    longest = max(map(_as_text, (column.header, *column.cells)), key=lambda text: text.cell_len)
    if column.no_wrap:
        return longest.cell_len
    least = _LEAST_WIDTH if " " in longest.plain else _LEAST_NAME_WIDTH
    return max(column.min_width or 0, min(longest.cell_len, least))


def _as_text(cell: RenderableType, style: str = "") -> Text:
    text = cell.copy() if isinstance(cell, Text) else Text(str(cell), style=style)
    text.no_wrap, text.overflow = False, "fold"
    return text


def _paragraph(headers: Sequence[Text], cells: Sequence[Text], width: int) -> Iterator[Text]:
    """The first cell, and the others, each behind its header, as many to a line as fit."""
    first, *rest = [
        Text(" ").join([header, cell]) if header else cell
        for number, (header, cell) in enumerate(zip(headers, cells, strict=True))
        if cell or not number
    ]
    line = first
    for part in rest:
        joined = Text.assemble(line, "  ", part)
        if line is first or joined.cell_len > width:
            yield line
            joined = Text.assemble("  ", part)
        line = joined
    yield line


def rest_text(count: int, hint: str = _ALL_SHOWN) -> Text:
    """How many more rows there are, and how to see them."""
    return Text(f"… and {count_text(count)} more ({hint})", style="dim")


def with_rest(table: RenderableType, count: int, top: int, hint: str = _ALL_SHOWN) -> RenderableType:
    """A table of the first `top` of so many rows, 0 for all, and how many more there are where that leaves some out."""
    return Group(table, rest_text(count - top, hint)) if 0 < top < count else table


def listed(
    title: str,
    remark: str,
    rows: Sequence[Sequence[RenderableType]],
    *folded: str,
    top: int = 0,
    hint: str = _ALL_SHOWN,
    **columns: Any,
) -> Titled:
    """A titled table of the first `top` rows, 0 for all; `plain_table` says what the columns are."""
    table = plain_table(*folded, **columns)
    for row in rows[: top or None]:
        table.add_row(*row)
    return Titled(title, remark, with_rest(table, len(rows), top, hint))


@frozen
class Titled:
    """A part of a report, behind an empty line, with a title, and what there is to say beside it."""

    title: str
    remark: str
    body: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        yield Text("")
        yield Text.assemble((self.title, "bold"), ("  " + self.remark if self.remark else "", "dim"))
        yield self.body


@frozen
class TerminalOnly:
    """A drawing made of characters, in whose place pages have a plot."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        yield self.shown
