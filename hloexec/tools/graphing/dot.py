"""Graphs in Graphviz's language (https://graphviz.org/doc/info/lang.html): computations are clusters, and the scale of
the colours is the label of the whole.

Labels are HTML-like, in which `&`, `<` and `>` stand as entities. All other texts are quoted strings, in which `"` and
`\\` are escaped; so no name or metadata of a module can be taken for anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from hloexec.core.ir import ArrayShape, Literal, Shape, TupleShape
from hloexec.core.wording import counted, listing
from hloexec.errors import printable
from hloexec.language.origins import hlo_line, source_lines
from hloexec.language.text.shape_text import literal_text
from hloexec.ops.registry import Role, operation_name, role_of
from hloexec.tools.graphing.colours import Colours, ink
from hloexec.tools.graphing.flow import Place
from hloexec.tools.graphing.graphs import Cluster, Graph, Node

_FONT = "Helvetica,Arial,sans-serif"
_MOST_NAME, _MOST_SHAPE, _MOST_OPERANDS = 34, 40, 4
_ARROWS = {
    "data": "",
    "carried": 'style=dashed, constraint=false, class="carried"',
    "condition": 'style=dashed, class="condition"',
    "control": 'style=dotted, class="control"',
}


def dot(graph: Graph, *, has_tooltips: bool = True) -> str:
    """A graph as the text of a .dot file.

    Scalar constants are written into the instructions that take them. Dashed borders mean that neighbours are left out.
    """
    folded = _folded(graph)
    ids = node_ids(graph)
    lines = ["digraph hlo {"]
    lines.append(
        f'  graph [newrank=true, rankdir=TB, ranksep=0.35, nodesep=0.2, bgcolor=transparent, fontname="{_FONT}",'
    )
    lines.append(f"    fontsize=10, labelloc=b, labeljust=l, label=<{_legend(graph)}>];")
    lines.append(
        f'  node [shape=box, style="rounded,filled", fillcolor="#ffffff", color="#8a94a0", fontname="{_FONT}",'
    )
    lines.append('    fontsize=9, margin="0.1,0.05", height=0.3];')
    lines.append('  edge [color="#8a94a0", arrowsize=0.6];')
    within: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.place not in folded:
            within.setdefault(node.computation, []).append(
                f"{ids[node.place]} [{_node(graph, node, folded, has_tooltips)}];"
            )
    lines += _nested(graph, within)
    seen = set()
    for edge in graph.edges:
        key = edge.source, edge.target, edge.kind
        if edge.source not in folded and key not in seen:
            seen.add(key)
            attributes = _ARROWS[edge.kind]
            lines.append(f"  {ids[edge.source]} -> {ids[edge.target]}{f' [{attributes}]' if attributes else ''};")
    return "\n".join([*lines, "}", ""])


def node_ids(graph: Graph) -> dict[Place, str]:
    """The identifiers of the nodes, which do not depend on their names."""
    return {node.place: f"n{number}" for number, node in enumerate(graph.nodes)}


def _folded(graph: Graph) -> dict[Place, str]:
    """The scalar constants that are taken by others in the graph, with their texts."""
    found: dict[Place, str] = {}
    taken = {edge.source for edge in graph.edges if edge.kind == "data"}
    for node in graph.nodes:
        shape = node.instruction.shape
        if role_of(node.instruction) is not Role.CONSTANT or node.place not in taken or node.place == graph.around:
            continue
        literal = node.instruction.attributes.literal
        if isinstance(shape, ArrayShape) and not shape.dimensions and isinstance(literal, Literal):
            found[node.place] = _cut(literal_text(literal), 12)
    return found


def _nested(graph: Graph, within: dict[str, list[str]]) -> Iterator[str]:
    """The lines of all nodes, in clusters within clusters. What the graph begins with has none around it."""
    children: dict[str | None, list[Cluster]] = {}
    present = {cluster.computation for cluster in graph.clusters}
    for cluster in graph.clusters:
        parent = cluster.caller[0] if cluster.caller is not None and cluster.caller[0] in present else None
        children.setdefault(parent, []).append(cluster)
    number = 0
    stack: list[str | Cluster] = list(reversed(children.get(None, [])))
    depth = 1
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if item == "}":
                depth -= 1
            yield "  " * depth + item
            continue
        is_first = item.computation == graph.computation
        if not is_first:
            yield "  " * depth + f"subgraph cluster_{number} {{"
            depth += 1
            yield "  " * depth + f"graph [{_cluster(graph, item)}];"
            stack.append("}")
            number += 1
        stack += reversed([*within.get(item.computation, []), *children.get(item.computation, [])])


def _cluster(graph: Graph, cluster: Cluster) -> str:
    colours = graph.colours
    name = _text(_cut(cluster.computation, _MOST_NAME))
    label, border = f"<B>{name}</B>", "#b4bcc6"
    pen = 'penwidth=1, class="computation"'
    if cluster.caller is not None:
        caller = graph.module.by_name[cluster.caller[0]].by_name[cluster.caller[1]]
        opcode = _text(operation_name(caller))
        label = f"<B>{_text(_cut(caller.name, _MOST_NAME))}</B>  {opcode}"
        if cluster.is_opened and cluster.caller == graph.around:
            border, pen = "#2563eb", 'penwidth=3, class="computation around"'
        if cluster.is_opened:
            step = colours.step(cluster.caller) if colours is not None else None
            if step is not None and cluster.caller != graph.around:
                border, pen = step.colour, 'penwidth=3, class="computation coloured"'
            if colours is not None and cluster.caller in colours.texts:
                label += f"  {_text(colours.texts[cluster.caller])}"
        else:
            label += f": <B>{name}</B>"
    return f'style=rounded, color="{border}", {pen}, fontsize=9, labeljust=l, labelloc=t, label=<{label}>'


def _node(graph: Graph, node: Node, folded: dict[Place, str], has_tooltips: bool) -> str:
    colours, place = graph.colours, node.place
    attributes = [f"label=<{_label(graph, node, folded)}>"]
    classes = []
    step = colours.step(place) if colours is not None else None
    if step is not None:
        classes.append("coloured")
        attributes.append(f'fillcolor="{step.colour}", fontcolor="{ink(step.colour)}"')
    if node.has_more:
        classes.append("more")
        attributes.append('style="rounded,filled,dashed"')
    if place == graph.around:
        classes.append("around")
        attributes.append('penwidth=3, color="#2563eb"')
    elif colours is not None and place in colours.marked:
        classes.append("marked")
        attributes.append('penwidth=2.5, color="#b01f2e"')
    if classes:
        attributes.append(f'class="{" ".join(classes)}"')
    if has_tooltips:
        attributes.append(f"tooltip={_quoted(tooltip(graph, node))}")
    return ", ".join(attributes)


def _label(graph: Graph, node: Node, folded: dict[Place, str]) -> str:
    """Name, operation and shape, and what the colours say."""
    instruction = node.instruction
    name, opcode = instruction.name, operation_name(instruction)
    takes = {edge.operand: edge.source for edge in graph.takes[node.place] if edge.kind == "data"}
    operands = ""
    if not folded.keys().isdisjoint(takes.values()):
        shown = (folded.get(takes.get(number, ("", "")), "·") for number in range(len(instruction.operands)))
        operands = f"({listing(shown, _MOST_OPERANDS)})"
    is_told = name == opcode or name.startswith(f"{opcode}.")
    what = [] if is_told and not operands else [_cut(opcode, _MOST_NAME) + operands]
    lines = [f"<B>{_text(_cut(name, _MOST_NAME))}</B>"]
    lines.append(_text("  ".join([*what, _shape(instruction.shape)])))
    if graph.colours is not None and node.place in graph.colours.texts:
        lines.append(f"<I>{_text(graph.colours.texts[node.place])}</I>")
    return "<BR/>".join(lines)


def _shape(shape: Shape) -> str:
    """A shape in a few characters; a tuple's elements as far as there is room."""
    if not isinstance(shape, TupleShape):
        return _cut(str(shape), _MOST_SHAPE)
    shown: list[str] = []
    for element in shape.elements:
        text = "(…)" if isinstance(element, TupleShape) else str(element)
        if len(", ".join([*shown, text])) > _MOST_SHAPE - 10:
            return f"({', '.join([*shown, '…'])}) {len(shape.elements)} elements"
        shown.append(text)
    return f"({', '.join(shown)})"


