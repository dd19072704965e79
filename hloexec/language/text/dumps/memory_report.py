"""Parsing and printing XLA's memory usage report: per memory space, the contents of each allocation by offset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hloexec.core.ir.buffer_assignment import MemorySpace, Slot, SlotTable
from hloexec.language.text.dumps.lines import DumpLines, rounded_bytes

_ROUNDED = r"[\d.]+[KMGTPE]?i?B"

MEMORY_SPACE = re.compile(r"Memory Space: (?P<name>.*) \(color=(?P<color>\d+)\)")
"""The line that begins a memory space."""
_TOTAL = re.compile(rf"Total bytes: (?P<bytes>\d+) \((?P<rounded>{_ROUNDED})\)")
_COLUMNS = "  cumulative_size;       size;       offset; used_by_n_values; shapes_list"
_RULE = "  " + "-" * 60
_HEADER = re.compile(re.escape(_COLUMNS))
_LINE = re.compile(re.escape(_RULE))
_SLOT = re.compile(
    rf" +(?P<cumulative>{_ROUNDED})\( *(?P<percent>\d+|-?nan)%\); +(?P<size>{_ROUNDED}); +(?P<offset>\d+); "
    r"+(?P<count>\d+); (?P<shapes>.*)"
)
_REST = re.compile(r"  The rest (?P<count>\d+) values are less than 5% of the total size and not shown\.")
_SHAPE = re.compile(r"(?:(?P<times>\d+)×)?(?P<shape>\(.*\)|b\(.*\)|[a-z][a-z0-9]*\[[^\[\]()]*\])")


def parse_memory_spaces(lines: DumpLines) -> tuple[MemorySpace, ...]:
    """space ::= 'Memory Space:' name '(color=' n ')' 'Total bytes:' n '(' rounded ')' table*
    table ::= columns rule slot* ['The rest' n 'values …'] empty-line"""
    spaces = []
    while match := lines.take(MEMORY_SPACE):
        color = lines.number(match, "color", "the color")
        total = lines.expect(_TOTAL, "'Total bytes: …'")
        size = lines.number(total, "bytes", "the total")
        if total["rounded"] != rounded_bytes(size):
            lines.fail(f"{size} bytes are {rounded_bytes(size)}, not {total['rounded']}", total.start("rounded"))
        allocations = []
        while lines.take(_HEADER):
            lines.expect(_LINE, "a line of dashes")
            slots = tuple(_slots(lines))
            rest = lines.take(_REST)
            omitted = 0 if rest is None else lines.number(rest, "count", "the number of slots")
            allocations.append(SlotTable(slots, omitted))
            if not lines.is_at_end and lines.line.strip():
                lines.fail(f"expected what lies at an offset, or an empty line, found {lines.describe()}")
            lines.advance()
        lines.skip_blank()
        spaces.append(MemorySpace(match["name"], color, size, tuple(allocations)))
    return tuple(spaces)


def _slots(lines: DumpLines) -> Iterator[Slot]:
    """slot ::= cumulative '(' percent '%);' size ';' offset ';' count ';' [n '×'] shape (',' [n '×'] shape)*"""
    while match := lines.take(_SLOT):
        count = lines.number(match, "count", "the number of values")
        shapes: list[tuple[int, str]] = []
        for start, end in _pieces(match["shapes"]):
            position = match.start("shapes")
            shape = _SHAPE.fullmatch(match.string, position + start, position + end)
            if shape is None:
                lines.fail("expected a list of shapes such as f32[2,3], 4×s32[]", position + start)
            shapes.append((lines.number(shape, "times", "the count") if shape["times"] else 1, shape["shape"]))
        if sum(times for times, _ in shapes) != count:
            lines.fail(
                f"the shapes are of {sum(times for times, _ in shapes)} values, not {count}", match.start("count")
            )
        offset = lines.number(match, "offset", "the offset")
        yield Slot(match["cumulative"], match["percent"], match["size"], offset, count, tuple(shapes))


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Where the parts of a list lie that `, ` separates outside brackets."""
    start = depth = 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and text.startswith(", ", position):
            yield start, position
            start = position + 2
    yield start, len(text)


def format_memory_spaces(spaces: Sequence[MemorySpace]) -> Iterator[str]:
    """The lines of a report."""
    for space in spaces:
        yield f"Memory Space: {space.name} (color={space.color})"
        yield f"Total bytes: {space.total_bytes} ({rounded_bytes(space.total_bytes)})"
        for table in space.allocations:
            yield _COLUMNS
            yield _RULE
            yield from map(_slot, table.slots)
            if table.omitted:
                yield f"  The rest {table.omitted} values are less than 5% of the total size and not shown."
            yield ""
        yield ""


def _slot(slot: Slot) -> str:
    shapes = ", ".join(shape if times == 1 else f"{times}×{shape}" for times, shape in slot.shapes)
    figures = f"{slot.size_text:>10}; {slot.offset:12}; {slot.value_count:16}"
    return f"  {slot.cumulative_text:>9}({slot.percent_text:>3}%); {figures}; {shapes}"
