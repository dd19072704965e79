"""XLA's dump of a buffer assignment: parsing, and printing as XLA does.

Every line is parsed into the model or is an error with its position. Both forms are read: a single file with
everything, and that of newer XLA, which writes allocations, values and live ranges to separate files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs

from hloexec.core.arguments import require_text
from hloexec.core.ir.buffer_assignment import (
    Allocation,
    AssignedValue,
    BreakdownNode,
    BufferAssignment,
    EntryParameter,
    LiveRange,
    LiveRanges,
    PeakValue,
    Position,
    Use,
    UsedValue,
    ValueLabel,
)
from hloexec.errors import InputError, warn
from hloexec.language.text.dumps.lines import DumpLines, index_of, index_text, rounded_bytes
from hloexec.language.text.dumps.memory_report import MEMORY_SPACE, format_memory_spaces, parse_memory_spaces
from hloexec.language.text.shapes import shape_text

_INDEX = r"\{(?:\d{1,9}(?:,\d{1,9})*)?\}"
_NAME = r"[^\s{}<>,:]+"
_COUNT = r"\d[\d ]*"

_ASSIGNMENT = re.compile(r"BufferAssignment:")
_ALLOCATION = re.compile(r"allocation (?P<index>\d+): size (?P<size>\d+)(?P<flags>.*):")
_FLAG = re.compile(
    r", (?:color (?P<color>\d+)"
    r"|page (?P<page>\d+)"
    rf"|parameter (?P<number>\d+), shape \|(?P<shape>[^|]*)\| at ShapeIndex (?P<at>{_INDEX})"
    r"|output shape is \|(?P<output>[^|]*)\|"
    r"|(?P<word>[A-Za-z][\w -]*))"
)
_UNKNOWN_SHAPE = "<unknown shape>"
_WORDS = {
    "constant": "is_constant",
    "thread-local": "is_thread_local",
    "maybe-live-out": "maybe_live_out",
    "preallocated-temp": "is_preallocated_temp",
}
_LABEL = rf"<(?P<id>\d+) (?P<name>{_NAME})(?P<at>{_INDEX})?(?P<phi> \(phi\))?(?: @(?P<color>\d+))?>"
_VALUE = re.compile(rf" value: {_LABEL} \(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<shape>.*)")
_TOTAL = re.compile(r"Total bytes used: (?P<bytes>\d+) \((?P<rounded>[\d.]+[KMGTPE]?i?B)\)")
_USED = re.compile(r"Used values:")
_USED_VALUE = re.compile(_LABEL)
_POSITIONS = re.compile(r" positions:")
_POSITION = re.compile(rf"  (?P<name>{_NAME})(?: (?P<at>{_INDEX}))?")
_USES = re.compile(r" uses:")
_NONE = re.compile(r"  \(none\)")
_USE = re.compile(rf"  (?P<name>{_NAME}), operand (?P<operand>\d+)(?: (?P<at>{_INDEX}))?")
_FROM = re.compile(r" from instruction: ?(?P<text>.*)")
_LIVE = re.compile(r"HloLiveRange \(max (?P<end>\d+)\):")
_SEQUENCE = re.compile(r"  InstructionSequence:")
_SCHEDULED = re.compile(rf"    (?P<time>\d+):(?P<name>{_NAME})")
_RANGES = re.compile(r"  BufferLiveRange:")
_RANGE = re.compile(rf"    (?P<name>{_NAME})(?P<at>{_INDEX}):(?P<start>\d+)-(?P<end>\d+)")
_PEAK = re.compile(r"  Live ranges at (?P<time>\d+) \(peak\):")
_NO_PEAK = re.compile(r"  Peak memory could not be determined due to unbounded dynamic shape\.")
_PEAK_VALUE = re.compile(
    rf"    (?P<name>{_NAME})(?P<at>{_INDEX})?: (?P<bytes>\d+) bytes(?: \(cumulative: (?P<cumulative>\d+) bytes\))?"
)
_BREAKDOWN = re.compile(rf"  Stack trace breakdown for peak usage: (?P<bytes>{_COUNT}) bytes")
_NODE = re.compile(
    r"    (?:  (?P<bars>(?:│   |    )*)[├└]── )?(?P<name>.*) \((?P<percent>\d+\.\d)%, "
    rf"total: (?P<total>{_COUNT}) bytes, current: (?P<current>{_COUNT}) bytes, "
    rf"remaining: (?P<remaining>{_COUNT}) bytes\)"
)

_Item = TypeVar("_Item")


def parse_buffer_assignment(text: str, *, filename: str = "<string>") -> BufferAssignment:
    """Parse XLA's dump of a buffer assignment.

    The text is a whole dump, or one of the files that newer XLA writes (`…-buffer-assignment.txt`,
    `…-buffer-assignment-values.txt`, `…-live-range.txt`, `…-memory-usage-report.txt`); `merge_buffer_assignments`
    combines those. Raises ParseError; warns HloWarning about flags of a newer XLA, which are kept.
    """
    advice = "hloexec.load_buffer_assignment(path) reads a file"
    require_text("text", text, "the text of a buffer assignment, a str", advice)
    require_text("filename", filename)
    return _Parser(text, filename).run()


def merge_buffer_assignments(parts: Iterable[BufferAssignment]) -> BufferAssignment:
    """The parts of one assignment, each from its own file, as one.

    Raises InputError where two hold the same part, or their totals show that they are of different assignments.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        for field in ("allocations", "total_bytes", "used_values", "live_ranges", "spaces"):
            value = getattr(part, field)
            if value is None:
                continue
            if field in merged:
                raise InputError(f"two of the files hold the {field.replace('_', ' ')} of a buffer assignment")
            merged[field] = value
        if part.marks_unused:
            merged["marks_unused"] = True
    whole = BufferAssignment(**merged)
    allocations = None if whole.allocations is None else sum(allocation.size for allocation in whole.allocations)
    spaces = None if whole.spaces is None else sum(space.total_bytes for space in whole.spaces)
    totals = {total for total in (whole.total_bytes, allocations, spaces) if total is not None}
    if len(totals) > 1:
        listed = " and ".join(map(str, sorted(totals)))
        raise InputError(f"the files are of different buffer assignments: their totals are {listed} bytes")
    return whole


