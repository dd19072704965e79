"""What `hloexec trace` says when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloexec.ir import ArrayShape
from hloexec.report.records import leaf_records
from hloexec.report.tables import next_steps
from hloexec.report.units import byte_text, count_text, number_text, plural
from hloexec.tracing.recording import Remarkable
from hloexec.tracing.running import Traced

__all__ = ["trace_record", "trace_view"]


def trace_view(traced: Traced, folder: str, module: str, command: Callable[..., str]) -> RenderableType:
    """The verdict, the events that stand out, and how to go on."""
    what = f"{count_text(traced.events)} values of {plural(traced.instructions, 'instruction')}"
    size = "statistics only" if traced.trace.information["statistics_only"] else byte_text(traced.value_bytes)
    parts: list[RenderableType] = [Text.assemble(("traced ", "bold"), f"{module}: {what}, {size}, in {folder}")]
    if traced.remarkable:
        parts.append(_remarkable(traced.remarkable))
    commands = []
    has_bad = any(entry.leaf.nan_count or entry.leaf.infinity_count for entry in traced.remarkable)
    if has_bad:
        commands.append(command("nan"))
    elif traced.remarkable:
        name = traced.remarkable[0].name
        commands.append(command("extract", "--instruction", name, "-o", "slice"))
    commands.append(f'python -c "import hloexec; print(next(iter(hloexec.read_trace({folder!r}))))"')
    parts.append(next_steps(*commands))
    return Group(*parts)


def _remarkable(entries: Sequence[Remarkable]) -> RenderableType:
    """One row per event, with its whole path."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what stands out", overflow="fold")
    for name in ("shape", "min", "mean", "max", "nan", "inf"):
        table.add_column(name, justify="left" if name == "shape" else "right", no_wrap=True)
    for entry in entries:
        leaf = entry.leaf
        numbers = [number_text(leaf.minimum), number_text(leaf.mean, 3), number_text(leaf.maximum)]
        counts = [
            Text(count_text(count), "bold red" if count else "dim") for count in (leaf.nan_count, leaf.infinity_count)
        ]
        shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
        table.add_row(Text(_label(entry.name, entry.devices)), shape, *numbers, *counts)
    return Group(Text(""), table)


def _label(name: str, devices: tuple[int, ...]) -> str:
    return name if devices == (0,) else f"{name} on {','.join(map(str, devices))}"


def trace_record(traced: Traced, folder: str) -> dict[str, object]:
    """The same as `trace_view`."""
    rows = leaf_records([(entry.name, entry.leaf) for entry in traced.remarkable])
    for row, entry in zip(rows, traced.remarkable, strict=True):
        row["devices"] = list(entry.devices)
    return {
        "folder": folder,
        **traced.trace.information,
        "instructions": traced.instructions,
        "value_bytes": traced.value_bytes,
        "remarkable": rows,
    }
