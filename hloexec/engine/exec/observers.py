"""Observers: the single interface for watching a run.

An observer is an object with either of two methods. `on_instruction(event)` is called after each instruction of the
program, including those that only forward values and those inside fusions and loops. `on_progress(progress)` is called
from time to time, for progress bars. What does more than run a module, such as `hloexec.diff`, calls `on_stage(stage)`
of those that have it. Without observers a run has no overhead for them, and no observer can change a
result: the arrays that it sees are read-only. Only a controller may, which is an observer with a method
`on_value(event)`: what it returns takes the value's place. Under it, instructions run one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np

from hloexec.core.arguments import listed
from hloexec.core.ir import Computation, Instruction
from hloexec.core.places import CallPath, PathEntry
from hloexec.core.structs import frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array, Value
from hloexec.engine.devices.varying import Varying, arrays_among, joined, of_position, of_positions
from hloexec.engine.plan.kernels import unflatten
from hloexec.engine.plan.steps import Context, Scope, Step
from hloexec.errors import HloError, InputError
from hloexec.ops.registry import Role, role_of


def path_entry(instruction: Instruction, computation: str, iteration: int | None = None) -> PathEntry:
    """A call of a computation."""
    return PathEntry(instruction, computation, iteration, role_of(instruction) in (Role.WHILE, Role.CONDITIONAL))


def call_path(scope: Scope, context: Context | None) -> CallPath:
    """The calls that lead to a scope of a plan's run."""
    new: list[Context] = []
    while context is not None and context.path is None:
        new.append(context)
        context = context.parent
    path = CallPath() if context is None or context.path is None else context.path
    for each in reversed(new):
        call = path_entry(each.step.instruction, each.plan.computation.name, each.iteration)
        path = each.path = _path_within(path, each.step.scope).to(call)
    return _path_within(path, scope)


def _path_within(path: CallPath, scope: Scope) -> CallPath:
    """The path to a scope of a plan, of which the path is given."""
    found: list[PathEntry] = []
    current: Scope | None = scope
    while current is not None and current.caller is not None:
        found.append(path_entry(current.caller, current.computation.name, current.iteration))
        current = current.parent
    for call in reversed(found):
        path = path.to(call)
    return path


def path_of(place: Place) -> CallPath:
    """The calls that lead to the instruction's computation."""
    return call_path(place._scope, place._context)


class PathMemo:
    """The call paths of events, each mostly the one of that before."""

    def __init__(self) -> None:
        self._last: tuple[object, object, CallPath] | None = None
        """The activation that was met last, and its path."""

    def of(self, event: Event) -> CallPath:
        """The calls that lead to what has just run."""
        scope, context = event.activation
        if self._last is None or scope is not self._last[0] or context is not self._last[1]:
            self._last = scope, context, path_of(event)
        return self._last[2]


Activation: TypeAlias = tuple[object, object]
"""One run of a computation; equal to itself alone."""


@frozen(eq=False)
class Place:
    """An instruction in one of its runs."""

    instruction: Instruction
    _scope: Scope
    _context: Context | None
    devices: tuple[int, ...]
    """The devices that it ran on, with the same values."""

    @property
    def computation(self) -> Computation:
        """The computation that contains the instruction."""
        return self._scope.computation

    @property
    def path(self) -> tuple[PathEntry, ...]:
        """The calls that lead from the entry computation to the instruction's, outermost first."""
        return path_of(self).calls

    @property
    def iteration(self) -> int | None:
        """The iteration of the innermost loop around the instruction, None outside of loops."""
        return next(reversed(path_of(self).iterations), None)

    @property
    def name(self) -> str:
        """The path and the instruction in one line, e.g. `while.3[5]:body/fusion.2/add.7`; unique within a run."""
        return path_of(self).name_of(self.instruction.name)

    @property
    def activation(self) -> Activation:
        """The run of its computation."""
        return self._scope, self._context

    def activations(self) -> tuple[Activation, ...]:
        """The runs of the computations that it is in, outermost first: the entry, and one for each call of `path`."""
        return tuple(self._activations())

    def computations(self) -> tuple[Computation, ...]:
        """The computations that those are runs of."""
        return tuple(scope.computation for scope, _ in self._activations())

    def _activations(self) -> list[tuple[Scope, Context | None]]:
        activations: list[tuple[Scope, Context | None]] = []
        scope: Scope | None = self._scope
        context = self._context
        while scope is not None:
            activations.append((scope, context))
            scope = scope.parent
            if scope is None and context is not None:
                scope, context = context.step.scope, context.parent
        activations.reverse()
        return activations


