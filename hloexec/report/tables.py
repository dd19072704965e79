"""Tables of values and of modules, for the terminal.

Each function turns data (`LeafStatistics`, `Summary`, registry entries) into something rich can print. Nothing here
computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hloexec.analysis.numerics.leaves import LeafStatistics
from hloexec.core.ir import ArrayShape, Module, Shape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import part_label
from hloexec.core.wording import byte_text, count_text, number_text, plural
from hloexec.ops.registry import Entry, Role
from hloexec.report.layout import Command, Parts, Titled, listed, plain_table, with_rest
from hloexec.report.registry import Report
from hloexec.report.units import flop_text
from hloexec.tools.summary import ComputationSummary, Summary, summarize

if TYPE_CHECKING:
    from hloexec.tools.nan_search import Finding
    from hloexec.tools.shadowing import Loss

_MOST_ROWS = 100
_MOST_LEAVES = 8
_HASH_DIGITS = 8


def extract_command(command: Command, path: str, instruction: str, device: int, *more: str) -> str:
    """The command that extracts one run of an instruction, as `command` writes commands."""
    on_device = ("--device", str(device)) if device else ()
    return command("extract", "--instruction", path, *more, "-o", f"{instruction}.slice", *on_device)


def place_lines(finding: Finding | Loss) -> list[Text]:
    """An instruction that a verdict names: its HLO, its run, and where it comes from."""
    lines = [Text(f"  {finding.hlo}"), Text(f"  at {finding.name}", style="dim")]
    if finding.op_name:
        lines.append(Text(f"  op_name {finding.op_name}", style="dim"))
    source = enumerate(finding.source[:4])
    return lines + [Text(f"  {'    ' if number else 'from'} {line}", style="cyan") for number, line in source]


def module_line(name: str, instructions: int, computations: int, devices: int) -> Text:
    """The module in one line."""
    where = "one device" if devices == 1 else plural(devices, "device")
    rest = f"{plural(instructions, 'instruction')} in {plural(computations, 'computation')}, for {where}"
    return Text.assemble((name, "bold"), "  ", (rest, "dim"))


def leaf_label(name: str, index: Sequence[int]) -> str:
    """A leaf of what an instruction gives: `%add.3`, `%tuple.1.0`."""
    return part_label(f"%{name}", index)


def values_table(title: str, rows: Sequence[tuple[str, LeafStatistics]]) -> RenderableType:
    """One row per leaf: its label, type, range, moments, what is not finite, and the start of its hash."""
    remark = f"{plural(len(rows), 'array')}, {byte_text(sum(leaf.byte_size for _, leaf in rows))}"
    body: RenderableType = _values(rows[:_MOST_ROWS]) if rows else Text("none", style="dim")
    return Titled(title, remark if rows else "", with_rest(body, len(rows), _MOST_ROWS, "--json lists all"))


def _values(rows: Sequence[tuple[str, LeafStatistics]]) -> RenderableType:
    leaves = [leaf for _, leaf in rows]
    columns = {
        "min": [Text(number_text(leaf.minimum)) for leaf in leaves],
        "mean": [Text(number_text(leaf.mean, 3)) for leaf in leaves],
        "max": [Text(number_text(leaf.maximum)) for leaf in leaves],
        "std": [Text(number_text(leaf.standard_deviation)) for leaf in leaves],
    }
    if any(leaf.nan_count or leaf.infinity_count for leaf in leaves):
        columns["nan"] = [_strange(leaf.nan_count) for leaf in leaves]
        columns["inf"] = [_strange(leaf.infinity_count) for leaf in leaves]
    columns["hash"] = [Text(leaf.hash[:_HASH_DIGITS], style="dim") for leaf in leaves]
    table = plain_table("", "shape", figures=tuple(columns))
    for (label, leaf), *cells in zip(rows, *columns.values(), strict=True):
        table.add_row(label, str(ArrayShape(leaf.element_type, leaf.dimensions)), *cells)
    return table


def _strange(count: int) -> Text:
    return Text(count_text(count), style="bold red") if count else Text("0", style="dim")


def summary_view(summary: Summary) -> RenderableType:
    """Everything `hloexec info` says."""
    line = module_line(summary.name, summary.instructions, summary.computations, summary.devices)
    parts: Parts = [line, _facts(summary), _parameters(summary)]
    if summary.contractions:
        parts.append(_contractions(summary))
    parts.append(_histogram("opcodes", summary.opcodes))
    if summary.custom_calls:
        parts.append(_histogram("custom calls", summary.custom_calls))
    parts.append(_histogram("element types", summary.element_types))
    if summary.unsupported:
        told = [*map(str, summary.unsupported), *([] if summary.remedy is None else [summary.remedy])]
        lines = Text("\n".join(told), style="yellow")
        parts.append(Titled("not supported yet", plural(len(summary.unsupported), "item"), lines))
    if summary.notes:
        parts.append(Titled("notes", "", "\n".join(map(str, summary.notes))))
    return Group(*parts)


def _facts(summary: Summary) -> RenderableType:
    devices = f"{plural(summary.replica_count, 'replica')} × {plural(summary.num_partitions, 'partition')}"
    elided = f", {count_text(summary.elided_constants)} of them elided" if summary.elided_constants else ""
    facts = [
        ("entry", summary.entry_name),
        ("devices", devices),
        ("result", _shape_text(summary.result_shape)),
        ("scheduled", "yes" if summary.is_scheduled else "no"),
        ("constants", count_text(summary.constants) + elided),
    ]
    if summary.loops:
        unknown = f", {summary.loops_without_trip_count} without a known trip count"
        facts.append(("loops", count_text(summary.loops) + (unknown if summary.loops_without_trip_count else "")))
    table = plain_table(has_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    return Group("", table)


def _shape_text(shape: Shape) -> str:
    """A shape, or what a long tuple amounts to."""
    leaves = flat_shapes(shape)
    if len(leaves) <= _MOST_LEAVES:
        return str(shape)
    first = ", ".join(map(str, leaves[:4]))
    return f"{count_text(len(leaves))} arrays, {byte_text(shape.byte_size)}: {first}, …"


def _parameters(summary: Summary) -> RenderableType:
    table = plain_table()
    table.add_column("#", justify="right")
    table.add_column("name", no_wrap=True)
    table.add_column("shape", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for entry in summary.parameters[:_MOST_ROWS]:
        table.add_row(str(entry.number), entry.name, _shape_text(entry.shape), byte_text(entry.byte_size))
    remark = f"{count_text(len(summary.parameters))}, {byte_text(summary.parameter_bytes)}"
    if len(summary.parameters) > _MOST_ROWS:
        table.add_row("", f"… and {len(summary.parameters) - _MOST_ROWS} more", "(--json lists all)", "")
    return Titled("parameters", remark, table if summary.parameters else Text("none", style="dim"))


def _contractions(summary: Summary) -> RenderableType:
    rows = [
        (
            each.kind,
            count_text(each.instructions),
            count_text(each.runs),
            flop_text(each.flops),
            byte_text(each.byte_count),
        )
        for each in summary.contractions
    ]
    remark = f"{flop_text(summary.flops)} per device"
    if summary.devices > 1:
        remark += f", {flop_text(summary.flops * summary.devices)} in all"
    figures = ("instructions", "runs", "FLOPs", "bytes")
    return listed("contractions", remark, rows, names=("",), figures=figures)


def computations_view(summary: Summary, computations: Sequence[ComputationSummary]) -> RenderableType:
    """One row per computation: what calls it, how much is in it, how often it runs, and what it gives."""
    line = module_line(summary.name, summary.instructions, summary.computations, summary.devices)

    def cells(entry: ComputationSummary) -> Parts:
        caller = f"{entry.calling_opcode} {entry.calling_instruction}" if entry.calling_instruction is not None else ""
        is_entry = entry.name == summary.entry_name
        return [
            Text(entry.name, style="bold" if is_entry else ""),
            "the entry" if is_entry else caller,
            _shape_text(entry.result_shape),
            count_text(entry.instructions),
            count_text(entry.runs),
            flop_text(entry.flops) if entry.flops else "",
            byte_text(entry.parameter_bytes),
        ]

    names, figures = ("computation", "called by", "result"), ("instructions", "runs", "FLOPs", "inputs")
    count, hint = count_text(len(computations)), "--json lists all"
    table = listed(
        "computations", count, list(map(cells, computations)), *names, figures=figures, top=_MOST_ROWS, hint=hint
    )
    return Group(line, table)


def _histogram(title: str, counts: Mapping[str, int]) -> RenderableType:
    """Names and counts in as many columns as fit, largest first, read downwards."""
    cells = [Text.assemble((f"{count_text(count):>6} ", "cyan"), name) for name, count in counts.items()]
    return Titled(title, plural(len(counts), "kind"), _Flow(cells))


class _Flow:
    """Cells in columns, filled downwards, as many columns as the console is wide."""

    def __init__(self, cells: Sequence[Text]) -> None:
        self._cells = cells

    def __rich_console__(self, console: Console, options: object) -> Iterable[RenderableType]:
        width = max((len(cell) for cell in self._cells), default=1) + 2
        available = min(console.width, 120)
        columns = max(1, available // width)
        rows = -(-len(self._cells) // columns)
        table = plain_table(has_header=False)
        for row in range(rows):
            table.add_row(*self._cells[row::rows])
        yield table


def opcode_view(opcodes: Sequence[Entry]) -> RenderableType:
    """The table of opcodes: operands, attributes, and whether they run."""
    table = plain_table()
    table.add_column("opcode", no_wrap=True, min_width=max((len(entry.name) for entry in opcodes), default=0))
    table.add_column("operands", no_wrap=True, justify="right", min_width=8)
    table.add_column("runs", no_wrap=True, min_width=max((len(_status(entry)) for entry in opcodes), default=0))
    table.add_column("what it does")
    for entry in opcodes:
        first_line = Text(" ".join(entry.documentation.strip().partition("\n")[0].split()))
        table.add_row(entry.name, _operand_count(entry), _status(entry), first_line)
    supported = sum(entry.is_supported for entry in opcodes)
    return Group(table, Text(f"\n{plural(len(opcodes), 'opcode')}, {supported} of them run", style="dim"))


def _operand_count(entry: Entry) -> str:
    if entry.maximum_operands is None:
        return f"{entry.minimum_operands}…"
    if entry.minimum_operands == entry.maximum_operands:
        return str(entry.minimum_operands)
    return f"{entry.minimum_operands}–{entry.maximum_operands}"


def _status(entry: Entry) -> Text:
    if entry.is_supported:
        return Text("yes", style="green")
    return Text("not yet", style="yellow") if entry.role is not Role.MACHINE else Text("needs devices", style="yellow")


@frozen
class Computations:
    """The computations of a module."""

    called: tuple[ComputationSummary, ...] | None
    """The computations; None without --computations."""


REPORTS = {
    Module: Report(
        lambda found, *_: summary_view(summarize(found)),
        module=lambda found: found,
        watch="hloexec.tools.watching.recording.watch_values",
    )
}
