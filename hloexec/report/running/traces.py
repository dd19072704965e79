"""Reports of `hloexec trace`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import ArrayShape
from hloexec.core.wording import byte_text, count_text, number_text, plural
from hloexec.report.layout import Command, Parts, next_steps, plain_table
from hloexec.tools.tracing.recording import Remarkable
from hloexec.tools.tracing.running import Traced


def trace_view(traced: Traced, folder: str, module: str, command: Command) -> RenderableType:
    """The verdict, the notable events, and the next command."""
    extent = f"{count_text(traced.events)} values of {plural(traced.instructions, 'instruction')}"
    size = "statistics only" if traced.trace.information["statistics_only"] else byte_text(traced.value_bytes)
    parts: Parts = [Text.assemble(("traced ", "bold"), f"{module}: {extent}, {size}, in {folder}")]
    if traced.remarkable:
        parts.append(_remarkable(traced.remarkable))
    commands = [f'python -c "import hloexec; print(next(iter(hloexec.read_trace({folder!r}))))"']
    if any(entry.leaf.nan_count or entry.leaf.infinity_count for entry in traced.remarkable):
        commands.insert(0, command("nan"))
    elif traced.remarkable:
        commands.insert(0, command("extract", "--instruction", traced.remarkable[0].name, "-o", "slice"))
    parts.append(next_steps(*commands))
    return Group(*parts)


def _remarkable(entries: Sequence[Remarkable]) -> RenderableType:
    """One row per event, with its whole path."""
    table = plain_table("notable values")
    for name in ("shape", "min", "mean", "max", "nan", "inf"):
        table.add_column(name, justify="left" if name == "shape" else "right", no_wrap=True)
    for entry in entries:
        leaf = entry.leaf
        numbers = [number_text(leaf.minimum), number_text(leaf.mean, 3), number_text(leaf.maximum)]
        counts = [
            Text(count_text(count), "bold red" if count else "dim") for count in (leaf.nan_count, leaf.infinity_count)
        ]
        shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
        devices = "" if entry.devices == (0,) else f" on {','.join(map(str, entry.devices))}"
        table.add_row(entry.name + devices, shape, *numbers, *counts)
    return Group("", table)
