"""Stops: where a run stands still, and the computations that it is in there."""

from __future__ import annotations

import attrs

from hloexec.analysis.numerics.statistics import LeafStatistics, statistics
from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described, Value
from hloexec.engine.exec.observers import Activation, Event, Failure, PathEntry
from hloexec.errors import HloError
from hloexec.language.origins import hlo_line
from hloexec.tools.stepping.breakpoints import Breakpoint


@frozen(eq=False)
class Level(Described):
    """One of the computations that a run is in."""

    instruction: Instruction
    """Where in it the run is: the instruction that has just run or, further out, the one that is under way."""
    computation: Computation
    activation: Activation
    entered: PathEntry | None
    """The call of it; None for the entry."""

    def __str__(self) -> str:
        return f"%{self.instruction.name} in {self.computation.name}"


@frozen(eq=False)
class Stop(Described):
    """Where a run stands still: after an instruction, or at one that has failed."""

    reason: str
    """`breakpoint 1`, `watch 2`, `step`, `interrupted`, `failed` or `end`."""
    place: Event | Failure = attrs.field(metadata=UNTOLD)
    breakpoint: Breakpoint | None = attrs.field(default=None, metadata=UNTOLD)

    @property
    def instruction(self) -> Instruction:
        """The instruction that has run, or has failed."""
        return self.place.instruction

    @property
    @told
    def name(self) -> str:
        """Path and instruction, such as `while.3[5]:body/fusion.2/add.7`."""
        return self.place.name

    @property
    @told
    def iteration(self) -> int | None:
        """Of the innermost loop around it, counted from 0."""
        return self.place.iteration

    @property
    @told
    def devices(self) -> tuple[int, ...]:
        """The devices that hold the value."""
        return self.place.devices

    @property
    def value(self) -> Value | None:
        """What the instruction gave; None where it has failed."""
        return self.place.value if isinstance(self.place, Event) else None

    @property
    @told
    def error(self) -> HloError | None:
        """Why it has failed; None where it has not."""
        return self.place.error if isinstance(self.place, Failure) else None

    @property
    @told
    def hlo(self) -> str:
        """The instruction as HLO text."""
        return hlo_line(self.instruction)

    @property
    @told
    def leaves(self) -> tuple[LeafStatistics, ...]:
        """The arrays of what the instruction gave; none where it has failed."""
        return () if self.value is None else tuple(statistics(self.value))

    @property
    def levels(self) -> tuple[Level, ...]:
        """The computations that the run is in, the innermost first."""
        path = self.place.path
        instructions = [*(entry.instruction for entry in path), self.place.instruction]
        entered: list[PathEntry | None] = [None, *path]
        activations = self.place.activations()
        found = [
            Level(*parts) for parts in zip(instructions, self.place.computations(), activations, entered, strict=True)
        ]
        return tuple(reversed(found))

    def __str__(self) -> str:
        return f"{self.reason}: {self.name}"
