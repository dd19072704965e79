"""Reports of `hloexec memory`, as tables and as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.analysis.buffers import LiveValue, MemoryComparison, MemoryUsage
from hloexec.analysis.buffers.comparison import AllocationUse, Difference
from hloexec.analysis.buffers.usage import Peak, RunEstimate
from hloexec.analysis.ranks import DistributedUsage
from hloexec.core.ir import Module, TupleShape
from hloexec.core.ir.buffer_assignment import BufferAssignment, LiveRange
from hloexec.core.places import spell_name
from hloexec.core.structs import frozen
from hloexec.core.wording import byte_text, count_text, plural, truncated
from hloexec.language.text import format_shape
from hloexec.language.text.dumps.lines import index_text
from hloexec.report.inspecting import ranks
from hloexec.report.layout import Parts, Titled, listed, plain_table
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.watching.recording import Column, Key, Ranked, Watched

_LONGEST_SHAPE = 60


def memory_view(
    usage: MemoryUsage,
    comparison: MemoryComparison | None,
    estimate: RunEstimate | None,
    distributed: DistributedUsage | None,
    top: int,
) -> RenderableType:
    """A verdict in one line, then tables of at most `top` rows each; 0 for all."""
    parts: Parts = [_verdict(usage, comparison), _totals(usage, comparison, estimate)]
    parts += _spaces(usage, comparison)
    if comparison is not None:
        parts += _differences("differences", comparison.differences, top)
        parts += _differences("more memory than the shape needs", comparison.padded, top)
        parts += _allocations(comparison, top)
        parts += _ranges(comparison, top)
    parts += _alive(usage, comparison, top)
    if distributed is not None:
        parts += ["", ranks.ranks_view(distributed, top)]
    return Group(*parts)


def assignment_line(assignment: BufferAssignment) -> Text:
    """What a buffer assignment holds, without its module."""
    facts = []
    if assignment.allocations is not None:
        facts.append(plural(len(assignment.allocations), "allocation"))
    if assignment.allocated_bytes is not None:
        facts.append(f"{byte_text(assignment.allocated_bytes)} ({count_text(assignment.allocated_bytes)} bytes) in all")
    if assignment.used_values is not None:
        facts.append(f"where {plural(len(assignment.used_values), 'value')} are used")
    if assignment.live_ranges is not None:
        facts.append(plural(len(assignment.live_ranges.ranges), "live range"))
    return Text.assemble(("a buffer assignment", "bold"), "  ", ", ".join(facts))


def _verdict(usage: MemoryUsage, comparison: MemoryComparison | None) -> Text:
    peak = usage.peak
    alive = f"at most {byte_text(peak.bytes)} are alive at once, at %{usage.instruction_at(peak.time)}"
    if comparison is None:
        return Text.assemble((usage.module_name, "bold"), "  ", alive)
    word = ("agrees", "bold green") if comparison.agrees else ("differs", "bold red")
    if not comparison.range_count and not comparison.size_count:
        word = ("not compared", "bold")
    facts = []
    allocated = comparison.assignment.allocated_bytes
    if allocated is not None:
        facts.append(f"XLA allocates {byte_text(allocated)} ({count_text(allocated)} bytes)")
    facts.append(alive)
    if comparison.assignment.live_ranges is not None:
        whole = plural(comparison.range_count, "live range")
        facts.append(f"{count_text(comparison.range_agreements)} of {whole} agree")
    if comparison.schedule_differs_at is not None:
        facts.append(f"the schedules differ from instruction {comparison.schedule_differs_at} on")
    facts += [
        f"{plural(count, kind)} differ{'s' if count == 1 else ''}"
        for kind, count in comparison.differing.items()
        if kind != "live range"
    ]
    return Text.assemble(word, "  ", "; ".join(facts))


def _totals(usage: MemoryUsage, comparison: MemoryComparison | None, estimate: RunEstimate | None) -> RenderableType:
    table = plain_table(names=("bytes of one device",), figures=("", ""), remarks=("",))
    rows = [
        *_allocated(usage, comparison),
        ("alive at once, at most", usage.peak.bytes, _when(usage, usage.peak)),
        ("  parameters", usage.parameter_bytes, ""),
        ("  outputs", usage.output_bytes, ""),
    ]
    if estimate is not None:
        where = "" if estimate.instruction is None else f", at %{estimate.instruction}"
        rows.append(("hloexec's own run, about", estimate.bytes, f"beyond the inputs{where}"))
    for label, count, remark in rows:
        table.add_row(label, count_text(count), byte_text(count), Text(remark, "dim"))
    if usage.is_scheduled:
        return Group("", table)
    return Group("", table, Text("not scheduled: the order is the one hloexec runs in", style="dim"))


def _allocated(usage: MemoryUsage, comparison: MemoryComparison | None) -> Iterator[tuple[str, int, str]]:
    """What XLA allocates, and what that is made of."""
    if comparison is None or comparison.assignment.allocated_bytes is None:
        return
    allocated, occupied = comparison.assignment.allocated_bytes, comparison.occupied
    yield "allocated by XLA", allocated, ""
    if comparison.allocations:
        held = [use for use in comparison.allocations if use.most.bytes]
        size, most = sum(use.allocation.size for use in held), sum(use.most.bytes for use in held)
        if size < allocated:
            yield "  outside the schedule", allocated - size, "reducers, comparators"
        yield "  gaps and padding", size - most, "never in use at once within an allocation"
        yield "  at different times", most - occupied.bytes, "allocations fill at different times"
        yield "  in use at once, at most", occupied.bytes, _when(usage, occupied)


def _when(usage: MemoryUsage, peak: Peak) -> str:
    return f"at {peak.time} of {len(usage.sequence)}, %{usage.instruction_at(peak.time)}"


def _spaces(usage: MemoryUsage, comparison: MemoryComparison | None) -> Parts:
    allocated = comparison.assignment.bytes_by_color if comparison is not None else {}
    alive = usage.peak_by_color
    colors = sorted({*allocated, *alive})
    if len(colors) < 2:
        return []
    table = plain_table(
        names=("color",), figures=(*(("XLA allocates",) if allocated else ()), "alive at most", "at"), remarks=("",)
    )
    for color in colors:
        peak = alive.get(color, Peak(0, 0))
        allocated_cells = (count_text(allocated.get(color, 0)),) if allocated else ()
        at = Text(f"%{usage.instruction_at(peak.time)}", "dim")
        table.add_row(str(color), *allocated_cells, count_text(peak.bytes), str(peak.time), at)
    return [Titled("memory spaces", "", table)]


def _differences(title: str, differences: Sequence[Difference], top: int) -> Parts:
    if not differences:
        return []
    rows = [
        (each.what, each.label, *("–" if text is None else text for text in (each.xla, each.ours)))
        for each in differences
    ]
    return [listed(title, count_text(len(differences)), rows, "", "value", figures=("XLA", "ours"), top=top)]


def _allocations(comparison: MemoryComparison, top: int) -> Parts:
    if not comparison.allocations:
        return []

    def row(use: AllocationUse) -> Parts:
        allocation = use.allocation
        counts = (str(allocation.color), count_text(allocation.size), count_text(len(allocation.values)))
        most = (count_text(use.most.bytes), str(use.most.time)) if use.most.bytes else ("–", "–")
        where = f"%{comparison.usage.instruction_at(use.most.time)}" if use.most.bytes else ""
        return [str(allocation.index), *counts, *most, Text(where, "dim"), allocation.kind]

    rows = list(map(row, sorted(comparison.allocations, key=lambda use: (-use.allocation.size, use.allocation.index))))
    figures = ("color", "bytes", "values", "in use at most", "at")
    return [listed("allocations", count_text(len(rows)), rows, "#", figures=figures, remarks=("", "for"), top=top)]


def _ranges(comparison: MemoryComparison, top: int) -> Parts:
    live = comparison.assignment.live_ranges
    if live is None:
        return []
    ours = {value.key: value for value in comparison.usage.values}
    ordered = sorted(live.ranges, key=lambda entry: -ours[entry.key].byte_size if entry.key in ours else 0)

    def row(entry: LiveRange) -> Parts:
        value = ours.get(entry.key)
        span = f"{entry.start}-{entry.end}"
        if value is None:
            return [f"{entry.instruction}{index_text(entry.index)}", "–", "–", span, "–", "only in XLA's"]
        one = f"{value.start}-{value.end}"
        remark = Text("" if one == span else "differs", "red")
        return [value.label, count_text(value.byte_size), str(value.color), span, one, remark]

    remark, figures = f"{len(ordered)}, largest values first", ("bytes", "color", "XLA", "ours")
    rows = list(map(row, ordered))
    return [listed("live ranges", remark, rows, "value", figures=figures, remarks=("",), top=top)]


def _alive(usage: MemoryUsage, comparison: MemoryComparison | None, top: int) -> Parts:
    time = usage.peak.time
    parts = [_alive_table(usage, f"alive at {time} (our peak)", time, {}, top)]
    live = comparison.assignment.live_ranges if comparison is not None else None
    if comparison is None or live is None or live.peak_time is None:
        return parts
    listed: dict[str, int] = {}
    names = {(value.instruction, value.index): value.label for value in usage.values}
    seen: dict[str, int] = {}
    for entry in live.peak:
        if entry.index is not None:
            listed[names.get((entry.instruction, entry.index), entry.instruction)] = entry.bytes
        else:
            seen[entry.instruction] = entry.bytes
    for value in usage.alive_at(live.peak_time):
        if value.instruction in seen:
            listed[value.label] = seen[value.instruction]
    title = f"alive at {live.peak_time} (XLA's peak{', and ours' if live.peak_time == time else ''})"
    table = _alive_table(usage, title, live.peak_time, listed, top)
    total = comparison.listed_peak_bytes or 0
    if total == usage.bytes_at(live.peak_time):
        note = f"XLA's list adds up to the same {count_text(total)} bytes"
    else:
        note = f"XLA's list adds up to {count_text(total)} bytes"
        if seen:
            note += "; it counts a tuple's element as the pointers of its instruction's whole tuple"
    if live.peak_time == time:
        return [Group(table, Text(note, style="dim"))]
    reason = "XLA looks for the peak by what its instructions make, in which a tuple counts as its pointers"
    return [*parts, Group(table, Text(f"{note}. {reason}.", style="dim"))]


def _alive_table(usage: MemoryUsage, title: str, time: int, theirs: dict[str, int], top: int) -> RenderableType:
    alive = usage.alive_at(time)

    def row(value: LiveValue) -> list[str]:
        known = theirs.get(value.label)
        given = ["–" if known is None else count_text(known)] if theirs else []
        place = [str(value.color), f"{value.start}-{value.end}"]
        return [value.label, _shape(value), *place, *given, count_text(value.byte_size)]

    remark = f"{plural(len(alive), 'buffer')}, {count_text(usage.bytes_at(time))} bytes"
    figures = ("color", "lives", *(("XLA lists",) if theirs else ()), "bytes")
    return listed(title, remark, list(map(row, alive)), "value", "shape", figures=figures, top=top)


def _shape(value: LiveValue) -> str:
    if isinstance(value.shape, TupleShape):
        return f"table of {plural(len(value.shape.elements), 'pointer')}"
    return truncated(format_shape(value.shape), _LONGEST_SHAPE)


def _ranking(usage: MemoryUsage, _: Module) -> Iterator[Ranked]:
    for value in usage.alive_at(usage.peak.time):
        yield Ranked((value.computation, value.instruction), f"{byte_text(value.byte_size)} alive at the peak")


def _figures(usage: MemoryUsage, link: Linker) -> Figures:
    from hloexec.report.html.plots import bars, memory_curve

    alive = [0] * (len(usage.sequence) + 2)
    buffers: dict[int, list[tuple[int, int, int]]] = {}
    for value in usage.values:
        buffers.setdefault(value.buffer, []).append((value.start, value.end, value.byte_size))
    for members in buffers.values():
        # A buffer takes at any time what its largest value takes that is alive.
        before = 0
        for time in sorted({start for start, _, _ in members} | {end + 1 for _, end, _ in members}):
            now = max((size for start, end, size in members if start <= time <= end), default=0)
            alive[min(time, len(alive) - 1)] += now - before
            before = now
    for time in range(1, len(alive)):
        alive[time] += alive[time - 1]
    peak = usage.peak.time
    place = usage.sequence[min(peak, len(usage.sequence) - 1)] if usage.sequence else ("", "")
    yield memory_curve("Bytes alive along the schedule", alive[:-1], peak, place[1], link(spell_name(*place)))
    colors = {value.color for value in usage.values}
    if len(colors) > 1:
        rows = [
            (f"color {color}", at.bytes, f"{plural(at.bytes, 'byte')}")
            for color, at in sorted(usage.peak_by_color.items())
        ]
        yield bars("Most alive in each memory space", rows, "bytes")


def _values(usage: MemoryUsage) -> Watched:
    figures: dict[Key, tuple[int, int, int]] = {}
    for value in usage.values:
        key = value.computation, value.instruction
        size, start, end = figures.get(key, (0, value.start, value.end))
        figures[key] = size + value.byte_size, min(start, value.start), max(end, value.end)
    columns = (
        Column("bytes", "the bytes of all values that it defines"),
        Column("alive from", "the position in the schedule from which one of them is alive"),
        Column("to", "the last position at which one of them is alive"),
    )
    along = {key: (start, float(size)) for key, (size, start, _) in figures.items()}
    return Watched(columns, figures, label="bytes", along=along)


@frozen
class Assignment:
    """A buffer assignment of XLA's."""

    file: str
    allocation_count: int | None
    """How many allocations there are."""
    value_count: int | None
    """How many values there are."""
    allocated_bytes: int | None
    """What XLA allocates."""


@frozen
class Memory:
    """What is known of a module's memory beside its values."""

    estimate: RunEstimate | None
    """What hloexec's own run allocates; None where it cannot run."""
    assignment: MemoryComparison | None
    """XLA's buffer assignment, compared; None where none was given."""
    distributed: DistributedUsage | None
    """What ranks would hold and send; None where nothing is said of ranks."""


REPORTS = {
    MemoryUsage: Report(
        lambda found, top, _: memory_view(found, None, None, None, top), _figures, _ranking, values=_values
    ),
    MemoryComparison: Report(
        lambda found, top, _: memory_view(found.usage, found, None, None, top),
        lambda found, link: _figures(found.usage, link),
        lambda found, module: _ranking(found.usage, module),
        values=lambda found: _values(found.usage),
    ),
    DistributedUsage: ranks.REPORT,
}
