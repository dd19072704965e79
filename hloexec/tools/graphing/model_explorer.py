"""Graphs as JSON that Model Explorer opens (https://github.com/google-ai-edge/model-explorer): a collection of graphs,
and the data of their nodes, which have the colours.

A node's namespace is where it is: the scopes of the name that a framework gave it, and the loops, branches and fusions
around it. Computations that are no part of the data flow, such as those of reductions, are graphs of their own, which
the instructions that apply them name as their subgraphs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

from hloexec.analysis.calls import calls_of
from hloexec.core.ir import Instruction
from hloexec.errors import printable
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import operation_name
from hloexec.tools.graphing.colours import ink
from hloexec.tools.graphing.flow import Flow, Place
from hloexec.tools.graphing.graphs import Cluster, Graph, Node, whole

_LARGEST = sys.float_info.max
"""Stands for what is infinite or NaN, which JSON does not have."""


def graph_collection(found: Graph) -> dict[str, Any]:
    """The graph, and those of the computations that its instructions apply, as a `GraphCollection`."""
    graphs = {found.computation: found}
    queue = [found]
    for each in queue:
        for node in each.nodes:
            for name in _applied(each, node.instruction):
                if name not in graphs:
                    graphs[name] = whole(Flow(found.module, name))
                    queue.append(graphs[name])
    return {
        "label": printable(found.module.name),
        "graphs": [_graph(each, name) for name, each in graphs.items()],
        "graphSorting": "node_count_desc",
    }


def node_data(found: Graph) -> dict[str, Any]:
    """The numbers of a graph's instructions and the colours of these, as a `ModelNodeData`; empty without colours."""
    colours = found.colours
    if colours is None:
        return {}
    results = {
        _identifier(node.place): {"value": _finite(colours.values[node.place])}
        for node in found.nodes
        if node.place in colours.values
    }
    lowest = [] if colours.steps and colours.steps[0].most == 0 else [{"value": 0, "bgColor": "#ffffff"}]
    thresholds = [
        {"value": _finite(step.most), "bgColor": step.colour, "textColor": ink(step.colour)} for step in colours.steps
    ]
    if colours.steps and not all(map(math.isfinite, colours.values.values())):
        thresholds[-1]["value"] = _LARGEST
    data = {"name": printable(colours.title), "results": results, "thresholds": [*lowest, *thresholds]}
    return {found.computation: data}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LARGEST


def _identifier(place: Place) -> str:
    return "/".join(map(_component, place))


def _component(name: str) -> str:
    """A name within a path, of which `/` joins the parts."""
    return name.replace("%", "%25").replace("/", "%2F")


def _applied(found: Graph, instruction: Instruction) -> list[str]:
    """The computations of an instruction that are not in the graph as a part of the data flow."""
    names = dict.fromkeys(computation_names(instruction.attributes))
    called = found.opened.intersection(call.computation for call in calls_of(instruction)) if names else ()
    return [name for name in names if name not in called]


def _graph(found: Graph, name: str) -> dict[str, Any]:
    namespaces = _namespaces(found)
    groups = {
        namespace: dict(_group(found, cluster))
        for cluster in found.clusters
        if (namespace := namespaces[cluster.computation][0])
    }
    return {
        "id": name,
        "nodes": [_node(found, node, namespaces) for node in found.nodes],
        "groupNodeAttributes": groups,
    }


def _group(found: Graph, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What is said of a computation."""
    yield "computation", printable(cluster.computation)
    if cluster.caller is not None:
        caller = found.module.by_name[cluster.caller[0]].by_name[cluster.caller[1]]
        yield "called by", printable(hlo_line(caller))
        if found.colours is not None and cluster.caller in found.colours.texts:
            yield found.colours.title, found.colours.texts[cluster.caller]


def _namespaces(found: Graph) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each computation its namespace, and the scopes of the op_name of what calls it."""
    namespaces: dict[str, tuple[str, tuple[str, ...]]] = {}
    for cluster in found.clusters:
        parts: tuple[str, ...] = ()
        scopes: tuple[str, ...] = ()
        caller = cluster.caller
        if caller is not None and caller[0] in namespaces:
            instruction = found.module.by_name[caller[0]].by_name[caller[1]]
            parts = (_namespace(namespaces[caller[0]], instruction), _component(instruction.name))
            scopes = tuple(_scopes(instruction))
            if not cluster.is_opened:
                parts += (_component(cluster.computation),)
        elif cluster.computation != found.computation:
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


def _node(found: Graph, node: Node, namespaces: dict[str, tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    instruction, colours = node.instruction, found.colours
    attributes = [
        ("opcode", operation_name(instruction)),
        ("shape", str(instruction.shape)),
        ("computation", node.computation),
        ("hlo", hlo_line(instruction)),
        ("op_name", instruction.op_name or ""),
        ("source", "\n".join(map(str, source_lines(found.module, instruction)))),
    ]
    if colours is not None:
        attributes += [(colours.title, colours.texts.get(node.place, "")), ("note", colours.notes.get(node.place, ""))]
    return {
        "id": _identifier(node.place),
        "label": printable(instruction.name),
        "namespace": _namespace(namespaces[node.computation], instruction),
        "subgraphIds": _applied(found, instruction),
        "attrs": [{"key": key, "value": printable(value)} for key, value in attributes if value],
        "incomingEdges": [
            {
                "sourceNodeId": _identifier(edge.source),
                "sourceNodeOutputId": "0",
                "targetNodeInputId": str(edge.operand),
            }
            for edge in found.takes[node.place]
        ],
        "outputsMetadata": [{"id": "0", "attrs": [{"key": "shape", "value": printable(str(instruction.shape))}]}],
    }