class _Parser(DumpLines):
    """The parts of a dump, one method each."""

    _marks_unused = False

    def run(self) -> BufferAssignment:
        """dump ::= [allocations] [total] [values] [live ranges] [report], at least one of them, empty lines between"""
        self.skip_blank()
        allocations = total = used = live = spaces = None
        if self.take(_ASSIGNMENT):
            allocations = self._many(self._allocation, "allocation")
            self.skip_blank()
        if self.at(_TOTAL):
            total = self._total(allocations)
            self.skip_blank()
        if self.take(_USED):
            used = self._used_values()
            self.skip_blank()
        if self.at(_LIVE):
            live = self._live_ranges()
            self.skip_blank()
        if self.at(MEMORY_SPACE):
            spaces = parse_memory_spaces(self)
            self.skip_blank()
        sections = [part for part in (allocations, total, used, live, spaces) if part is not None]
        if not sections:
            self.fail(
                "expected a buffer assignment, which begins with 'BufferAssignment:', 'Total bytes used:', "
                f"'Used values:', 'HloLiveRange' or 'Memory Space:', found {self.describe()}"
            )
        if not self.is_at_end:
            self.fail(f"expected the end of the buffer assignment, found {self.describe()}")
        return BufferAssignment(
            allocations=allocations,
            total_bytes=total,
            used_values=used,
            live_ranges=live,
            spaces=spaces,
            marks_unused=self._marks_unused,
        )

    def _many(self, read: Callable[[], _Item | None], subject: str) -> tuple[_Item, ...]:
        """item*, up to an empty line or a line without indentation that is none"""
        entries: list[_Item] = []
        while (item := read()) is not None:
            entries.append(item)
        if self.line[:1] == " ":
            self.fail(f"expected {subject}, found {self.describe()}")
        return tuple(entries)

    def _allocation(self) -> Allocation | None:
        """allocation ::= 'allocation' index ': size' bytes flag* ':' value*"""
        match = self.take(_ALLOCATION)
        if match is None:
            return None
        index, size = self.number(match, "index", "the allocation"), self.number(match, "size", "the size")
        flags = self._flags(match)
        values = self._many(self._value, "' value: <…> (size=…,offset=…): shape'")
        return Allocation(index=index, size=size, values=values, **flags)

    def _flags(self, match: re.Match[str]) -> dict[str, Any]:
        """flag ::= ', color' n | ', page' n | ', parameter' n ', shape |' shape '| at ShapeIndex' index
        | ', output shape is |' shape '|' | ', constant' | ', thread-local' | ', maybe-live-out' | ', preallocated-temp'
        """
        flags: dict[str, Any] = {}
        other: list[str] = []
        position, end = match.span("flags")
        while position < end:
            flag = _FLAG.match(match.string, position, end)
            if flag is None:
                self.fail("expected a flag of the allocation, such as ', constant' or ', color 1'", position)
            field, value = self._flag(flag)
            if field is None:
                other.append(flag["word"])
            elif field in flags:
                self.fail(
                    f"the allocation has a second {field.removeprefix('is_').replace('_', ' ')}", flag.start() + 2
                )
            else:
                flags[field] = value
            position = flag.end()
        return {**flags, "other_flags": tuple(other)}

    def _flag(self, flag: re.Match[str]) -> tuple[str | None, Any]:
        """The field of an allocation that a flag fills, and with what; no field for one that is not known."""
        if flag["color"]:
            return "color", self.number(flag, "color", "the color")
        if flag["page"]:
            return "page", self.number(flag, "page", "the page")
        if flag["number"]:
            number = self.number(flag, "number", "the parameter")
            shape = None if flag["shape"] == _UNKNOWN_SHAPE else self.shape(flag, "shape")
            return "parameter", EntryParameter(number, shape, index_of(flag["at"]) or ())
        if flag["output"] is not None:
            return "output_shape", self.shape(flag, "output")
        if flag["word"] in _WORDS:
            return _WORDS[flag["word"]], True
        message = f"the flag '{flag['word']}' of an allocation is not known; it is kept verbatim"
        warn(message)
        return None, None

    def _value(self) -> AssignedValue | None:
        """value ::= ' value:' label '(size=' bytes ',offset=' bytes '):' shape"""
        match = self.take(_VALUE)
        if match is None:
            return None
        size, offset = self.number(match, "size", "the size"), self.number(match, "offset", "the offset")
        return AssignedValue(self._label(match), size, offset, self.shape(match, "shape"))

    def _label(self, match: re.Match[str]) -> ValueLabel:
        """label ::= '<' id name [index] ['(phi)'] ['@' color] '>'"""
        color = self.number(match, "color", "the color") if match["color"] else None
        return ValueLabel(
            self.number(match, "id", "the id"), match["name"], index_of(match["at"]), bool(match["phi"]), color
        )

    def _total(self, allocations: tuple[Allocation, ...] | None) -> int:
        """total ::= 'Total bytes used:' bytes '(' rounded ')'"""
        match = self.expect(_TOTAL, "'Total bytes used: …'")
        total = self.number(match, "bytes", "the total")
        if match["rounded"] != rounded_bytes(total):
            self.fail(f"{total} bytes are {rounded_bytes(total)}, not {match['rounded']}", match.start("rounded"))
        if allocations is not None:
            added = sum(allocation.size for allocation in allocations)
            if added != total:
                self.fail(f"the allocations add up to {added} bytes, the total says {total}", match.start("bytes"))
        return total

    def _used_values(self) -> tuple[UsedValue, ...]:
        return self._many(self._used_value, "'<…>', a value")

    def _used_value(self) -> UsedValue | None:
        """value ::= label 'positions:' position* 'uses:' (use* | '(none)') 'from instruction:' text"""
        match = self.take(_USED_VALUE)
        if match is None:
            return None
        label = self._label(match)
        self.expect(_POSITIONS, "' positions:'")
        positions = []
        while found := self.take(_POSITION):
            positions.append(Position(found["name"], index_of(found["at"])))
        self.expect(_USES, "a position, or ' uses:'")
        uses = []
        if self.take(_NONE):
            self._marks_unused = True
        else:
            while found := self.take(_USE):
                operand = self.number(found, "operand", "the operand")
                uses.append(Use(found["name"], operand, index_of(found["at"])))
        text = self.expect(_FROM, "a use, or ' from instruction: …'")["text"]
        return UsedValue(label, tuple(positions), tuple(uses), text)

    def _live_ranges(self) -> LiveRanges:
        """live ranges ::= 'HloLiveRange (max' end '):' 'InstructionSequence:' (time ':' name)*
        'BufferLiveRange:' (name index ':' start '-' end)* peak"""
        match = self.expect(_LIVE, "'HloLiveRange (max …):'")
        end_time = self.number(match, "end", "the end of the schedule")
        sequence = self._sequence()
        if len(sequence) != end_time:
            self.fail(f"expected {end_time} instructions in the sequence, found {len(sequence)}", match.start("end"))
        self.expect(_RANGES, "the next instruction, or '  BufferLiveRange:'")
        ranges = []
        while found := self.take(_RANGE):
            start, end = self.number(found, "start", "the start"), self.number(found, "end", "the end")
            if not start <= end <= end_time:
                self.fail(f"expected start ≤ end ≤ {end_time}, found {start}-{end}", found.start("start"))
            ranges.append(LiveRange(found["name"], index_of(found["at"]) or (), start, end))
        live = LiveRanges(end_time, sequence, tuple(ranges), None)
        return live if self.take(_NO_PEAK) else self._peak(live)

    def _sequence(self) -> tuple[str, ...]:
        self.expect(_SEQUENCE, "'  InstructionSequence:'")
        names: list[str] = []
        while found := self.take(_SCHEDULED):
            if self.number(found, "time", "the position") != len(names):
                self.fail(f"expected instruction {len(names)} next, found {found['time']}", found.start("time"))
            names.append(found["name"])
        return tuple(names)

    def _peak(self, live: LiveRanges) -> LiveRanges:
        """peak ::= 'Live ranges at' time '(peak):' (name [index] ':' bytes 'bytes' ['(cumulative:' bytes 'bytes)'])*
        [breakdown]"""
        match = self.expect(_PEAK, "a live range, or '  Live ranges at … (peak):'")
        peak = []
        while found := self.take(_PEAK_VALUE):
            size = self.number(found, "bytes", "the size")
            cumulative = self.number(found, "cumulative", "the sum") if found["cumulative"] else None
            peak.append(PeakValue(found["name"], index_of(found["at"]), size, cumulative))
        live = attrs.evolve(live, peak_time=self.number(match, "time", "the time"), peak=tuple(peak))
        heading = self.take(_BREAKDOWN)
        if heading is None:
            return live
        total = self.number(heading, "bytes", "the total")
        return attrs.evolve(live, breakdown_total=total, breakdown=self._many(self._node, "a line of the breakdown"))

    def _node(self) -> BreakdownNode | None:
        """node ::= tree-lines name '(' percent '%, total:' n 'bytes, current:' n 'bytes, remaining:' n 'bytes)'"""
        match = self.take(_NODE)
        if match is None:
            return None
        figures = [self.number(match, name, f"the {name}") for name in ("total", "current", "remaining")]
        depth = 0 if match["bars"] is None else len(match["bars"]) // 4 + 1
        return BreakdownNode(depth, match["name"], float(match["percent"]), *figures)


