"""Places in a module and in its runs; they are texts only where people read or type them."""

from __future__ import annotations

from functools import cached_property

import attrs

from hloexec.core.ir.instruction import Instruction
from hloexec.core.structs import frozen


def spell_name(computation: str, instruction: str) -> str:
    """How people name an instruction of a module: `body/dot.3`."""
    return f"{computation}/{instruction}"


def split_name(text: str) -> tuple[str, str]:
    """The computation, or the path of calls, and the instruction that a text as `body/dot.3` means; the first is empty
    where it is not stated."""
    computation, _, instruction = text.rpartition("/")
    return computation.removeprefix("%"), instruction.removeprefix("%")


def split_path(text: str) -> tuple[list[tuple[str, str]], str]:
    """The calling instructions and the last one that a text as `loop[2]:body/fusion/add.3` means; beside each call the
    computation, empty where it is not stated."""
    *calls, instruction = text.split("/")
    parts = (call.partition(":") for call in calls)
    return [(head.partition("[")[0], computation) for head, _, computation in parts], instruction.removeprefix("%")


@frozen
class Place:
    """An instruction of a module, or a leaf of what it gives."""

    computation: str
    instruction: str
    index: tuple[int, ...] = ()


@frozen
class PathEntry:
    """One call on the path from the entry computation to an instruction."""

    instruction: Instruction
    """The calling instruction."""
    computation: str
    """The name of the computation that it calls."""
    iteration: int | None = None
    """The iteration of a loop, counted from 0; None for other calls."""
    is_choice: bool = False
    """Whether the instruction is a loop or a conditional, and so calls several computations."""

    def __str__(self) -> str:
        return f"{self.caller}:{self.computation}" if self.is_choice else self.caller

    @property
    def caller(self) -> str:
        """The calling instruction, with the iteration."""
        return self.instruction.name if self.iteration is None else f"{self.instruction.name}[{self.iteration}]"


@frozen
class CallPath:
    """The calls that lead from the entry computation to one that runs, outermost first; equal where the texts are."""

    calls: tuple[PathEntry, ...] = attrs.field(default=(), eq=False)
    text: str = ""
    """As `while.3[5]:body/fusion.2`; unique within a run."""
    _outer: CallPath | None = attrs.field(default=None, eq=False)

    @property
    def outer(self) -> CallPath:
        """The path of what calls the computation; of the entry, its own."""
        return self if self._outer is None else self._outer

    def first(self, count: int) -> CallPath:
        """The path of its first calls."""
        path = self
        while len(path.calls) > count:
            path = path.outer
        return path

    @property
    def caller(self) -> str:
        """The name of the last instruction that calls."""
        return self.calls[-1].instruction.name

    def computation(self, entry: str) -> str:
        """The name of the computation that it leads to, from the entry."""
        return self.calls[-1].computation if self.calls else entry

    def to(self, call: PathEntry) -> CallPath:
        """The path with one more call."""
        return CallPath((*self.calls, call), self.name_of(str(call)), self)

    def name_of(self, instruction: str) -> str:
        """The path and an instruction in one line, as `while.3[5]:body/fusion.2/add.7`."""
        return f"{self.text}/{instruction}" if self.calls else instruction

    @cached_property
    def iterations(self) -> tuple[int, ...]:
        """The iterations of the loops, outermost first."""
        return tuple(call.iteration for call in self.calls if call.iteration is not None)

    @cached_property
    def loops(self) -> str:
        """The same for all iterations of the same calls."""
        return "/".join(f"{call.instruction.name}:{call.computation}" for call in self.calls)

    def choices(self, device: int) -> list[tuple[RunPlace, int | None]]:
        """The loops and conditionals on the path, outermost first, with the iterations."""
        calls = enumerate(self.calls)
        return [
            (RunPlace(self.first(depth), call.instruction.name, device), call.iteration)
            for depth, call in calls
            if call.is_choice
        ]


@frozen
class RunPlace:
    """An instruction in one of its runs."""

    path: CallPath
    instruction: str
    device: int = 0
    index: tuple[int, ...] = ()
    """Of a leaf of what it gives."""

    @property
    def name(self) -> str:
        """The path and the instruction in one line."""
        return self.path.name_of(self.instruction)

    def beside(self, instruction: str, index: tuple[int, ...] = ()) -> RunPlace:
        """Another instruction in the same run of its computation."""
        return RunPlace(self.path, instruction, self.device, index)

    def calls(self, path: CallPath) -> bool:
        """Whether it is a loop or a conditional that is on a path."""
        return path.text.startswith((f"{self.name}[", f"{self.name}:"))

    def iteration(self, path: CallPath) -> int | None:
        """Which iteration of it a path leads through; None where it is no loop on it."""
        return path.calls[len(self.path.calls)].iteration if self.calls(path) else None
