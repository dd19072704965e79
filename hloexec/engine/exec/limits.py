"""Limits that users set on a run: loop iterations and time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import leaf_shapes
from hloexec.core.structs import define
from hloexec.core.wording import argument, braced
from hloexec.engine.devices.varying import Varying
from hloexec.engine.exec.tasks import Frame, Loop
from hloexec.engine.plan.steps import Plan, Scope, While
from hloexec.errors import ResourceError
from hloexec.ops.registry import OPCODES, Role

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
        return f"{name} = {' or '.join(str(_text(each)) for each in value.values)}"
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