def format_buffer_assignment(assignment: BufferAssignment) -> str:
    """The parts that are there, in XLA's order, as one file."""
    lines: list[str] = []
    if assignment.allocations is not None:
        lines.append("BufferAssignment:")
        for allocation in assignment.allocations:
            lines += _allocation(allocation)
    if assignment.total_bytes is not None:
        lines += ["", f"Total bytes used: {assignment.total_bytes} ({rounded_bytes(assignment.total_bytes)})"]
    if assignment.used_values is not None:
        lines += ["", "Used values:"]
        for value in assignment.used_values:
            lines += _used_value(value, marks_unused=assignment.marks_unused)
    if assignment.live_ranges is not None:
        if lines:
            lines += ["", ""]
        lines += _live_ranges(assignment.live_ranges)
    if assignment.spaces is not None:
        lines += format_memory_spaces(assignment.spaces)
    return "\n".join([*lines, ""])


def _allocation(allocation: Allocation) -> Iterator[str]:
    flags = [] if allocation.page is None else [f"page {allocation.page}"]
    flags += [f"color {allocation.color}"] if allocation.color else []
    if allocation.parameter is not None:
        parameter = allocation.parameter
        shape = "<unknown shape>" if parameter.shape is None else shape_text(parameter.shape)
        flags.append(f"parameter {parameter.number}, shape |{shape}| at ShapeIndex {index_text(parameter.index)}")
    if allocation.output_shape is not None:
        flags.append(f"output shape is |{shape_text(allocation.output_shape)}|")
    words = (
        ("constant", allocation.is_constant),
        ("thread-local", allocation.is_thread_local),
        ("maybe-live-out", allocation.maybe_live_out),
        ("preallocated-temp", allocation.is_preallocated_temp),
    )
    flags += [word for word, holds in words if holds]
    flags += allocation.other_flags
    yield f"allocation {allocation.index}: size {', '.join([str(allocation.size), *flags])}:"
    for value in allocation.values:
        place = f"(size={value.size},offset={value.offset})"
        yield f" value: {_label(value.label)} {place}: {shape_text(value.shape)}"


