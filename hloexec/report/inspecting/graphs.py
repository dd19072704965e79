"""Reports of `hloexec graph`: what was drawn, by what it is coloured, and how to look at it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.structs import frozen
from hloexec.core.wording import plural
from hloexec.report.layout import Parts, Titled, next_steps, plain_table
from hloexec.tools.graphing import Graph

_MOST_ROWS = 10


def graph_view(graph: Graph, files: Sequence[str]) -> RenderableType:
    """What was written, and the instructions with the largest numbers."""
    extent = f"computation {graph.computation}" if graph.around is None else f"around %{graph.around[1]}"
    headline = Text.assemble(
        (graph.module.name, "bold"),
        f"  {plural(len(graph.nodes), 'instruction')}, {extent}, in {' and '.join(files)}",
    )
    parts: Parts = [headline]
    colours = graph.colours
    if colours is not None:
        present = [node for node in graph.nodes if colours.step(node.place) is not None]
        present.sort(key=lambda node: (node.place not in colours.marked, -colours.values[node.place]))
        table = plain_table("instruction", "opcode", "computation", "")
        for node in present[:_MOST_ROWS]:
            step = colours.step(node.place)
            text = colours.texts.get(node.place, "" if step is None else step.label)
            table.add_row(*map(Text, (f"%{node.instruction.name}", node.instruction.opcode, node.computation, text)))
        remark = f"{plural(len(present), 'instruction')} coloured" if present else "no instruction is coloured"
        parts.append(Titled(colours.title, remark, table) if present else Text(f"\n{colours.title}: {remark}"))
    if files[0].lower().endswith(".json"):
        words = ["model-explorer", files[0], *(f"--node_data_paths={name}" for name in files[1:])]
        parts.append(next_steps(shlex.join(words)))
    return Group(*parts)


@frozen
class Files:
    """What was drawn, and how."""

    files: tuple[str, ...]
    """The files that were written."""
    dot: str | None
    """The graph in Graphviz's language; None where files were written."""
