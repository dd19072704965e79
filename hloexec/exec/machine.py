"""The machine that runs plans on one device.

It keeps its own stack of frames, one per plan that is under way, so programs may nest as deep as they like. A frame's
steps run in a loop that does nothing but call kernels and drop dead values; control flow leaves the loop, and the
machine decides which frame goes on. `Machine` is the plain form; `WatchedMachine` does the same with observers, checks
or counters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.errors import EvaluationError
from hloexec.exec.faults import placed
from hloexec.exec.memory import Statistics
from hloexec.exec.observers import Attached, Context
from hloexec.exec.plan import (
    NO_SLOT,
    Conditional,
    FromHost,
    Invocation,
    Mark,
    Plan,
    SlotTree,
    Step,
    ToHost,
    While,
    leaves,
    rebuilt,
)
from hloexec.ir import ArrayShape, BufferShape, TupleShape, leaf_shapes
from hloexec.values import TOKEN

if TYPE_CHECKING:
    from hloexec.exec.host import Host

__all__ = ["Frame", "Machine", "WatchedMachine"]

_CONTEXT = np.zeros((), np.uint32)
"""The context of a started transfer, which means nothing here."""
_CONTEXT.flags.writeable = False


@attrs.define(eq=False)
class Frame:
    """A plan under way."""

    plan: Plan
    slots: list[Any]
    remaining: Iterator[Step]
    """The steps that are still to run; the loop over them stops and goes on with control flow."""
    parent: Frame | None = None
    context: Context | None = None
    """The parent's step that this frame carries out, and the way to it; None for the outermost frame."""
    loop: Loop | None = None


@attrs.define(eq=False)
class Loop:
    """A while loop under way."""

    flow: While
    state: list[Any]
    """The carried leaves while the condition runs; empty while the body, which owns them then, does."""
    iteration: int = 0
    in_body: bool = False


