"""The data flow of a module as a graph, through the computations that fusions, calls, loops and conditionals run.

Each computation is there once, however many instructions call it. A call or fusion that is the only caller of its
computation is *opened*: the computation stands for it, and takes its operands and gives its result. Other callers stay
instructions of their own, which take what the computation gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

from hloexec.analysis.calls import CallKind, call_of, calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.ops.registry import Role, role_of

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
