"""Limits that users set on a run, and errors at a step, with their location."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import Instruction, leaf_shapes
from hloexec.core.structs import define
from hloexec.core.wording import argument, braced, on_devices, truncated
from hloexec.engine.devices.varying import Varying
from hloexec.engine.exec.observers import call_path
from hloexec.engine.exec.tasks import Frame, Loop
from hloexec.engine.plan.steps import Context, PartError, Plan, Scope, Step, While
from hloexec.errors import EvaluationError, HloError, InputError, ResourceError, UnsupportedError
from hloexec.ops.registry import OPCODES, Role

_TEXT_LENGTH = 300


def with_place(error: Exception, step: Step, context: Context | None, devices: Sequence[int] = ()) -> HloError:
    """The error of a kernel, with the instruction, the way to it, where its source is, and the devices it ran for."""
    if isinstance(error, PartError) and isinstance(error.__cause__, Exception):
        step, error = error.step, error.__cause__
    instruction = step.instruction
    text = str(error) if isinstance(error, HloError) else f"{type(error).__name__}: {error}".rstrip(": ")
    lines = [
        f"%{instruction.name} {computation_text(step, context)} failed{on_devices(devices)}: {text}",
        f"  {instruction_text(instruction, step)}",
    ]
    metadata = instruction.metadata
    if metadata is not None and metadata.source_file:
        lines.append(f"  from {metadata.source_file}:{metadata.source_line or '?'}")
    kind: type[HloError] = EvaluationError
    if isinstance(error, (InputError, UnsupportedError, ResourceError)):
        kind = type(error)
    elif isinstance(error, MemoryError):
        kind = ResourceError
    return kind("\n".join(lines))


def computation_text(step: Step, context: Context | None) -> str:
    """The computation that a step was written in, and the way to it."""
    calls = call_path(step.scope, context).calls
    return f"in computation {step.scope.computation.name}" + (
        f", reached through {' / '.join(map(str, calls))}" if calls else ""
    )


def instruction_text(instruction: Instruction, step: Step | None = None) -> str:
    """One line for an instruction: name, shape, opcode and operands with their shapes, shortened."""
    by_name = step.scope.computation.by_name if step is not None else {}
    operands = ", ".join(
        f"{by_name[name].shape} %{name}" if name in by_name else f"%{name}" for name in instruction.operands
    )
    text = f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands})"
    return truncated(text, _TEXT_LENGTH)


_SHOWN_ELEMENTS = 4
"""Of a larger value that a condition reads, the shape alone is shown."""


@define(eq=False)
class Limits:
    """The limits of one run; it begins when they are made."""

    max_iterations: int | None
    timeout: float | None
    _deadline: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._deadline = float("inf") if self.timeout is None else time.monotonic() + self.timeout

    def note(self, loop: Loop) -> None:
        """Remember what the condition of a loop, whose state is there, reads of it."""
        loop.read = _read(loop.flow, loop.state)

    def require_iteration(self, loop: Loop) -> None:
        """ResourceError where a loop, whose condition gave true, may not have another iteration."""
        self.note(loop)
        if self.max_iterations is not None and loop.iteration >= self.max_iterations:
            raise ResourceError(
                f"{argument('max_iterations', self.max_iterations)} ends the loop, which {_progress(loop)}"
            )

    def require_unrolled(self, plan: Plan) -> None:
        """ResourceError where the plan holds a loop, unrolled, of more iterations than there may be."""
        if self.max_iterations is None:
            return
        scopes: Iterable[Scope | None] = (step.scope for step in plan.program)
        for scope in dict.fromkeys(scopes):
            while scope is not None:
                if scope.iteration is not None and scope.iteration >= self.max_iterations and scope.caller is not None:
                    raise ResourceError(
                        f"{argument('max_iterations', self.max_iterations)} ends the loop %{scope.caller.name}, which "
                        f"has more (its body is computation {scope.computation.name})"
                    )
                scope = scope.parent

    def require_time(self, frames: Sequence[Frame], loop: Loop | None = None) -> None:
        """ResourceError where the run, which is in these frames and perhaps at a loop, has taken too long."""
        if time.monotonic() < self._deadline:
            return
        lines = [f"{argument('timeout', format(self.timeout, 'g'))} ends the run, which has taken longer"]
        for frame in frames:
            if frame.loop is not None and frame.context is not None:
                lines.append(f"  the loop %{frame.context.step.instruction.name} {_progress(frame.loop)}")
        if loop is not None:
            lines.append(f"  the loop {_progress(loop)}")
        raise ResourceError("\n".join(lines))


def _progress(loop: Loop) -> str:
    return f"has run {loop.iteration} iteration{'s' * (loop.iteration != 1)}; {_reading(loop)}"


def _reading(loop: Loop) -> str:
    """What the condition last read."""
    return f"its condition {loop.flow.condition.computation.name} read {', '.join(map(_shown, loop.read)) or 'nothing'}"


def _shown(entry: tuple[str, Any]) -> str:
    name, value = entry
    if type(value) is Varying:
        return f"{name} = {' or '.join(str(_text(part)) for part in value.values)}"
    return f"{name} = {_text(value)}"


def _text(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return "a token"
    return str(value.tolist()) if value.size <= _SHOWN_ELEMENTS else f"{value.dtype}{list(value.shape)}"


def _read(flow: While, state: Sequence[Any]) -> list[tuple[str, Any]]:
    """What the condition reads, by name; small values are copied, as an iteration may overwrite them."""
    names = _leaf_names(flow.condition)
    unread = {*flow.condition.dead_on_entry}
    return [
        (name, value.copy() if isinstance(value, np.ndarray) and value.size <= _SHOWN_ELEMENTS else value)
        for name, slot, value in zip(names, flow.condition.parameters, state, strict=False)
        if slot not in unread
    ]


@cache
def _leaf_names(condition: Plan) -> tuple[str, ...]:
    """What the computation of a condition calls the leaves of its parameter."""
    computation = condition.computation
    (parameter,) = computation.parameters
    names = [
        f"{parameter.name}{braced(index)}" if index else parameter.name for index, _ in leaf_shapes(parameter.shape)
    ]
    numbers = {index: number for number, (index, _) in enumerate(leaf_shapes(parameter.shape))}
    for instruction in computation.instructions:
        is_part = OPCODES[instruction.opcode].role is Role.GET_TUPLE_ELEMENT
        number = numbers.get((instruction.attributes.index,)) if is_part else None
        if number is not None and instruction.operands == (parameter.name,):
            names[number] = instruction.name
    return tuple(names)