@frozen(eq=False)
class Event(Place):
    """An instruction that has just run; in loops there is one event per iteration, in fusions one per instruction
    inside, and one per value where devices hold several."""

    value: Value
    """The result: a read-only array, a token, or a tuple of values."""
    operands: tuple[Value, ...]
    """The operands' values; empty for control flow, and for what only renames values (tuples, fusions, parameters
    …)."""
    seconds: float
    """How long the kernel took."""

    def failed(self, error: HloError) -> Failure:
        """The same run of the instruction as the last before an error that no instruction is to blame for."""
        return Failure(self.instruction, self._scope, self._context, self.devices, error)


@frozen(eq=False)
class Failure(Place):
    """An instruction that has failed, or the last that has run, where the run ends with an error."""

    error: HloError


@frozen(eq=False)
class Progress:
    """The progress of a run through the entry computation."""

    index: int
    """Steps of the entry's plan that are done."""
    total: int
    instruction: Instruction
    """The step of the entry's plan that runs now or has just run."""
    iteration: int | None
    """Where that is a loop: its iteration."""


@frozen(eq=False)
class LoopState:
    """A loop before its condition."""

    step: Step
    context: Context | None
    """The way to the step."""
    devices: tuple[int, ...]
    state: list[Array]
    """The carried leaves, which are the same on all devices."""
    iteration: int


@frozen
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
class LoopObserver(Protocol):
    """An observer that may run iterations of a loop, where no other is shown instructions."""

    def on_loop(self, loop: LoopState) -> tuple[list[Array], int] | None:
        """Called before each condition: the carried leaves after some iterations, and how many; None for none."""


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


@runtime_checkable
class Controller(Protocol):
    """An observer that may replace values, and that learns where a run fails."""

    def on_value(self, event: Event) -> Value | None:
        """Called after the instruction has run, before other observers.

        A value that it returns takes the place of the instruction's, for those that use it and for other observers: of
        the same element types and shapes. None leaves it as it is.
        """

    def on_failure(self, failure: Failure) -> None:
        """Called where an instruction has failed; the run ends."""


Observer: TypeAlias = InstructionObserver | ProgressObserver | Controller


_PROGRESS_SECONDS = 0.1