class Machine:
    """Runs plans; one per run.

    `host` is what a plan with host transfers exchanges values with (see `hloexec.exec.host`).
    """

    def __init__(self, host: Host | None = None) -> None:
        self._host = host

    def run(self, plan: Plan, arguments: list[Any]) -> list[Any]:
        """The leaves of the plan's result on the leaves of its arguments.

        The list of arguments is emptied, so that values which nobody else holds can be freed as soon as they are dead.
        """
        frame = self._frame(plan, arguments, None, None)
        while True:
            step = self._advance(frame)
            if step is not None:
                if isinstance(step.flow, (FromHost, ToHost)):
                    self._exchange(frame, step)
                else:
                    frame = self._enter(frame, step)
                continue
            results = [frame.slots[slot] for slot in frame.plan.results]
            self._finished(frame)
            if frame.parent is None:
                return results
            frame = self._return(frame, results)

    def _frame(
        self,
        plan: Plan,
        arguments: list[Any],
        parent: Frame | None,
        step: Step | None,
        loop: Loop | None = None,
    ) -> Frame:
        slots = plan.initial.copy()
        slots[: len(arguments)] = arguments
        arguments.clear()
        for slot in plan.dead_on_entry:
            slots[slot] = None
        context = None
        if parent is not None and step is not None:
            context = Context(step, plan, None if loop is None else loop.iteration, parent.context)
        return Frame(plan, slots, iter(plan.steps), parent, context, loop)

    def _advance(self, frame: Frame) -> Step | None:
        """Run steps until one needs another frame, which is returned, or the plan ends."""
        slots = frame.slots
        step: Step | None = None
        try:
            for step in frame.remaining:
                function = step.function
                if function is None:
                    if step.flow is Mark.MARK:
                        continue
                    return step
                # No name may hold a result here: it would outlive its slot.
                if step.result != NO_SLOT:
                    slots[step.result] = function(*step.fetch(slots))
                else:
                    store(step.results, function(*step.fetch(slots)), slots)
                for slot in step.dead:
                    slots[slot] = None
        except Exception as error:
            assert step is not None
            raise placed(error, step, frame.context) from error
        return None

    # Transfers

    def _exchange(self, frame: Frame, step: Step) -> None:
        """Take a value from the host, or hand one over."""
        try:
            for slot, value in zip(step.results, self._exchanged(frame.slots, step), strict=True):
                frame.slots[slot] = value
        except Exception as error:
            raise placed(error, step, frame.context) from error
        self._completed(frame, step)
        self._drop(frame, step)

    def _exchanged(self, slots: list[Any], step: Step) -> list[Any]:
        """The leaves of a transfer's value."""
        flow, host = step.flow, self._host
        if host is None:
            raise EvaluationError("there is no host to exchange values with")
        if isinstance(flow, FromHost):
            shape = step.instruction.shape
            assert isinstance(shape, TupleShape)
            return [*host.take(flow, shape.elements[0]), TOKEN]
        assert isinstance(flow, ToHost)
        data = step.operand_trees[0]
        host.give(flow, rebuilt(data, _branches, lambda slot: _copied(slots[slot])))
        if flow.channel is None:
            return [TOKEN]
        return [*(slots[slot] for slot in leaves(data)), _CONTEXT, TOKEN]

    # Control flow

    def _enter(self, frame: Frame, step: Step) -> Frame:
        """The frame that carries out a step of control flow."""
        slots = frame.slots
        flow = step.flow
        if isinstance(flow, Conditional):
            branch = flow.select(slots[step.operands[0]])
            arguments = [slots[slot] for slot in step.operands[branch.start : branch.stop]]
            self._drop(frame, step)
            return self._frame(branch.plan, arguments, frame, step)
        arguments = [slots[slot] for slot in step.operands]
        self._drop(frame, step)
        if isinstance(flow, Invocation):
            return self._frame(flow.plan, arguments, frame, step)
        assert isinstance(flow, While)
        loop = Loop(flow, arguments)
        return self._frame(flow.condition, list(arguments), frame, step, loop)

    def _return(self, frame: Frame, results: list[Any]) -> Frame:
        """The frame that goes on after `frame` has ended with `results`."""
        parent, loop = frame.parent, frame.loop
        assert parent is not None and frame.context is not None
        step = frame.context.step
        if loop is not None:
            if loop.in_body:
                loop.in_body = False
                loop.iteration += 1
                loop.state = results
                return self._frame(loop.flow.condition, list(results), parent, step, loop)
            if results[0]:
                loop.in_body = True
                state, loop.state = loop.state, []
                return self._frame(loop.flow.body, state, parent, step, loop)
            results, loop.state = loop.state, []
        for slot, value in zip(step.results, results, strict=True):
            parent.slots[slot] = value
        self._completed(parent, step)
        self._drop(parent, step)
        return parent

    def _drop(self, frame: Frame, step: Step) -> None:
        slots = frame.slots
        for slot in step.dead:
            slots[slot] = None

    def _completed(self, frame: Frame, step: Step) -> None:
        """A step of control flow has its results in place."""

    def _finished(self, frame: Frame) -> None:
        """The plan of a frame has ended, and its results are taken out."""


