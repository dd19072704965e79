"""The observers of one run, and how they are called: with values that they cannot change, and not too often."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.arguments import listed
from hloexec.core.ir import Instruction
from hloexec.core.values import Array, Value, flat
from hloexec.engine.devices.varying import Varying, arrays_among, joined, of_position, of_positions
from hloexec.engine.exec.observers.events import Event, Failure, Progress, Stage
from hloexec.engine.exec.observers.protocols import (
    Controller,
    InstructionObserver,
    LoopObserver,
    ProgressObserver,
    StageObserver,
)
from hloexec.engine.plan.kernels import unflatten
from hloexec.engine.plan.steps import Context, Step
from hloexec.errors import HloError, InputError

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
            found = controller.on_value(event)
            if found is not None:
                leaves = self._replacement(event, found)
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