class Attached:
    """The observers of one run."""

    def __init__(self, observers: Sequence[object]) -> None:
        for observer in observers:
            if isinstance(observer, type):
                raise InputError(f"observers must be objects, but the class {observer.__name__} was given")
            if not isinstance(observer, (InstructionObserver, ProgressObserver, Controller)):
                raise InputError(
                    "each of observers must have a method on_instruction or on_progress; "
                    f"{type(observer).__name__} has neither"
                )
        self._instruction = tuple(entry for entry in observers if isinstance(entry, InstructionObserver))
        self._progress = tuple(entry for entry in observers if isinstance(entry, ProgressObserver))
        self._controllers = tuple(entry for entry in observers if isinstance(entry, Controller))
        self._next_report = 0.0
        self.controls = bool(self._controllers)
        self.may_replace = False
        """Whether the plan is one in which a value can be replaced."""
        self.see_instructions = bool(self._instruction or self._controllers)
        self.see_progress = bool(self._progress)
        self.iterating = (
            next((entry for entry in self._instruction if isinstance(entry, LoopObserver)), None)
            if len(self._instruction) == 1 and not self._controllers
            else None
        )
        """What may run iterations of loops."""

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
        held = {slot: slots[slot] for slot in step.results}
        for array in arrays_among(held.values()):
            array.flags.writeable = False
        if operands:
            held.update(zip(step.operands, operands, strict=False))
        if Varying not in map(type, held.values()):
            replacement = self._report(step, held, operands is not None, seconds, context, devices)
            if replacement is not None:
                for slot, leaf in zip(step.results, replacement, strict=True):
                    slots[slot] = leaf
            return
        classes, _ = joined(tuple(value.classes for value in held.values() if type(value) is Varying))
        replaced: dict[int, list[Any]] = {}
        for number in range(max(classes) + 1):
            first = classes.index(number)
            values = {slot: of_position(value, first) for slot, value in held.items()}
            holders = tuple(device for device, entry in zip(devices, classes, strict=True) if entry == number)
            replacement = self._report(step, values, operands is not None, seconds, context, holders)
            if replacement is not None:
                replaced[number] = replacement
        if replaced:
            for place, slot in enumerate(step.results):
                held_by = [
                    replaced[number][place] if number in replaced else of_position(slots[slot], position)
                    for position, number in enumerate(classes)
                ]
                slots[slot] = of_positions(held_by)

    def failed(self, step: Step, context: Context | None, devices: tuple[int, ...], error: HloError) -> None:
        """Report that a step has failed."""
        failure = Failure(step.instruction, step.scope, context, devices, error)
        for controller in self._controllers:
            controller.on_failure(failure)

    def _report(
        self,
        step: Step,
        values: dict[int, Any],
        has_operands: bool,
        seconds: float,
        context: Context | None,
        devices: tuple[int, ...],
    ) -> list[Any] | None:
        """Report the value of one class of devices; returns the leaves of what takes its place, if anything does."""
        operands = tuple([unflatten(tree, values) for tree in step.operand_trees]) if has_operands else ()
        value = unflatten(step.tree, values)
        event = Event(step.instruction, step.scope, context, devices, value, operands, seconds)
        leaves = None
        for controller in self._controllers:
            replacement = controller.on_value(event)
            if replacement is not None:
                leaves = self._replacement(event, replacement)
                event = attrs.evolve(event, value=unflatten(step.tree, dict(zip(step.results, leaves, strict=True))))
        for observer in self._instruction:
            observer.on_instruction(event)
        return leaves

    def _replacement(self, event: Event, value: Value) -> list[Any]:
        """The leaves of what takes the place of an event's value; InputError where it is not of the same shapes."""
        if not self.may_replace:
            raise InputError(UNREPLACEABLE)
        before, after = flat(event.value), flat(value)
        if len(before) != len(after) or not all(map(_is_alike, before, after)):
            raise InputError(f"the value for %{event.instruction.name} must have the shape {event.instruction.shape}")
        return [leaf if leaf is old else _read_only(leaf) for leaf, old in zip(after, before, strict=True)]

    def progress(self, index: int, total: int, instruction: Instruction, iteration: int | None = None) -> None:
        """Report progress, unless the last report is too recent."""
        now = time.perf_counter()
        if now < self._next_report and index < total:
            return
        self._next_report = now + _PROGRESS_SECONDS
        for observer in self._progress:
            observer.on_progress(Progress(index, total, instruction, iteration))


UNREPLACEABLE = (
    "values cannot be replaced under this numerics policy, under which instructions read some values of others before "
    "these are rounded; choose another, such as reference"
)


def _is_alike(before: object, after: object) -> bool:
    if not isinstance(before, np.ndarray):
        return before is after
    if not isinstance(after, (np.ndarray, np.generic)):
        return False
    return (after.dtype, after.shape) == (before.dtype, before.shape)


def _read_only(array: Any) -> Array:
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


UNOBSERVED = Attached(())


def attach(observers: Sequence[Any] | None) -> Attached:
    """Check the observers of a run; InputError where one of them observes nothing."""
    return Attached(() if observers is None else listed("observers", observers, "observers"))


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
