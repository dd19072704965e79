"""The findings of the verifier, with their locations."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate

from hloexec.core.errors import VerificationError
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen

_MOST_PROBLEMS = 20


@frozen
class Note:
    """A deviation that XLA tolerates, and its location."""

    message: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: note: {self.message}"


class Report:
    """What has been found, with places."""

    def __init__(self, module: Module, strict: bool) -> None:
        self.module = module
        self.strict = strict
        self._errors: list[str] = []
        self._count = 0
        self._notes: list[Note] = []

    @property
    def findings(self) -> int:
        """How many errors and notes there are."""
        return self._count + len(self._notes)

    def error(
        self, message: str, computation: Computation | None = None, instruction: Instruction | None = None
    ) -> None:
        """Add a problem of an instruction, of a computation, or of the module."""
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._errors.append(f"{self._place(computation, instruction)}: {message}")

    def mixed_precision(self, message: str, computation: Computation, instruction: Instruction) -> None:
        """Add a difference in nothing but the width of floats."""
        if self.strict:
            self.error(message, computation, instruction)
        else:
            self._notes.append(Note(message, self._place(computation, instruction)))

    def finish(self) -> list[Note]:
        """The notes; VerificationError where there are errors."""
        if not self._count:
            return self._notes
        if self._count > _MOST_PROBLEMS:
            self._errors.append(f"… and {self._count - _MOST_PROBLEMS} more")
        heading = "" if self._count == 1 else f"module '{self.module.name}' has {self._count} faults:\n"
        raise VerificationError(heading + "\n".join(self._errors))

    def _place(self, computation: Computation | None, instruction: Instruction | None) -> str:
        """file:line:column: computation 'c', instruction 'i' (file.py:12)"""
        names = [
            *([f"computation '{computation.name}'"] if computation else [f"module '{self.module.name}'"]),
            *([f"instruction '{instruction.name}'"] if instruction else []),
        ]
        origin = instruction.metadata if instruction else None
        if origin is not None and origin.source_file:
            line = f":{origin.source_line}" if origin.source_line else ""
            names[-1] += f" ({origin.source_file}{line})"
        return f"{self._position(computation, instruction)}{', '.join(names)}"

    @cached_property
    def _line_starts(self) -> list[int]:
        """The offsets of the source's lines, looked up once however much there is to report."""
        lengths = (len(line) + 1 for line in (self.module.source or "").split("\n"))
        return list(accumulate(lengths, initial=0))

    def _position(self, computation: Computation | None, instruction: Instruction | None) -> str:
        span = next((item.span for item in (instruction, computation) if item is not None and item.span), None)
        source = self.module.source
        if source is None:
            return ""
        if span is None:
            return f"{self.module.filename}: "
        line_starts = self._line_starts
        line = bisect_right(line_starts, span.start)
        column = span.start - line_starts[line - 1] + 1
        return f"{self.module.filename}:{line}:{column}: "
