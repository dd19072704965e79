"""The data flow of a module as a graph, a part of it around an instruction, and colours of its nodes.

The data flow of a module as a graph, through the computations that fusions, calls, loops and conditionals run.

Each computation is there once, however many instructions call it. A call or fusion that is the only caller of its
computation is *opened*: the computation stands for it, and takes its operands and gives its result. Other callers stay
instructions of their own, which take what the computation gives.

Colours of instructions: a number for each, and a scale of steps that says which numbers have which colour.

The scale of quantities is logarithmic, since errors, times and sizes differ by powers of ten. Its colours go from light
to dark, so that they can be told apart without seeing hues; those of verdicts differ in lightness, too.

What an instruction is computed from, and what is computed from it, as far as a number of edges.

Tuples are followed element by element: from an operand of a tuple through loops and calls to those instructions that
get just this element, and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

import attrs

from hloexec.analysis.calls import CallKind, call_of, calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.ops.registry import Role, role_of
from hloexec.ops.traits import Index

Place: TypeAlias = tuple[str, str]
"""An instruction: the names of its computation and of itself."""

Kind: TypeAlias = Literal["data", "carried", "condition", "control"]
"""What an edge means: a value; a value that the next iteration of a loop gets; whether a loop goes on; an order."""


@frozen
class Edge:
    """That one instruction is taken by another."""

    source: Place
    target: Place
    operand: int = 0
    """Which operand of the target it is."""
    kind: Kind = "data"


class Flow:
    """The data flow of a computation and, unless it is closed, of all that it calls."""

    def __init__(self, module: Module, first: str, *, is_closed: bool = False) -> None:
        self.module = module
        self.first = first
        self._is_closed = is_closed
        self.callers: dict[str, list[Place]] = {first: []}
        """The computations in the order in which they are found, with the instructions that call each."""
        queue = [first]
        for name in queue:
            for instruction in module.by_name[name]:
                for callee in self.callees(instruction):
                    if callee not in self.callers:
                        self.callers[callee] = []
                        queue.append(callee)
                    self.callers[callee].append((name, instruction.name))

    def callees(self, instruction: Instruction) -> tuple[str, ...]:
        """The computations of the instruction whose instructions are there, too."""
        return () if self._is_closed else tuple(call.computation for call in calls_of(instruction))

    def computations(self) -> Iterator[Computation]:
        return (self.module.by_name[name] for name in self.callers)

    def instruction(self, place: Place) -> Instruction:
        return self.module.by_name[place[0]].by_name[place[1]]

    def only_caller(self, computation: str) -> Place | None:
        """The instruction that calls a computation, if there is just one."""
        callers = self.callers[computation]
        return callers[0] if len(callers) == 1 else None

    def opened(self, place: Place) -> str | None:
        """The computation that stands for an instruction; None where it is there itself."""
        instruction = self.instruction(place)
        callees = self.callees(instruction)
        is_call = role_of(instruction) in (Role.CALL, Role.ASYNC_START) and len(callees) == 1
        return callees[0] if is_call and self.only_caller(callees[0]) == place else None

    def giver(self, place: Place) -> Place:
        """The instruction that gives the value of one: the root of what it calls, where that is opened."""
        while (callee := self.opened(place)) is not None:
            place = callee, self.module.by_name[callee].root_name
        return place

    @cached_property
    def places(self) -> list[Place]:
        """All instructions but those that are opened."""
        return [
            (computation.name, instruction.name)
            for computation in self.computations()
            for instruction in computation
            if self.opened((computation.name, instruction.name)) is None
        ]

    @cached_property
    def edges(self) -> list[Edge]:
        """All edges, by the instructions that take."""
        return [
            edge
            for computation in self.computations()
            for instruction in computation
            for edge in self._edges(computation.name, instruction)
        ]

    def _edges(self, computation: str, instruction: Instruction) -> Iterator[Edge]:
        place = computation, instruction.name
        sources = [self.giver((computation, name)) for name in instruction.operands]
        callees = self.callees(instruction)
        if self.opened(place) is None:
            for name in instruction.control_predecessors:
                yield Edge(self.giver((computation, name)), place, kind="control")
        if not callees:
            yield from (Edge(source, place, number) for number, source in enumerate(sources))
            return
        match role_of(instruction):
            case Role.WHILE:
                yield from self._loop(place, instruction, sources)
            case Role.CONDITIONAL:
                yield Edge(sources[0], place)
                for callee, source in zip(callees, sources[1:], strict=False):
                    yield from self._arguments(callee, [source])
                yield from (Edge(self._result(callee), place, number) for number, callee in enumerate(callees, 1))
            case _:
                yield from self._arguments(callees[0], sources)
                if self.opened(place) is None:
                    yield Edge(self._result(callees[0]), place)

    def _loop(self, place: Place, instruction: Instruction, sources: list[Place]) -> Iterator[Edge]:
        body, condition = (call_of(instruction, kind) for kind in (CallKind.BODY, CallKind.CONDITION))
        for callee in (body, condition):
            yield from self._arguments(callee, sources)
            yield from self._arguments(callee, [self._result(body)], "carried")
        yield Edge(self._result(body), place)
        yield Edge(self._result(condition), place, kind="condition")

    def _arguments(self, callee: str, sources: list[Place], kind: Kind = "data") -> Iterator[Edge]:
        parameters = self.module.by_name[callee].parameters
        for parameter, source in zip(parameters, sources, strict=False):
            yield Edge(source, (callee, parameter.name), kind=kind)

    def _result(self, callee: str) -> Place:
        return self.giver((callee, self.module.by_name[callee].root_name))


_RAMP = ("#fff3bf", "#ffdb7a", "#fbb257", "#ef7d3f", "#c93a31", "#a62440", "#671746")
_DARK, _LIGHT = "#1b1f24", "#ffffff"


@frozen
class Step:
    """A step of a scale: numbers up to `most`, and beyond the step before."""

    most: float
    colour: str
    """As `#rrggbb`."""
    label: str


@frozen(eq=False)
class Colours:
    """What instructions are coloured by."""

    title: str
    values: Mapping[Place, float]
    """The numbers, of those instructions that have one; 0 gives no colour, unless a step ends there."""
    steps: tuple[Step, ...]
    """From the lowest to the highest."""
    texts: Mapping[Place, str]
    """What is written on an instruction, in a few words."""
    marked: frozenset[Place] = frozenset()
    """The instructions that matter most."""
    meaning: str = ""
    """What is said of those that are marked."""
    notes: Mapping[Place, str] = attrs.field(factory=dict)
    """What else there is to say of an instruction."""

    def step(self, place: Place) -> Step | None:
        """The step of an instruction; None if it has no number, or none that is on the scale."""
        value = self.values.get(place)
        if value is None or not self.steps:
            return None
        if value == 0 and self.steps[0].most > 0:
            return None
        # What is no number is at least as bad as the largest one.
        return next((step for step in self.steps if value <= step.most), self.steps[-1])


VERDICTS = (Step(0.0, "#b7e0cf", "as before"), Step(1.0, "#f6a04d", "wrong"), Step(2.0, "#a3203c", "to blame"))
"""The steps of verdicts: 0, 1 and 2."""


def quantity(
    title: str,
    values: Mapping[Place, float],
    text: Callable[[float], str],
    *,
    texts: Mapping[Place, str] | None = None,
    marked: Iterable[Place] = (),
    meaning: str = "",
    notes: Mapping[Place, str] | None = None,
    span: float = 1.0,
) -> Colours:
    """Colours of a quantity that is not negative, on a logarithmic scale from its least positive value to its largest,
    or to `span` times the least if that is more; `text` writes a value of it."""
    written = {place: text(value) for place, value in values.items() if value} if texts is None else texts
    steps = _steps([value for value in values.values() if 0 < value < math.inf], span, text)
    if not steps and any(not value <= 0 for value in values.values()):
        steps = (Step(math.inf, _RAMP[-1], "not finite"),)
    return Colours(title, values, steps, written, frozenset(marked), meaning, notes or {})


def _steps(values: list[float], span: float, text: Callable[[float], str]) -> tuple[Step, ...]:
    if not values:
        return ()
    least = min(values)
    most = max(*values, span * least)
    count = len(_RAMP) if most / least > 2 else 1
    bounds = [least * (most / least) ** (number / count) for number in range(1, count)]
    labels = [f"≤ {text(bound)}" for bound in bounds]
    return tuple(map(Step, (*bounds, most), _RAMP[-count:], (*labels, f"≤ {text(most)}")))


def ink(colour: str) -> str:
    """The colour of text on a colour: the one of black and white that stands out more (WCAG 2, relative luminance)."""
    luminance = _luminance(colour)
    on_dark = (luminance + 0.05) / (_luminance(_DARK) + 0.05)
    return _DARK if on_dark > (1.05 / (luminance + 0.05)) else _LIGHT


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


_PASSING = (Role.PARAMETER, Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.FORWARD)
"""What has the elements of what it takes, if that is a tuple."""

State: TypeAlias = tuple[Place, Index]
"""An instruction, and an element of its value; of the whole, the index is empty."""


def cone(flow: Flow, starts: Sequence[Place], distance: int) -> tuple[set[Place], set[Place]]:
    """What `starts` are computed from and what is computed from them, and which of it has neighbours left out."""
    takes: dict[Place, list[Edge]] = {}
    gives: dict[Place, list[Edge]] = {}
    for edge in flow.edges:
        takes.setdefault(edge.target, []).append(edge)
        gives.setdefault(edge.source, []).append(edge)

    def sources(state: State) -> list[State]:
        # The element of the source that an element of the target comes from; none if it comes from another source.
        found = (
            (edge.source, _across(flow, edge, state[1], Role.GET_TUPLE_ELEMENT)) for edge in takes.get(state[0], ())
        )
        return [(place, index) for place, index in found if index is not None]

    def targets(state: State) -> list[State]:
        # The element of the target that an element of the source becomes; none if it is not in it.
        found = ((edge.target, _across(flow, edge, state[1], Role.TUPLE)) for edge in gives.get(state[0], ()))
        return [(place, index) for place, index in found if index is not None]

    chosen = {*_reached(starts, sources, distance), *_reached(starts, targets, distance)}
    cut = {
        place
        for place in chosen
        if any(edge.source not in chosen for edge in takes.get(place, ()))
        or any(edge.target not in chosen for edge in gives.get(place, ()))
    }
    return chosen, cut


def _reached(starts: Sequence[Place], neighbours: Callable[[State], list[State]], distance: int) -> set[Place]:
    border: list[State] = [(place, ()) for place in starts]
    seen = set(border)
    for _ in range(distance):
        border = list(dict.fromkeys(near for border_state in border for near in neighbours(border_state)))
        border = [state for state in border if state not in seen]
        seen.update(border)
    return {place for place, _ in seen}


def _across(flow: Flow, edge: Edge, index: Index, packing: Role) -> Index | None:
    """What an element is at the other end of an edge, where it is within a tuple behind what is `packing`."""
    instruction = flow.instruction(edge.target)
    role = role_of(instruction)
    if edge.kind in ("condition", "control"):
        return ()
    if role in (Role.TUPLE, Role.GET_TUPLE_ELEMENT):
        place = edge.operand if role is Role.TUPLE else instruction.attributes.index
        if role is packing:
            return (place, *index)
        if index:
            return index[1:] if index[0] == place else None
    return index if role in _PASSING else ()
