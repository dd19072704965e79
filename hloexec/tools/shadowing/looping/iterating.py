"""Running iterations of a loop: each instruction on the values as they are and, in f64, on what they would be without
rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.fast.indexing import WindowWriter
from hloexec.tools.shadowing.looping.program import LoopProgram, Node, Wrong
from hloexec.tools.shadowing.looping.recording import Recorder, Recording
from hloexec.tools.shadowing.store import Shadow, finite_energy_of, wide


def recorded(
    program: LoopProgram, wrong: Wrong, state: Sequence[Array], shadows: Sequence[Shadow | None], most: int
) -> Recording:
    """Run at most so many iterations on what a loop carries; fewer, where its condition gives false."""
    values: list[Any] = [None] * len(program.shapes)
    exact: list[Any] = [None] * len(program.shapes)
    for slot, constant in program.constants.items():
        values[slot] = constant
        exact[slot] = wide(constant) if slot in wrong.asked else None
    carried = list(zip(program.parameters, program.condition_parameters, program.results, strict=True))
    for (ours, theirs, _), array, shadow in zip(carried, state, shadows, strict=True):
        values[ours] = values[theirs] = array
        if ours in wrong.slots or not wrong.asked.isdisjoint((ours, theirs)):
            exact[ours] = exact[theirs] = wide(array) if shadow is None else shadow.exact(array)
    changing = [each for each in carried if each[0] != each[2]]
    recorder = Recorder(program, wrong, most)
    stacks = {number: _Stack(program.nodes[number], wrong, values, exact) for number in program.stacks}
    conditions = [_step(node, wrong, None) for node in program.nodes[: program.conditions]]
    body = [
        _step(node, wrong, stacks.get(number))
        for number, node in enumerate(program.nodes[program.conditions :], program.conditions)
    ]
    while recorder.rows < most:
        _run(conditions, values, exact)
        if not values[program.again]:
            break
        _run(body, values, exact)
        recorder.note(values, exact, {stack.slot: stack.outside(values, exact) for stack in stacks.values()})
        after = [(values[result], exact[result]) for _, _, result in changing]
        for (ours, theirs, _), (value, number) in zip(changing, after, strict=True):
            values[ours] = values[theirs] = value
            exact[ours] = exact[theirs] = number
    return recorder.recording(values, exact)


_CANCELLED = 1e-6
"""Where less of a sum is left, it is added up again."""


class _Stack:
    """An array that a loop carries, and that each iteration writes a part of and does nothing else with."""

    def __init__(self, node: Node, wrong: Wrong, values: Sequence[Array], exact: Sequence[Array]) -> None:
        self.slot, self._update, *_ = node.operands
        self._is_wrong = node.result in wrong.slots
        self.function, self.kernel = _Writing(node.function), _Writing(node.kernel)
        self._energy = finite_energy_of(exact[self.slot] - wide(values[self.slot])) if self._is_wrong else 0.0

    def outside(self, values: Sequence[Array], exact: Sequence[Array]) -> float:
        """The sum of the squared finite errors of all that the last iteration has not written."""
        if not self._is_wrong:
            return 0.0
        written = finite_energy_of(exact[self._update] - wide(values[self._update]))
        rest = self._energy - finite_energy_of(self.kernel.replaced - wide(self.function.replaced))
        if rest < _CANCELLED * self._energy:
            rest = max(0.0, finite_energy_of(exact[self.slot] - wide(values[self.slot])) - written)
        self._energy = rest + written
        return rest


class _Writing:
    """Writes parts of an array, which is copied the first time."""

    def __init__(self, function: Callable[..., Any] | None) -> None:
        assert isinstance(function, WindowWriter)
        self._function = function
        self._own: Array | None = None
        self.replaced: Array
        """What was there before the last time."""

    def __call__(self, operand: Array, update: Array, *starts: Any) -> Array:
        out = operand if operand is self._own else writeable(operand)
        self.replaced = out[self._function.index(starts)].copy()
        self._own = self._function(operand, update, *starts, out=out)
        return self._own


_Step = tuple[Callable[..., Any], tuple[int, ...], int, Callable[..., Any] | None, bool]
"""A kernel, its operands and its result; the kernel for f64 where there may be errors; and whether something else needs
the value in f64."""


def _step(node: Node, wrong: Wrong, stack: _Stack | None) -> _Step:
    function, kernel = (node.function, node.kernel) if stack is None else (stack.function, stack.kernel)
    is_wrong, is_asked = node.result in wrong.slots, node.result in wrong.asked
    return function, node.operands, node.result, kernel if is_wrong else None, is_asked


def _run(steps: Sequence[_Step], values: list[Any], exact: list[Any]) -> None:
    for function, operands, result, kernel, is_asked in steps:
        values[result] = value = function(*[values[slot] for slot in operands])
        if kernel is not None:
            exact[result] = np.asarray(kernel(*[exact[slot] for slot in operands]))
        elif is_asked:
            exact[result] = value.astype(np.float64) if value.dtype == np.float32 else wide(value)
