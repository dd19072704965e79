"""Printing a buffer assignment as XLA does: `format_buffer_assignment(parse(text)) == text`."""

from __future__ import annotations

from collections.abc import Iterator

from hloexec.core.ir.buffer_assignment import (
    Allocation,
    BreakdownNode,
    BufferAssignment,
    LiveRanges,
    PeakValue,
    UsedValue,
    ValueLabel,
)
from hloexec.language.text.dumps.lines import index_text, rounded_bytes
from hloexec.language.text.dumps.memory_report import format_memory_spaces
from hloexec.language.text.shape_text import shape_text


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
