"""Structural rules for computations, independent of opcodes (names, references, cycles, parameters, calls), and the
findings of the verifier, with their locations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

from hloexec.core.ir import Computation, Instruction, Module, Shape
from hloexec.core.structs import frozen
from hloexec.errors import VerificationError
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Entry, ProgramShape, Role, find_opcode, role_of

_MOST_PROBLEMS = 20


@frozen
class Note:
    """A deviation that XLA tolerates, and its location."""

    message: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: note: {self.message}"


class Mixed(str):
    """A difference in nothing but the width of floats."""

    __slots__ = ()


class Report:
    """What has been found, with places."""

    def __init__(self, module: Module, strict: bool) -> None:
        self.module = module
        self.strict = strict
        self._errors: list[str] = []
        self._count = 0
        self._notes: list[Note] = []

    def error(
        self, message: str, computation: Computation | None = None, instruction: Instruction | None = None
    ) -> None:
        """Add a problem of an instruction, of a computation, or of the module: one that is `Mixed` as a note, unless
        strict."""
        if isinstance(message, Mixed) and not self.strict:
            self._notes.append(Note(str(message), self._place(computation, instruction)))
            return
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._errors.append(f"{self._place(computation, instruction)}: {message}")

    def errors(self, messages: Iterable[str], computation: Computation, instruction: Instruction) -> None:
        """Add the problems of an instruction."""
        for message in messages:
            self.error(message, computation, instruction)

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


_Named = TypeVar("_Named", Computation, Instruction)
_MOST_SHOWN = 8
"""Names that an error lists."""


def check_computation_names(report: Report) -> None:
    for computation in _repeated(report.module.computations):
        report.error("another computation has this name already", computation)
    if report.module.entry_name not in report.module.by_name:
        report.error(f"the entry computation '{report.module.entry_name}' does not exist")


def check_computation(report: Report, computation: Computation) -> ProgramShape | None:
    """Check what a computation is by itself; its signature, or None where it has none."""
    by_name = computation.by_name
    if len(by_name) < len(computation.instructions):
        for instruction in _repeated(computation.instructions):
            report.error("another instruction of the computation has this name already", computation, instruction)
    in_order = True
    seen: set[str] = set()
    for instruction in computation.instructions:
        if not (seen.issuperset(instruction.operands) and seen.issuperset(instruction.control_predecessors)):
            in_order = False
            for name in instruction.operands:
                if name not in by_name:
                    report.error(f"the operand '{name}' does not exist", computation, instruction)
            for name in instruction.control_predecessors:
                if name not in by_name:
                    report.error(f"the control predecessor '{name}' does not exist", computation, instruction)
        seen.add(instruction.name)
    if not in_order:
        _check_cycles(report, computation)
    parameters = _check_parameters(report, computation)
    if computation.root_name not in by_name:
        report.error(f"the root '{computation.root_name}' does not exist", computation)
        return None
    return None if parameters is None else ProgramShape(parameters, computation.root.shape)


def _check_cycles(report: Report, computation: Computation) -> None:
    by_name = computation.by_name
    needs = {
        name: [other for other in (*instruction.operands, *instruction.control_predecessors) if other in by_name]
        for name, instruction in by_name.items()
    }
    cycle = find_cycle(needs)
    if cycle:
        report.error(f"the value depends on itself: {' ← '.join(shortened(cycle))}", computation, by_name[cycle[0]])


def _check_parameters(report: Report, computation: Computation) -> tuple[Shape, ...] | None:
    """The shapes of the parameters in the order of their numbers, or None where the numbers are not 0, 1, …"""
    numbered: dict[int, Instruction] = {}
    is_dense = True
    used = {instruction.opcode for instruction in computation.instructions}
    opcodes = {name for name in used if (entry := find_opcode(name)) is not None and entry.role is Role.PARAMETER}
    for instruction in computation.instructions:
        if instruction.opcode not in opcodes:
            continue
        entry = find_opcode(instruction.opcode)
        if entry is None or not has_attributes(entry, instruction):
            continue
        number = instruction.attributes.number
        if number in numbered:
            is_dense = False
            report.error(
                f"parameter {number} is '{numbered[number].name}' already; each number occurs once",
                computation,
                instruction,
            )
        numbered[number] = instruction
    for number in range(len(numbered)):
        if number not in numbered:
            is_dense = False
            present = ", ".join(map(str, shortened(sorted(numbered))))
            report.error(f"parameter {number} is missing; the computation has the numbers {present}", computation)
            break
    return tuple(numbered[number].shape for number in range(len(numbered))) if is_dense else None


def check_calls(report: Report) -> None:
    """Called computations exist, and none calls itself."""
    by_name = report.module.by_name
    calls: dict[str, list[str]] = {}
    started: set[str] = set()
    for computation in report.module.computations:
        called = calls.setdefault(computation.name, [])
        for instruction in computation.instructions:
            for name in computation_names(instruction.attributes):
                if name in by_name:
                    called.append(name)
                else:
                    report.error(f"the called computation '{name}' does not exist", computation, instruction)
                if report.strict and role_of(instruction) is Role.ASYNC_START:
                    if name in started:
                        report.error(f"another instruction starts '{name}' already", computation, instruction)
                    started.add(name)
    cycle = find_cycle(calls)
    if cycle:
        report.error(f"the computation calls itself: {' → '.join(shortened(cycle))}", by_name[cycle[0]])


def has_attributes(entry: Entry, instruction: Instruction) -> bool:
    return entry.attributes is None or isinstance(instruction.attributes, entry.attributes)


def _repeated(items: Iterable[_Named]) -> Iterator[_Named]:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            yield item
        seen.add(item.name)


def shortened(names: Sequence[object]) -> list[str]:
    """The names, with a gap in the middle where there are many."""
    shown = [str(name) for name in names]
    return shown if len(shown) <= _MOST_SHOWN else [*shown[: _MOST_SHOWN - 2], "…", shown[-1]]


def find_cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """A cycle of a graph given by its edges, first node repeated at the end; empty where there is none.

    Nodes that need nothing unfinished are struck off until none is left to strike; what stays has a cycle, and walking
    along its edges must come by some node twice.
    """
    waiting = {name: set(others) for name, others in needs.items()}
    needed_by: dict[str, list[str]] = {}
    for name, others in waiting.items():
        for other in others:
            needed_by.setdefault(other, []).append(name)
    free = [name for name, others in waiting.items() if not others]
    while free:
        done = free.pop()
        del waiting[done]
        for name in needed_by.get(done, ()):
            waiting[name].discard(done)
            if not waiting[name]:
                free.append(name)
    if not waiting:
        return []
    path: dict[str, None] = {}
    name = next(iter(waiting))
    while name not in path:
        path[name] = None
        name = min(waiting[name])
    walked = list(path)
    return [*walked[walked.index(name) :], name]
