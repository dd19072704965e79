"""Observers: the single interface for watching a run.

An observer is an object with either of two methods. `on_instruction(event)` is called after each instruction of the
program, including those that only forward values and those inside fusions and loops. `on_progress(progress)` is called
from time to time, for progress bars. What does more than run a module, such as `hloexec.diff`, calls `on_stage(stage)`
of those that have it. Without observers a run has no overhead for them, and no observer can change a
result: the arrays that it sees are read-only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from hloexec.arguments import listed
from hloexec.devices.varying import Varying, arrays_of, joined, of_position
from hloexec.errors import InputError
from hloexec.ir import Computation, Instruction
from hloexec.ops.registry import Role, find_opcode
from hloexec.plan.steps import Plan, Scope, Step
from hloexec.plan.trees import unflatten
from hloexec.values import Value

__all__ = [
    "Attached",
    "Context",
    "Event",
    "InstructionObserver",
    "Observer",
    "PathEntry",
    "Progress",
    "ProgressObserver",
    "Stage",
    "StageObserver",
    "Stages",
    "attach",
    "call_path",
]

_PROGRESS_SECONDS = 0.1


@attrs.frozen
class PathEntry:
    """One call on the path from the entry computation to an instruction."""

    instruction: Instruction
    """The calling instruction."""
    computation: str
    """The name of the computation that it calls."""
    iteration: int | None = None
    """The iteration of a loop, counted from 0; None for other calls."""

    def __str__(self) -> str:
        count = "" if self.iteration is None else f"[{self.iteration}]"
        entry = find_opcode(self.instruction.opcode)
        is_choice = entry is not None and entry.role in (Role.WHILE, Role.CONDITIONAL)
        return f"{self.instruction.name}{count}" + (f":{self.computation}" if is_choice else "")


@attrs.frozen(eq=False)
class Context:
    """A run of a plan: the step that called it in its caller's plan, and the iteration."""

    step: Step
    plan: Plan
    iteration: int | None = None
    parent: Context | None = None


def call_path(scope: Scope, context: Context | None) -> tuple[PathEntry, ...]:
    """The calls that lead to a scope of a plan's run, outermost first."""
    found = _scope_path(scope)
    while context is not None:
        found.append(PathEntry(context.step.instruction, context.plan.computation.name, context.iteration))
        found.extend(_scope_path(context.step.scope))
        context = context.parent
    found.reverse()
    return tuple(found)


def _scope_path(scope: Scope) -> list[PathEntry]:
    """The calls within one plan that lead to a scope, innermost first."""
    found: list[PathEntry] = []
    current: Scope | None = scope
    while current is not None and current.caller is not None:
        found.append(PathEntry(current.caller, current.computation.name, current.iteration))
        current = current.parent
    return found


@attrs.frozen(eq=False)
class Event:
    """An instruction that has just run; in loops there is one event per iteration, in fusions one per instruction
    inside."""

    instruction: Instruction
    value: Value
    """The result: a read-only array, a token, or a tuple of values."""
    operands: tuple[Value, ...]
    """The operands' values; empty for control flow, and for what only renames values (tuples, fusions, parameters
    …)."""
    seconds: float
    """How long the kernel took."""
    _scope: Scope
    _context: Context | None
    devices: tuple[int, ...] = (0,)
    """The devices that hold the value; an instruction whose devices hold several values makes an event for each."""

    @property
    def computation(self) -> Computation:
        """The computation that contains the instruction."""
        return self._scope.computation

    @property
    def path(self) -> tuple[PathEntry, ...]:
        """The calls that lead from the entry computation to the instruction's, outermost first."""
        return call_path(self._scope, self._context)

    @property
    def iteration(self) -> int | None:
        """The iteration of the innermost loop around the instruction, None outside of loops."""
        scope: Scope | None = self._scope
        context = self._context
        while True:
            # Unrolled loops have their iterations in scopes of one plan.
            while scope is not None:
                if scope.iteration is not None:
                    return scope.iteration
                scope = scope.parent
            if context is None:
                return None
            if context.iteration is not None:
                return context.iteration
            scope, context = context.step.scope, context.parent

    @property
    def name(self) -> str:
        """The path and the instruction in one line, e.g. `while.3[5]:body/fusion.2/add.7`; unique within a run."""
        return "/".join([*map(str, self.path), self.instruction.name])


@attrs.frozen(eq=False)
class Progress:
    """The progress of a run through the entry computation."""

    index: int
    """Steps of the entry's plan that are done."""
    total: int
    instruction: Instruction
    """The step of the entry's plan that runs now or has just run."""
    iteration: int | None
    """Where that is a loop: its iteration."""


