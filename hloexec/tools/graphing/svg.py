"""Graphs as SVG images, laid out by the program `dot` of Graphviz.

An image stands for itself or within a page of HTML: it has no script, refers to nothing outside, has no identifiers,
and all of its style is for elements within `.hlo-graph`. Its custom properties `--hlo-ink`, `--hlo-line`, `--hlo-node`
and `--hlo-group` are the colours that differ between light and dark pages; a page with a choice may set them.
"""

from __future__ import annotations

import shutil
import subprocess
from xml.etree import ElementTree

from hloexec.core.wording import argument
from hloexec.errors import HloError, ResourceError, UnsupportedError
from hloexec.tools.graphing.dot import dot, node_ids, tooltip
from hloexec.tools.graphing.graphs import Graph

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
    nodes = {identifier: node for (_, identifier), node in zip(node_ids(graph).items(), graph.nodes, strict=True)}
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
    found = ElementTree.Element(f"{{{_SVG}}}{name}")
    found.text = text
    return found
