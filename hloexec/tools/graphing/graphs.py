"""`graph`: the instructions of a computation, or those around one instruction, with what joins them. Data only; how it
is drawn is in `dot`, `svg` and `model_explorer`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property

import attrs

from hloexec.core.arguments import (
    named_computation,
    require_flags,
    require_integer,
    require_module,
    require_text,
    wrong,
)
from hloexec.core.ir import Instruction, Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described
from hloexec.core.wording import listing
from hloexec.errors import HloError, InputError
from hloexec.language.verifier import verify
from hloexec.tools.extraction.running import holding_computation, instruction_name
from hloexec.tools.graphing.flow import Colours, Edge, Flow, Place, cone


@frozen
class Node:
    """An instruction of a graph."""

    computation: str
    instruction: Instruction
    has_more: bool = False
    """Whether it takes or gives values that are left out, as they are too far away."""

    @property
    def place(self) -> Place:
        return self.computation, self.instruction.name


@frozen
class Coloured:
    """An instruction with its number."""

    computation: str
    instruction: str
    amount: float
    """An error, seconds, bytes, or 0 as before, 1 wrong and 2 to blame."""
    is_marked: bool
    """Whether it is one of those that matter most."""


@frozen
class Cluster:
    """A computation, some instructions of which are in a graph."""

    computation: str
    caller: Place | None
    """The instruction that calls it, if there is just one in the graph."""
    is_opened: bool
    """Whether it stands for its caller, a call or a fusion, which is no node then."""


@frozen(eq=False, slots=False)
class Graph(Described):
    """The result of `graph`."""

    module: Module
    computation: str
    """What it begins with: the entry computation, or the one that was asked for."""
    nodes: tuple[Node, ...] = attrs.field(metadata=UNTOLD)
    edges: tuple[Edge, ...] = attrs.field(metadata=UNTOLD)
    clusters: tuple[Cluster, ...] = attrs.field(metadata=UNTOLD)
    """The computations, each behind that of its caller."""
    around: Place | None = None
    """The instruction in its middle, if it is a neighbourhood."""
    distance: int | None = None
    """How many steps from it; None for a whole computation."""
    colours: Colours | None = attrs.field(default=None, metadata=UNTOLD)

    @property
    @told
    def node_count(self) -> int:
        """How many instructions there are."""
        return len(self.nodes)

    @property
    @told
    def edge_count(self) -> int:
        """How many edges there are."""
        return len(self.edges)

    @property
    @told
    def coloured_by(self) -> str | None:
        """What instructions are coloured by; None where they are not."""
        return None if self.colours is None else self.colours.title

    @property
    @told
    def coloured(self) -> tuple[Coloured, ...]:
        """The instructions that have a number."""
        values, marked = ({}, frozenset()) if self.colours is None else (self.colours.values, self.colours.marked)
        places = (node.place for node in self.nodes if node.place in values)
        return tuple(Coloured(*place, values[place], place in marked) for place in places)

    def __str__(self) -> str:
        extent = f"of {self.computation}" if self.around is None else f"around %{self.around[1]} in {self.around[0]}"
        return f"{len(self.nodes)} instructions {extent}, {len(self.edges)} edges"

    def _repr_svg_(self) -> str | None:
        """What IPython asks for."""
        try:
            return self.svg()
        except HloError:
            return None

    def dot(self) -> str:
        """The graph in Graphviz's language (`graphing.files`)."""
        from hloexec.tools.graphing.files import dot

        return dot(self)

    def svg(self) -> str:
        """The graph as an SVG image, laid out by the program `dot` (`graphing.files`)."""
        from hloexec.tools.graphing.files import svg

        return svg(self)

    def save(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write it to a file that ends in .dot, .svg or .json (for Model Explorer), and return what was written.

        With colours, a file of node data is written beside a .json file. Raises InputError where that cannot be.
        """
        from hloexec.tools.graphing.files import save

        return save(self, path)

    @cached_property
    def opened(self) -> frozenset[str]:
        """The computations whose instructions are nodes since others call them."""
        return frozenset(cluster.computation for cluster in self.clusters) - {self.computation}

    @cached_property
    def takes(self) -> dict[Place, list[Edge]]:
        """The edges that lead to each node."""
        edges_by_target: dict[Place, list[Edge]] = {node.place: [] for node in self.nodes}
        for edge in self.edges:
            edges_by_target[edge.target].append(edge)
        return edges_by_target


def graph(
    module: Module,
    *,
    computation: str | None = None,
    around: str | None = None,
    distance: int = 2,
    colours: Colours | None = None,
    is_closed: bool = False,
) -> Graph:
    """The data flow of a module's entry computation (or of another) and of what it calls, as a graph to look at.

    The computations of fusions, calls, loops and conditionals are opened, unless it `is_closed`. With `around`, the
    name of an instruction or the path of one of its runs (as traces and searches state it), the graph has only what
    that instruction is computed from and what is computed from it, by way of at most `distance` edges. `colours` are
    those of `hloexec.graphing`, such as `error_colours`.

    Raises InputError where the module has no such computation or instruction, and VerificationError where it is not
    well-formed.
    """
    require_module(module)
    require_flags(is_closed=is_closed)
    require_integer("distance", distance, 0)
    if colours is not None and not isinstance(colours, Colours):
        raise wrong("colours", "Colours", colours, "hloexec.graphing has functions that make them")
    first = module.entry if computation is None else named_computation(module, computation)
    verify(module)
    if around is None:
        return whole(Flow(module, first.name, is_closed=is_closed), colours)
    require_text("around", around, "the name or the path of an instruction")
    middle, flow = _located(module, around, computation, is_closed)
    callee = flow.opened(middle)
    starts = [middle] if callee is None else [place for place in flow.places if place[0] == callee]
    chosen, cut = cone(flow, starts, distance)
    return _graph(flow, (place for place in flow.places if place in chosen), cut, middle, distance, colours)


def whole(flow: Flow, colours: Colours | None = None) -> Graph:
    """All instructions of a data flow, which is that of a well-formed module."""
    return _graph(flow, flow.places, (), None, None, colours)


def _located(module: Module, around: str, computation: str | None, is_closed: bool) -> tuple[Place, Flow]:
    """The instruction, and the data flow in which it is: that of its computation alone if the entry does not reach it
    as a part of the data flow."""
    name = instruction_name(around)
    flow = Flow(module, computation.removeprefix("%") if computation else module.entry_name, is_closed=is_closed)
    if computation is not None:
        holders = [candidate for candidate in flow.callers if name in module.by_name[candidate].by_name]
        if not holders:
            raise InputError(f"computation {flow.first} and what it calls have no instruction {name!r}")
        own = flow.first if flow.first in holders else holders[0] if len(holders) == 1 else None
        if own is None:
            raise InputError(f"{len(holders)} computations have an instruction {name!r}: {listing(holders, 8)}")
        return (own, name), flow
    holder = holding_computation(module, around).name
    if holder not in flow.callers:
        flow = Flow(module, holder, is_closed=is_closed)
    return (holder, name), flow


def _graph(
    flow: Flow,
    places: Iterable[Place],
    cut: Iterable[Place],
    around: Place | None,
    distance: int | None,
    colours: Colours | None,
) -> Graph:
    more = set(cut)
    nodes = tuple(Node(place[0], flow.instruction(place), place in more) for place in places)
    chosen = {node.place for node in nodes}
    edges = tuple(edge for edge in flow.edges if edge.source in chosen and edge.target in chosen)
    return Graph(flow.module, flow.first, nodes, edges, _clusters(flow, chosen), around, distance, colours)


def _clusters(flow: Flow, chosen: set[Place]) -> tuple[Cluster, ...]:
    """The computations of the nodes, and those around them."""
    needed: dict[str, None] = {}
    for name in dict.fromkeys(place[0] for place in chosen):
        caller: Place | None = (name, "")
        while caller is not None and caller[0] not in needed:
            needed[caller[0]] = None
            caller = flow.only_caller(caller[0])
    clusters = []
    for name in flow.callers:
        if name in needed:
            caller = flow.only_caller(name)
            clusters.append(Cluster(name, caller, caller is not None and flow.opened(caller) == name))
    return tuple(clusters)