@attrs.frozen
class Stage:
    """A stage of something that takes several."""

    name: str
    done: int = 0
    """How many of what it counts are done."""
    total: int | None = None
    """Of how many; None where that is not known."""


@runtime_checkable
class InstructionObserver(Protocol):
    """An observer of each instruction and its value."""

    def on_instruction(self, event: Event) -> None:
        """Called after the instruction has run, on each run of it; what it raises ends the run."""


@runtime_checkable
class ProgressObserver(Protocol):
    """An observer of the progress of a run, called at most ten times a second."""

    def on_progress(self, progress: Progress) -> None:
        """Called between two steps of the entry computation."""


@runtime_checkable
class StageObserver(Protocol):
    """An observer of the stages of what does more than run a module."""

    def on_stage(self, stage: Stage) -> None:
        """Called when a stage begins, and at most ten times a second while it goes on."""


class Stages:
    """Reports stages to those observers that want to know of them."""

    def __init__(self, observers: Sequence[object]) -> None:
        self._observers = tuple(entry for entry in observers if isinstance(entry, StageObserver))
        self._name = ""
        self._done = 0
        self._total: int | None = None
        self._next_report = 0.0

    def begin(self, name: str, total: int | None = None) -> None:
        """Go on to a stage, of `total` steps."""
        self._name, self._done, self._total = name, 0, total
        self._report()

    def tick(self) -> None:
        """Another step is done."""
        self._done += 1
        if self._observers and time.perf_counter() >= self._next_report:
            self._report()

    def _report(self) -> None:
        self._next_report = time.perf_counter() + _PROGRESS_SECONDS
        for observer in self._observers:
            observer.on_stage(Stage(self._name, self._done, self._total))


Observer: TypeAlias = InstructionObserver | ProgressObserver


class Attached:
    """The observers of one run."""

    def __init__(self, observers: Sequence[object]) -> None:
        for observer in observers:
            if isinstance(observer, type):
                raise InputError(f"observers must be objects, but the class {observer.__name__} was given")
            if not isinstance(observer, (InstructionObserver, ProgressObserver)):
                raise InputError(
                    "each of observers must have a method on_instruction or on_progress; "
                    f"{type(observer).__name__} has neither"
                )
        self._instruction = tuple(entry for entry in observers if isinstance(entry, InstructionObserver))
        self._progress = tuple(entry for entry in observers if isinstance(entry, ProgressObserver))
        self._next_report = 0.0
        self.see_instructions = bool(self._instruction)
        self.see_progress = bool(self._progress)

    def instruction(
        self,
        step: Step,
        slots: list[Any],
        operands: Sequence[Any] | None,
        seconds: float,
        context: Context | None,
        devices: tuple[int, ...],
    ) -> None:
        """Report a step whose results are in `slots`; `operands` is None if they are no longer available."""
        for array in arrays_of(slots[slot] for slot in step.results):
            array.flags.writeable = False
        held = {slot: slots[slot] for slot in step.results}
        held |= dict(zip(step.operands, operands or (), strict=False))
        split = [value.classes for value in held.values() if type(value) is Varying]
        if not split:
            self._report(step, held, operands is not None, seconds, context, devices)
            return
        classes, _ = joined(tuple(split))
        for number in range(max(classes) + 1):
            first = classes.index(number)
            values = {slot: of_position(value, first) for slot, value in held.items()}
            holders = tuple(device for device, entry in zip(devices, classes, strict=True) if entry == number)
            self._report(step, values, operands is not None, seconds, context, holders)

    def _report(
        self,
        step: Step,
        values: dict[int, Any],
        has_operands: bool,
        seconds: float,
        context: Context | None,
        devices: tuple[int, ...],
    ) -> None:
        operands = tuple(unflatten(tree, values) for tree in step.operand_trees) if has_operands else ()
        event = Event(step.instruction, unflatten(step.tree, values), operands, seconds, step.scope, context, devices)
        for observer in self._instruction:
            observer.on_instruction(event)

    def progress(self, index: int, total: int, instruction: Instruction, iteration: int | None = None) -> None:
        """Report progress, unless the last report is too recent."""
        now = time.perf_counter()
        if now < self._next_report and index < total:
            return
        self._next_report = now + _PROGRESS_SECONDS
        for observer in self._progress:
            observer.on_progress(Progress(index, total, instruction, iteration))


UNOBSERVED = Attached(())


def attach(observers: Sequence[Any] | None) -> Attached:
    """Check the observers of a run; InputError where one of them observes nothing."""
    return Attached(() if observers is None else listed("observers", observers, "observers"))