class WatchedMachine(Machine):
    """Runs plans as `Machine` does, and reports to observers, checks results and counts bytes where asked."""

    def __init__(
        self,
        attached: Attached,
        *,
        check: bool = False,
        statistics: Statistics | None = None,
        host: Host | None = None,
    ) -> None:
        super().__init__(host)
        self._attached = attached
        self._check = check
        self._statistics = statistics
        self._done = 0
        """Steps of the outermost plan that have begun."""

    def run(self, plan: Plan, arguments: list[Any]) -> list[Any]:
        if self._statistics is not None:
            for value in arguments:
                self._statistics.ignore(value)
        return super().run(plan, arguments)

    def _frame(
        self,
        plan: Plan,
        arguments: list[Any],
        parent: Frame | None,
        step: Step | None,
        loop: Loop | None = None,
    ) -> Frame:
        statistics = self._statistics
        if statistics is not None:
            for slot in plan.constant_slots:
                statistics.ignore(plan.initial[slot])
            for slot, value in enumerate(arguments):
                if slot not in plan.dead_on_entry:
                    statistics.take(value)
        if parent is not None and parent.parent is None and step is not None and self._attached.see_progress:
            iteration = loop.iteration if loop is not None else None
            self._attached.progress(self._done, len(parent.plan.steps), step.instruction, iteration)
        return super()._frame(plan, arguments, parent, step, loop)

    def _advance(self, frame: Frame) -> Step | None:
        slots = frame.slots
        attached, statistics = self._attached, self._statistics
        is_entry = frame.parent is None
        total = len(frame.plan.steps)
        step: Step | None = None
        try:
            for step in frame.remaining:
                if is_entry:
                    self._done += 1
                    if attached.see_progress:
                        attached.progress(self._done, total, step.instruction)
                operands: Sequence[Any] | None = None
                seconds = 0.0
                if step.function is None:
                    if step.flow is not Mark.MARK:
                        return step
                else:
                    operands = step.fetch(slots)
                    start = time.perf_counter()
                    value = step.function(*operands)
                    seconds = time.perf_counter() - start
                    store(step.results, value if step.result == NO_SLOT else (value,), slots)
                    del value
                    if self._check and not step.is_silent:
                        check_results(step, slots)
                    if statistics is not None:
                        statistics.steps += 1
                        for slot in step.results:
                            statistics.take(slots[slot])
                if attached.see_instructions and not step.is_silent:
                    attached.instruction(step, slots, operands, seconds, frame.context)
                del operands
                self._drop(frame, step)
        except Exception as error:
            assert step is not None
            raise placed(error, step, frame.context) from error
        return None

    def _drop(self, frame: Frame, step: Step) -> None:
        statistics = self._statistics
        if statistics is not None:
            for slot in step.dead:
                statistics.release(frame.slots[slot])
        super()._drop(frame, step)

    def _finished(self, frame: Frame) -> None:
        if self._statistics is not None:
            constants = frame.plan.constant_slots
            for slot, value in enumerate(frame.slots):
                if slot not in constants:
                    self._statistics.release(value)
        if frame.parent is None and self._attached.see_progress and frame.plan.steps:
            total = len(frame.plan.steps)
            self._attached.progress(total, total, frame.plan.steps[-1].instruction)

    def _completed(self, frame: Frame, step: Step) -> None:
        if self._statistics is not None:
            for slot in step.results:
                self._statistics.take(frame.slots[slot])
        if self._attached.see_instructions:
            self._attached.instruction(step, frame.slots, None, 0.0, frame.context)


def _branches(tree: SlotTree) -> tuple[SlotTree, ...] | None:
    return tree if isinstance(tree, tuple) else None


def _copied(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def store(results: Sequence[int], value: Any, slots: list[Any]) -> None:
    """Put the leaves of a tuple that a kernel returned into their slots."""
    if any(isinstance(element, tuple) for element in value):
        value = _flat(value)
    for slot, leaf in zip(results, value, strict=True):
        slots[slot] = leaf


def _flat(value: Any) -> list[Any]:
    found: list[Any] = []
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(reversed(current))
        else:
            found.append(current)
    return found


def check_results(step: Step, slots: list[Any]) -> None:
    """Raise EvaluationError unless a kernel returned what its instruction declares; bounds hold for dynamic sizes."""
    for slot, (index, shape) in zip(step.results, leaf_shapes(step.instruction.shape), strict=True):
        value = slots[slot]
        if not fits(value, shape):
            given = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            raise EvaluationError(f"the kernel returned {given} as result {list(index)}, where the shape is {shape}")


def fits(value: Any, shape: ArrayShape | BufferShape) -> bool:
    """Whether a leaf is of a shape; a dynamic dimension is of any size up to its bound."""
    array_shape = shape.element if isinstance(shape, BufferShape) else shape
    if not array_shape.is_array:
        return not isinstance(value, np.ndarray) or value is TOKEN
    if not isinstance(value, np.ndarray) or value.dtype != array_shape.element_type.storage:
        return False
    if not array_shape.dynamic_dimensions:
        return bool(value.shape == array_shape.dimensions)
    return value.ndim == array_shape.rank and all(
        size == bound or (dynamic and (bound < 0 or size <= bound))
        for size, bound, dynamic in zip(
            value.shape, array_shape.dimensions, array_shape.dynamic_dimensions, strict=True
        )
    )