def tooltip(graph: Graph, node: Node) -> str:
    """Everything that there is to say of an instruction, in lines."""
    instruction, colours = node.instruction, graph.colours
    lines = [hlo_line(instruction), f"in {node.computation}"]
    if instruction.op_name:
        lines.append(f"op_name {instruction.op_name}")
    lines += [f"from {line}" for line in source_lines(graph.module, instruction)[:4]]
    for texts in (colours.texts, colours.notes) if colours is not None else ():
        if node.place in texts:
            lines.append(texts[node.place])
    if node.has_more:
        lines.append("has neighbours that are left out here")
    return "\n".join(printable(line) for line in lines)


def _legend(graph: Graph) -> str:
    """The scale of the colours as a table, beneath what is shown."""
    what = graph.module.name
    if graph.around is not None and graph.distance is not None:
        steps = counted(graph.distance, "step")
        what += f", {steps} around {graph.around[1]} in {graph.around[0]}"
    elif graph.computation != graph.module.entry_name:
        what += f", computation {graph.computation}"
    rows = [f'<TR><TD ALIGN="LEFT" COLSPAN="20">{_text(_cut(what, 100))}</TD></TR>']
    if graph.colours is not None:
        rows += _scale(graph.colours)
    borders = [("blue", "what it is around")] if graph.around is not None else []
    if graph.colours is not None and any(node.place in graph.colours.marked for node in graph.nodes):
        borders.append(("red", graph.colours.meaning or "marked"))
    if any(node.has_more for node in graph.nodes):
        borders.append(("dashed", "has neighbours that are left out"))
    if borders:
        said = "; ".join(f"{border}: {meaning}" for border, meaning in borders)
        rows.append(f'<TR><TD ALIGN="LEFT" COLSPAN="20">borders: {_text(said)}</TD></TR>')
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1" CELLPADDING="3">{"".join(rows)}</TABLE>'


def _scale(colours: Colours) -> Iterator[str]:
    yield f'<TR><TD ALIGN="LEFT" COLSPAN="20">{_text(_cut(colours.title, 100))}</TD></TR>'
    if not colours.steps:
        yield '<TR><TD ALIGN="LEFT" COLSPAN="20">no instruction has a number that is not 0</TD></TR>'
        return
    cells = (
        f'<TD BGCOLOR="{step.colour}"><FONT COLOR="{ink(step.colour)}">{_text(step.label)}</FONT></TD>'
        for step in colours.steps
    )
    yield f"<TR>{''.join(cells)}</TR>"


def _cut(text: str, most: int) -> str:
    """A text with its middle left out where it is long."""
    if len(text) <= most:
        return text
    return f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _text(text: str) -> str:
    """A text within an HTML-like label."""
    shown = printable(text).replace("\n", " ")
    return escape(shown, quote=True) or " "


def _quoted(text: str) -> str:
    """A quoted string of a tooltip, in which a `\\` begins an escape, and a `&` an entity."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("&", "&amp;")
    return f'"{escaped}"'
