"""The instructions of a module on a page, and the graph around one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.places import split_path
from hloexec.core.wording import number_text, plural, truncated
from hloexec.errors import HloError, UnsupportedError, printable
from hloexec.language.origins import hlo_line, source_lines
from hloexec.report.html.content import Figure, Line, Part, linked
from hloexec.tools.graphing import Colours, graph, quantity
from hloexec.tools.watching.recording import Column, Key

_CONTEXT = 7
"""Lines of HLO on either side of an instruction."""


def anchor_of(key: Key) -> str:
    """The identifier of an instruction's place on a page, `computation/instruction`."""
    return "/".join(quote(part, safe="") for part in key)


class Index:
    """The instructions of a module, numbered in the order of its text."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._lines: dict[Key, str] = {}
        self.numbers: dict[Key, int] = {}
        self._by_name: dict[str, list[Key]] = {}
        for computation in module:
            for instruction in computation:
                key = computation.name, instruction.name
                self.numbers[key] = len(self.numbers)
                self._by_name.setdefault(instruction.name, []).append(key)

    def link(self, name: str) -> str | None:
        """To an instruction, by its name or its path (`loop[3]:body/fusion.2/add.1`); None where that is not one, or
        may be several."""
        calls, last = split_path(name)
        places = self._by_name.get(last, [])
        for stated in reversed(calls[-1] if calls else ()):
            if len(places) > 1 and stated:
                places = [key for key in places if key[0] == stated] or places
        return f"#{anchor_of(places[0])}" if len(places) == 1 else None

    def instruction(self, key: Key) -> Instruction:
        return self.module.by_name[key[0]].by_name[key[1]]

    def line(self, key: Key) -> str:
        """Its line of HLO, without metadata."""
        text = self._lines.get(key)
        if text is None:
            root = "ROOT " if self.module.by_name[key[0]].root_name == key[1] else ""
            text = self._lines[key] = printable(root + hlo_line(self.instruction(key)))
        return text

    def context(self, key: Key) -> list[tuple[Line, bool]]:
        """The lines of HLO around an instruction in its computation, with links, and which of them is its own."""
        computation = self.module.by_name[key[0]]
        names = list(computation.by_name)
        place = names.index(key[1])
        first = max(0, place - _CONTEXT)
        return [
            (tuple(self._linked(computation, name)), name == key[1]) for name in names[first : place + _CONTEXT + 1]
        ]

    def _linked(self, computation: Computation, name: str) -> list[Part]:
        def link(other: str) -> str | None:
            key = computation.name, other.removeprefix("%")
            return f"#{anchor_of(key)}" if key in self.numbers and key[1] != name else None

        return list(linked(self.line((computation.name, name)), "", link))

    def sources(self, key: Key) -> list[str]:
        """Its source lines, the innermost call first."""
        return [printable(str(line)) for line in source_lines(self.module, self.instruction(key))]

    def data(
        self, columns: Sequence[Column], figures: Mapping[Key, Sequence[Any]], details: Sequence[Key]
    ) -> dict[str, object]:
        """All instructions for the page's script: a list for each, in the order of `fields`, then its figures."""
        numbers = {computation.name: number for number, computation in enumerate(self.module)}
        ranks = {key: number for number, key in enumerate(details, 1)}
        blank = [None] * len(columns)
        rows = []
        for key in self.numbers:
            instruction = self.instruction(key)
            operands = [self.numbers[key[0], name] for name in instruction.operands if (key[0], name) in self.numbers]
            source = self.sources(key)[:1]
            rows.append(
                [
                    printable(instruction.name),
                    numbers[key[0]],
                    instruction.opcode,
                    truncated(str(instruction.shape)),
                    source[0] if source else "",
                    printable(instruction.op_name or ""),
                    self.line(key),
                    operands,
                    ranks.get(key, 0),
                    *figures.get(key, blank),
                ]
            )
        return {
            "computations": [printable(computation.name) for computation in self.module],
            "anchors": [quote(computation.name, safe="") for computation in self.module],
            "columns": [attrs.asdict(column) for column in columns],
            "rows": rows,
        }


_SCALE = 4 / 3
"""From points to pixels."""
_MANY, _MOST = 30, 80
"""More instructions than these are drawn up to one edge away only; not at all."""


def colours_of(title: str, values: Mapping[Key, float]) -> Colours | None:
    """The colours of the instructions of graphs; None where there is nothing to colour them by."""
    positive = {key: value for key, value in values.items() if value > 0}
    return (
        quantity(title, positive, lambda value: number_text(value, 2) if math.isfinite(value) else "∞")
        if positive
        else None
    )


def neighbourhood(module: Module, key: Key, colours: Colours | None) -> tuple[Figure | None, str]:
    """The plot, or a sentence that says why there is none."""
    try:
        for distance in (2, 1):
            around = graph(module, computation=key[0], around=key[1], distance=distance, colours=colours)
            if len(around.nodes) <= _MANY:
                break
        if len(around.nodes) > _MOST:
            return None, f"There is no graph of what is around it: {plural(len(around.nodes), 'instruction')} are."
        svg = _inline(around.svg())
    except UnsupportedError:
        return None, "There is no graph of what is around it: the program dot of Graphviz is not installed."
    except HloError as error:
        return None, f"There is no graph of what is around it: {printable(error.message)}"
    edges = "one edge" if distance == 1 else f"{distance} edges"
    title = f"The graph around it, up to {edges} away"
    note = f"coloured by {colours.title}" if colours is not None else ""
    return Figure(title, f"{title}: {around}", svg, note, is_wide=True, is_graph=True), ""


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