def _label(label: ValueLabel) -> str:
    phi = " (phi)" if label.is_phi else ""
    color = "" if label.color is None else f" @{label.color}"
    return f"<{label.id} {label.instruction}{index_text(label.index)}{phi}{color}>"


def _used_value(value: UsedValue, *, marks_unused: bool) -> Iterator[str]:
    yield _label(value.label)
    yield " positions:"
    for position in value.positions:
        yield f"  {position.instruction}{_spaced(position.index)}"
    yield " uses:"
    if marks_unused and not value.uses:
        yield "  (none)"
    for use in value.uses:
        yield f"  {use.instruction}, operand {use.operand_number}{_spaced(use.operand_index)}"
    yield f" from instruction: {value.instruction_text}"


def _spaced(index: tuple[int, ...] | None) -> str:
    return "" if index is None else f" {index_text(index)}"


def _live_ranges(live: LiveRanges) -> Iterator[str]:
    yield f"HloLiveRange (max {live.end_time}):"
    yield "  InstructionSequence:"
    for time, name in enumerate(live.sequence):
        yield f"    {time}:{name}"
    yield "  BufferLiveRange:"
    for entry in live.ranges:
        yield f"    {entry.instruction}{index_text(entry.index)}:{entry.start}-{entry.end}"
    if live.peak_time is None:
        yield "  Peak memory could not be determined due to unbounded dynamic shape."
        return
    yield f"  Live ranges at {live.peak_time} (peak):"
    yield from map(_peak_value, live.peak)
    if live.breakdown_total is not None:
        yield f"  Stack trace breakdown for peak usage: {_grouped(live.breakdown_total)} bytes"
        yield from _breakdown(live.breakdown)


def _peak_value(value: PeakValue) -> str:
    text = f"    {value.instruction}{index_text(value.index)}: {value.bytes} bytes"
    return text if value.cumulative_bytes is None else f"{text} (cumulative: {value.cumulative_bytes} bytes)"


def _breakdown(nodes: tuple[BreakdownNode, ...]) -> Iterator[str]:
    """The tree, with a bar below every node that has a sibling further down."""
    continues: list[bool] = []
    prefixes: list[str] = []
    for node in reversed(nodes):
        has_next = len(continues) > node.depth and continues[node.depth]
        continues = [*continues[: node.depth], *[False] * (node.depth - len(continues)), True]
        if node.depth == 0:
            prefixes.append("")
            continue
        bars = "".join("│   " if bar else "    " for bar in continues[1 : node.depth])
        prefixes.append(f"  {bars}{'├' if has_next else '└'}── ")
    for node, prefix in zip(nodes, reversed(prefixes), strict=True):
        figures = f"total: {_grouped(node.total)} bytes, current: {_grouped(node.current)} bytes"
        rest = f"remaining: {_grouped(node.remaining)} bytes"
        yield f"    {prefix}{node.name} ({node.percent:.1f}%, {figures}, {rest})"


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")
