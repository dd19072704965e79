"""A page of a result: its view, its plots, the instructions that it singles out in detail, and a table of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
from rich.console import RenderableType

from hloexec.analysis.numerics.comparison import Comparison
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Pairs, Value
from hloexec.core.version import __version__
from hloexec.core.wording import number_text
from hloexec.engine.options import DEFAULTS, Options
from hloexec.errors import printable
from hloexec.report.html.content import Block, Figure, Line, Paragraph, blocks_of, no_links
from hloexec.report.html.figures import figures_of, figures_of_pairs
from hloexec.report.html.instructions import Index, anchor_of, colours_of, neighbourhood
from hloexec.report.html.plots import Mark, Point, along, heat_map, spectrum
from hloexec.report.registry import module_of, ranked
from hloexec.tools.graphing import Colours
from hloexec.tools.watching.recording import Ranked, Seen, Watched


@frozen(eq=False)
class Subject:
    """What a page is about."""

    result: object
    view: RenderableType
    """What the terminal shows of it."""
    module: Module | None = None
    inputs: Sequence[Sequence[Value]] | None = None
    """Of each device, or of all: to run the module again for plots of values; None for none."""
    options: Sequence[Options] = (DEFAULTS,)
    """The options of that, of each module where they are several."""
    command: str = ""
    """The command line, or the function."""
    facts: Pairs = ()
    """What was run, and how."""
    pairs: Mapping[str, tuple[Array, Array]] = attrs.field(factory=dict)
    """Of a comparison, what was compared, by the labels of the leaves."""
    is_tried: bool = True
    """Whether the module has run on the inputs and with the options."""


@frozen(eq=False)
class Detail:
    """An instruction that the result singles out."""

    anchor: str
    number: int
    name: str
    computation: str
    why: str
    is_bad: bool
    facts: Pairs
    sources: tuple[str, ...]
    context: tuple[tuple[Line, bool], ...]
    figures: tuple[Figure, ...]
    note: str
    """Why there are no plots."""


@frozen(eq=False)
class Page:
    """All that stands on a page."""

    title: str
    headline: Line
    command: str
    facts: Pairs
    blocks: tuple[Block, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    details: tuple[Detail, ...] = ()
    data: Mapping[str, object] | None = None
    """All instructions, for the script; None without a module."""

    @property
    def verdict_tone(self) -> str:
        """The tone of the words that the headline begins with."""
        return next((part.tone for part in self.headline if part.tone not in ("", "muted", "strong")), "plain")


def page_of(subject: Subject, values: Watched, most: int) -> Page:
    """The page of a result and of what is known of values, with details of at most so many instructions."""
    module = module_of(subject.result) or subject.module
    index = None if module is None else Index(module)
    link = no_links if index is None else index.link
    headline, blocks = _headline(blocks_of(subject.view, link))
    ranking = ranked(subject.result, module, most)
    ranking = ranking or list(values.ranking[:most])
    figures = figures_of(subject.result, link)
    if isinstance(subject.result, Comparison):
        figures += figures_of_pairs(subject.result, subject.pairs)
    flow = _along(values, ranking)
    details, data = [], None
    if index is not None:
        colours = colours_of(values.label, {key: value for key, (_, value) in values.along.items()})
        details = [_detail(index, number, entry, values, colours) for number, entry in enumerate(ranking, 1)]
        data = index.data(values.columns, values.figures, [entry.key for entry in ranking])
    facts = (*subject.facts, ("hloexec", __version__))
    if module is not None:
        facts = (("module", f"{module.name}, {module.instruction_count} instructions"), *facts)
    return Page(
        title=printable(module.name) if module is not None else type(subject.result).__name__,
        headline=headline,
        command=printable(subject.command),
        facts=tuple((name, printable(value)) for name, value in facts),
        blocks=tuple(blocks),
        figures=tuple(figures if flow is None else [flow, *figures]),
        notes=(values.note,) if values.note and not values.title else (),
        details=tuple(details),
        data=data,
    )


def fragment_blocks(view: RenderableType, result: object) -> tuple[Line, list[Block], list[Figure]]:
    """What a notebook shows of a result: the headline, the tables and the plots of the page."""
    headline, blocks = _headline(blocks_of(view))
    return headline, blocks, figures_of(result, no_links)


def _headline(blocks: list[Block]) -> tuple[Line, list[Block]]:
    """The line that a view begins with, and the rest."""
    if blocks and isinstance(blocks[0], Paragraph):
        return blocks[0].line, blocks[1:]
    return (), blocks


def _along(values: Watched, ranking: Sequence[Ranked]) -> Figure | None:
    """The plot along the data flow."""
    if not values.title:
        return None
    points = [Point(order, value) for order, value in values.along.values()]
    marks = []
    for entry in ranking:
        order, value = values.along.get(entry.key, (0, 0.0))
        if value > 0:
            marks.append(Mark(order, value, printable(entry.key[1]), f"#{anchor_of(entry.key)}", entry.is_bad))
    return along(values.title, points, marks, values.label, values.lost, values.note)


def _detail(index: Index, number: int, ranked: Ranked, values: Watched, colours: Colours | None) -> Detail:
    instruction, seen = index.instruction(ranked.key), values.seen.get(ranked.key)
    figures = [] if seen is None else [figure for figure in _plots(seen) if figure is not None]
    graph, note = neighbourhood(index.module, ranked.key, colours)
    figures += [] if graph is None else [graph]
    shown = [
        (column.label, _figure_text(figure))
        for column, figure in zip(values.columns, values.figures.get(ranked.key, ()), strict=False)
    ]
    facts = [("opcode", instruction.opcode), ("shape", str(instruction.shape)), ("computation", ranked.key[0]), *shown]
    if instruction.op_name:
        facts.append(("op_name", instruction.op_name))
    return Detail(
        anchor=anchor_of(ranked.key),
        number=number,
        name=printable(ranked.key[1]),
        computation=printable(ranked.key[0]),
        why=printable(ranked.why),
        is_bad=ranked.is_bad,
        facts=tuple((name, printable(value)) for name, value in facts),
        sources=tuple(index.sources(ranked.key)),
        context=tuple(index.context(ranked.key)),
        figures=tuple(figures),
        note=note,
    )


def _plots(seen: Seen) -> list[Figure | None]:
    """The histogram and the heat map of an instruction."""
    label = "error in units in the last place" if seen.is_error else "|x|"
    quantity = "errors" if seen.is_error else "sizes"
    place = f"{seen.shape}, {printable(seen.name)}"
    overlaid = "; leading dimensions overlaid" if len(seen.sample.dimensions) > 2 else ""
    return [
        spectrum(f"How many {quantity} there are", seen.sample.spectrum, label),
        heat_map(f"Where the {quantity} are", seen.sample.grid, label, place + overlaid),
    ]


def _figure_text(figure: object) -> str:
    if isinstance(figure, float):
        return number_text(figure, 3) if math.isfinite(figure) else "∞"
    return "–" if figure is None or figure == "" else str(figure)
