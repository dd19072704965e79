"""The graph around an instruction, laid out by Graphviz where that is installed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from xml.etree import ElementTree

from hloexec.core.ir import Module
from hloexec.core.wording import number_text, plural
from hloexec.errors import HloError, UnsupportedError, printable
from hloexec.report.html.content import Figure
from hloexec.report.html.instructions import anchor_of
from hloexec.tools.graphing import Colours, graph, quantity
from hloexec.tools.watching.recording import Key

_SCALE = 4 / 3
"""From points to pixels."""
_MANY, _MOST = 30, 80
"""More instructions than these are drawn up to one edge away only; not at all."""


def colours_of(title: str, values: Mapping[Key, float]) -> Colours | None:
    """The colours of the instructions of graphs; None where there is nothing to colour them by."""
    known = {key: value for key, value in values.items() if value > 0}
    return (
        quantity(title, known, lambda value: number_text(value, 2) if math.isfinite(value) else "∞") if known else None
    )


def neighbourhood(module: Module, key: Key, colours: Colours | None) -> tuple[Figure | None, str]:
    """The plot, or a sentence that says why there is none."""
    try:
        for distance in (2, 1):
            found = graph(module, computation=key[0], around=key[1], distance=distance, colours=colours)
            if len(found.nodes) <= _MANY:
                break
        if len(found.nodes) > _MOST:
            return None, f"There is no graph of what is around it: {plural(len(found.nodes), 'instruction')} are."
        svg = _inline(found.svg())
    except UnsupportedError:
        return None, "There is no graph of what is around it: the program dot of Graphviz is not installed."
    except HloError as error:
        return None, f"There is no graph of what is around it: {printable(error.message)}"
    edges = "one edge" if distance == 1 else f"{distance} edges"
    title = f"The graph around it, up to {edges} away"
    note = f"coloured by {colours.title}" if colours is not None else ""
    return Figure(title, f"{title}: {found}", svg, note, is_wide=True, is_graph=True), ""


def _inline(svg: str) -> str:
    """The image as an element of a page: its colours are those of the page's style sheet, and its nodes are links."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "style":
                parent.remove(child)
            elif child.get("data-instruction") is not None:
                _make_link(parent, child)
    for element in root.iter():
        for name in ("style", "id", "font-family"):
            if name == "style" and element is root:
                width = re.search(r"max-width:([\d.]+)px", element.get("style", ""))
                element.set("width", f"{_SCALE * float(width[1]):.0f}" if width else "600")
            element.attrib.pop(name, None)
    root.set("focusable", "false")
    root.attrib.pop("role", None)
    return ElementTree.tostring(root, encoding="unicode")


def _make_link(parent: ElementTree.Element, node: ElementTree.Element) -> None:
    """Put a node into a link to its instruction."""
    key = node.attrib.pop("data-computation", ""), node.attrib.pop("data-instruction", "")
    link = ElementTree.Element("a", {"href": f"#{anchor_of(key)}", "aria-label": f"%{printable(key[1])}"})
    parent[list(parent).index(node)] = link
    link.append(node)
