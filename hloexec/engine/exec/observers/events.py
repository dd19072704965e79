"""What observers are told: which instruction ran, on which path of calls, and what it gave; and how far a run is."""

from __future__ import annotations

from typing import TypeAlias

from hloexec.core.ir import Computation, Instruction
from hloexec.core.places import CallPath, PathEntry
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value
from hloexec.engine.plan.steps import Context, Scope, Step
from hloexec.errors import HloError
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
        found: list[tuple[Scope, Context | None]] = []
        scope: Scope | None = self._scope
        context = self._context
        while scope is not None:
            found.append((scope, context))
            scope = scope.parent
            if scope is None and context is not None:
                scope, context = context.step.scope, context.parent
        found.reverse()
        return found


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
