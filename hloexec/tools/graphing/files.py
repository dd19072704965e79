r"""Files of graphs: in Graphviz's language, as SVG images, and as JSON that Model Explorer opens.

Graphs in Graphviz's language (https://graphviz.org/doc/info/lang.html): computations are clusters, and the scale of
the colours is the label of the whole.

Labels are HTML-like, in which `&`, `<` and `>` stand as entities. All other texts are quoted strings, in which `"` and
`\` are escaped; so no name or metadata of a module can be taken for anything else.

Graphs as SVG images, laid out by the program `dot` of Graphviz.

An image stands for itself or within a page of HTML: it has no script, refers to nothing outside, has no identifiers,
and all of its style is for elements within `.hlo-graph`. Its custom properties `--hlo-ink`, `--hlo-line`, `--hlo-node`
and `--hlo-group` are the colours that differ between light and dark pages; a page with a choice may set them.

Files of graphs, by what their names end in; among them JSON that Model Explorer opens.

A node's namespace is where it is: the scopes of the name that a framework gave it, and the loops, branches and fusions
around it. Computations that are no part of the data flow, such as those of reductions, are graphs of their own, which
the instructions that apply them name as their subgraphs.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hloexec.analysis.calls import calls_of
from hloexec.core.arguments import require_path
from hloexec.core.files import open_atomically, require_writable
from hloexec.core.ir import ArrayShape, Instruction, Literal, Shape, TupleShape
from hloexec.core.wording import argument, counted, listing
from hloexec.errors import HloError, InputError, ResourceError, UnsupportedError, os_errors_named, printable
from hloexec.language.origins import hlo_line, source_lines
from hloexec.language.text.shapes import literal_text
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, operation_name, role_of
from hloexec.tools.graphing.flow import Colours, Flow, Place, ink
from hloexec.tools.graphing.graphs import Cluster, Graph, Node, whole

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
    texts: dict[Place, str] = {}
    taken = {edge.source for edge in graph.edges if edge.kind == "data"}
    for node in graph.nodes:
        shape = node.instruction.shape
        if role_of(node.instruction) is not Role.CONSTANT or node.place not in taken or node.place == graph.around:
            continue
        literal = node.instruction.attributes.literal
        if isinstance(shape, ArrayShape) and not shape.dimensions and isinstance(literal, Literal):
            texts[node.place] = _cut(literal_text(literal), 12)
    return texts


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
    operation = [] if is_told and not operands else [_cut(opcode, _MOST_NAME) + operands]
    lines = [f"<B>{_text(_cut(name, _MOST_NAME))}</B>"]
    lines.append(_text("  ".join([*operation, _shape(instruction.shape)])))
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
    title = graph.module.name
    if graph.around is not None and graph.distance is not None:
        steps = counted(graph.distance, "step")
        title += f", {steps} around {graph.around[1]} in {graph.around[0]}"
    elif graph.computation != graph.module.entry_name:
        title += f", computation {graph.computation}"
    rows = [f'<TR><TD ALIGN="LEFT" COLSPAN="20">{_text(_cut(title, 100))}</TD></TR>']
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


MOST_NODES = 1000
"""Of an image. For narrow graphs of additions of random operands, which are harder than modules, `dot` takes about 5 s
for 500 nodes, 11 s for 1000 with fewer rounds, and more than 100 s for 2000."""
_MANY_NODES = 300
_FEWER_ROUNDS = ("-Gnslimit=2", "-Gnslimit1=2", "-Gmclimit=0.3")
"""Of improving the layout."""
_TIMEOUT = 120
_SVG = "http://www.w3.org/2000/svg"
_LIGHT = "--hlo-ink:#1b1f24;--hlo-line:#7a8594;--hlo-node:#ffffff;--hlo-group:#f4f6f9"
_DARK = "--hlo-ink:#e6e9ee;--hlo-line:#8d99a8;--hlo-node:#262c36;--hlo-group:#1d222b"
_STYLE = f"""
.hlo-graph{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{.hlo-graph{{{_DARK}}}}}
svg.hlo-graph:root{{color-scheme:light dark;background:#ffffff}}
@media (prefers-color-scheme:dark){{svg.hlo-graph:root{{background:#14181f}}}}
.hlo-graph text:not([fill]){{fill:var(--hlo-ink)}}
.hlo-graph .node:not(.coloured) path{{fill:var(--hlo-node)}}
.hlo-graph .cluster>path{{fill:var(--hlo-group)}}
.hlo-graph .edge path{{stroke:var(--hlo-line)}}
.hlo-graph .edge polygon{{stroke:var(--hlo-line);fill:var(--hlo-line)}}
.hlo-graph .node:hover path{{stroke-width:3}}
"""


def svg(graph: Graph) -> str:
    """A graph as an SVG image; each instruction's group has `data-computation`, `data-instruction`, and a tooltip.

    Raises UnsupportedError where there is no program `dot`, and ResourceError where the graph has too many instructions
    to be laid out.
    """
    require_few(graph)
    options = _FEWER_ROUNDS if len(graph.nodes) > _MANY_NODES else ()
    root = ElementTree.fromstring(_laid_out(dot(graph, has_tooltips=False), options))
    _finish(root, graph)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def require_few(graph: Graph) -> None:
    """ResourceError where a graph is too large for an image."""
    if len(graph.nodes) <= MOST_NODES:
        return
    if graph.around is not None:
        remedy = f"choose a smaller distance than {graph.distance}"
    else:
        remedy = f"draw what is around one instruction ({argument('around', 'NAME')})"
    raise ResourceError(
        f"the graph has {len(graph.nodes)} instructions, and an image may have {MOST_NODES}; {remedy}, or write a "
        ".json file for Model Explorer"
    )


def require_dot() -> str:
    """The path of the program `dot`; UnsupportedError where there is none."""
    program = shutil.which("dot")
    if program is None:
        raise UnsupportedError(
            "an SVG image is laid out by the program `dot` of Graphviz, which is not on the PATH; install Graphviz "
            "(https://graphviz.org/download), or write a .dot or a .json file"
        )
    return program


def _laid_out(text: str, options: tuple[str, ...]) -> bytes:
    command = [require_dot(), "-Tsvg", *options]
    try:
        ended = subprocess.run(command, input=text.encode(), capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            f"`dot` has not laid out the graph within {_TIMEOUT} s; draw what is around one instruction "
            f"({argument('around', 'NAME')}), "
            "or write a .json file for Model Explorer"
        ) from error
    except OSError as error:
        raise UnsupportedError(f"cannot run `dot` of Graphviz: {error.strerror or error}") from error
    if ended.returncode or not ended.stdout:
        said = " ".join(ended.stderr.decode(errors="replace").split())[:300]
        raise HloError(f"`dot` of Graphviz has failed with exit code {ended.returncode}: {said or 'it says nothing'}")
    return ended.stdout


def _finish(root: ElementTree.Element, graph: Graph) -> None:
    """Make the image scale, and give it style, tooltips and names."""
    nodes = dict(zip(node_ids(graph).values(), graph.nodes, strict=True))
    root.set("class", "hlo-graph")
    root.set("role", "img")
    root.set("style", f"max-width:{root.get('width', '').replace('pt', 'px')};width:100%;height:auto")
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.insert(0, _element("style", _STYLE))
    root.insert(0, _element("title", str(graph)))
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)
        title = group.find(f"{{{_SVG}}}title")
        if title is None:
            continue
        node = nodes.get(title.text or "")
        if node is None:
            group.remove(title)
        else:
            title.text = tooltip(graph, node)
            group.set("data-computation", node.computation)
            group.set("data-instruction", node.instruction.name)


def _element(name: str, text: str) -> ElementTree.Element:
    element = ElementTree.Element(f"{{{_SVG}}}{name}")
    element.text = text
    return element


_LARGEST = sys.float_info.max
"""Stands for what is infinite or NaN, which JSON does not have."""


def graph_collection(shown_graph: Graph) -> dict[str, Any]:
    """The graph, and those of the computations that its instructions apply, as a `GraphCollection`."""
    graphs = {shown_graph.computation: shown_graph}
    queue = [shown_graph]
    for graph in queue:
        for node in graph.nodes:
            for name in _applied(graph, node.instruction):
                if name not in graphs:
                    graphs[name] = whole(Flow(shown_graph.module, name))
                    queue.append(graphs[name])
    return {
        "label": printable(shown_graph.module.name),
        "graphs": [_graph(graph, name) for name, graph in graphs.items()],
        "graphSorting": "node_count_desc",
    }


def node_data(graph: Graph) -> dict[str, Any]:
    """The numbers of a graph's instructions and the colours of these, as a `ModelNodeData`; empty without colours."""
    colours = graph.colours
    if colours is None:
        return {}
    results = {
        _identifier(node.place): {"value": _finite(colours.values[node.place])}
        for node in graph.nodes
        if node.place in colours.values
    }
    lowest = [] if colours.steps and colours.steps[0].most == 0 else [{"value": 0, "bgColor": "#ffffff"}]
    thresholds = [
        {"value": _finite(step.most), "bgColor": step.colour, "textColor": ink(step.colour)} for step in colours.steps
    ]
    if colours.steps and not all(map(math.isfinite, colours.values.values())):
        thresholds[-1]["value"] = _LARGEST
    data = {"name": printable(colours.title), "results": results, "thresholds": [*lowest, *thresholds]}
    return {graph.computation: data}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LARGEST


def _identifier(place: Place) -> str:
    return "/".join(map(_component, place))


def _component(name: str) -> str:
    """A name within a path, of which `/` joins the parts."""
    return name.replace("%", "%25").replace("/", "%2F")


def _applied(graph: Graph, instruction: Instruction) -> list[str]:
    """The computations of an instruction that are not in the graph as a part of the data flow."""
    names = dict.fromkeys(computation_names(instruction.attributes))
    called = graph.opened.intersection(call.computation for call in calls_of(instruction)) if names else ()
    return [name for name in names if name not in called]


def _graph(graph: Graph, name: str) -> dict[str, Any]:
    namespaces = _namespaces(graph)
    groups = {
        namespace: dict(_group(graph, cluster))
        for cluster in graph.clusters
        if (namespace := namespaces[cluster.computation][0])
    }
    return {
        "id": name,
        "nodes": [_explorer_node(graph, node, namespaces) for node in graph.nodes],
        "groupNodeAttributes": groups,
    }


def _group(graph: Graph, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What is said of a computation."""
    yield "computation", printable(cluster.computation)
    if cluster.caller is not None:
        caller = graph.module.by_name[cluster.caller[0]].by_name[cluster.caller[1]]
        yield "called by", printable(hlo_line(caller))
        if graph.colours is not None and cluster.caller in graph.colours.texts:
            yield graph.colours.title, graph.colours.texts[cluster.caller]


def _namespaces(graph: Graph) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each computation its namespace, and the scopes of the op_name of what calls it."""
    namespaces: dict[str, tuple[str, tuple[str, ...]]] = {}
    for cluster in graph.clusters:
        parts: tuple[str, ...] = ()
        scopes: tuple[str, ...] = ()
        caller = cluster.caller
        if caller is not None and caller[0] in namespaces:
            instruction = graph.module.by_name[caller[0]].by_name[caller[1]]
            parts = (_namespace(namespaces[caller[0]], instruction), _component(instruction.name))
            scopes = tuple(_scopes(instruction))
            if not cluster.is_opened:
                parts += (_component(cluster.computation),)
        elif cluster.computation != graph.computation:
            parts = (_component(cluster.computation),)
        namespaces[cluster.computation] = "/".join(filter(None, parts)), scopes
    return namespaces


def _namespace(around: tuple[str, tuple[str, ...]], instruction: Instruction) -> str:
    """The namespace of an instruction: that of its computation, and the scopes of its op_name that the instruction
    which calls the computation does not have."""
    namespace, outer = around
    scopes = _scopes(instruction)[:-1]
    common = 0
    for ours, theirs in zip(scopes, outer, strict=False):
        if ours != theirs:
            break
        common += 1
    return "/".join(filter(None, (namespace, *scopes[common:])))


def _scopes(instruction: Instruction) -> list[str]:
    """The parts of the name that a framework gave an instruction, e.g. `jit(f)`, `layer`, `mul`."""
    return [part for part in printable(instruction.op_name or "").split("/") if part.strip()]


def _explorer_node(graph: Graph, node: Node, namespaces: dict[str, tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    instruction, colours = node.instruction, graph.colours
    attributes = [
        ("opcode", operation_name(instruction)),
        ("shape", str(instruction.shape)),
        ("computation", node.computation),
        ("hlo", hlo_line(instruction)),
        ("op_name", instruction.op_name or ""),
        ("source", "\n".join(map(str, source_lines(graph.module, instruction)))),
    ]
    if colours is not None:
        attributes += [(colours.title, colours.texts.get(node.place, "")), ("note", colours.notes.get(node.place, ""))]
    return {
        "id": _identifier(node.place),
        "label": printable(instruction.name),
        "namespace": _namespace(namespaces[node.computation], instruction),
        "subgraphIds": _applied(graph, instruction),
        "attrs": [{"key": key, "value": printable(value)} for key, value in attributes if value],
        "incomingEdges": [
            {
                "sourceNodeId": _identifier(edge.source),
                "sourceNodeOutputId": "0",
                "targetNodeInputId": str(edge.operand),
            }
            for edge in graph.takes[node.place]
        ],
        "outputsMetadata": [{"id": "0", "attrs": [{"key": "shape", "value": printable(str(instruction.shape))}]}],
    }


FORMATS = (".dot", ".svg", ".json")


def format_of(path: str | os.PathLike[str]) -> str:
    """How the name of a file ends; InputError where that is no format of graphs."""
    require_path("path", path)
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{os.fspath(path)!r} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return suffix


def require_savable(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Raise what `save` would raise for the graph and the file's name, before its colours take a long run."""
    suffix = format_of(path)
    require_writable(path)
    if suffix == ".svg":
        require_few(graph)
        require_dot()


def save(graph: Graph, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Write a graph, and beside a .json file with colours one that ends in .node-data.json; returns their names.

    Raises InputError where the name ends otherwise or the file cannot be written, and what `svg` raises.
    """
    suffix = format_of(path)
    texts = {os.fspath(path): ""}
    if suffix == ".json":
        texts[os.fspath(path)] = _json(graph_collection(graph))
        if graph.colours is not None:
            texts[os.fspath(Path(path).with_suffix(".node-data.json"))] = _json(node_data(graph))
    else:
        texts[os.fspath(path)] = dot(graph) if suffix == ".dot" else svg(graph)
    for name, text in texts.items():
        with os_errors_named(f"write {name!r}"), open_atomically(name) as file:
            file.write(text.encode(errors="replace"))
    return tuple(texts)


def _json(record: Mapping[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
