"""Running iterations of a loop: each instruction on the values as they are and, in f64, on what they would be without
rounding. What the accounts need of each iteration is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.shadowing.computing.moving import is_inexact
from hloexec.shadowing.looping.program import Kind, LoopProgram, Node, Wrong
from hloexec.shadowing.store import Shadow, energy_of, wide
from hloexec.values import Array

__all__ = ["Recording", "recorded"]


@attrs.frozen(eq=False)
class Recording:
    """Some iterations, in which the condition gave true."""

    program: LoopProgram
    wrong: Wrong
    rows: int
    """How many there are."""
    state: list[Array]
    """What the loop carries after them."""
    exact: dict[int, Array]
    """Of that what may have errors, without rounding."""
    values: dict[int, Array]
    """By slot, the values of all iterations; of what is the same in all, that alone."""
    numbers: dict[int, Array]
    """The same in f64 without rounding, of slots that may have errors."""
    energies: dict[int, Array]
    """The sums of the squared errors, for each iteration."""
    decisions: dict[int, tuple[int, int]]
    """By node, how many elements would be others without rounding, and of how many."""

    def values_of(self, slot: int) -> Array:
        """The values in f64, integers and preds as they are: [rows, elements], or [1, elements] where all are alike."""
        found = wide(self.values[slot])
        return found.reshape(1 if slot in self.program.invariant else self.rows, -1)

    def numbers_of(self, slot: int) -> Array:
        """The same without rounding."""
        return self.numbers[slot].reshape(1 if slot in self.program.invariant else self.rows, -1)


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
    kept = {slot: _rows(program, slot, most, is_wide=False) for slot in wrong.recorded}
    numbers = {slot: _rows(program, slot, most, is_wide=True) for slot in wrong.recorded & wrong.slots}
    energies = {slot: np.empty(most) for slot in wrong.weighed}
    decisions: dict[int, tuple[int, int]] = {}
    conditions = _steps(program.nodes[: program.conditions], wrong)
    body = _steps(program.nodes[program.conditions :], wrong)
    deciding = [(number, node) for number, node in enumerate(program.nodes) if _decides(node, wrong)]
    rows = 0
    while rows < most:
        _run(conditions, values, exact)
        if not values[program.again]:
            break
        _run(body, values, exact)
        for number, node in deciding:
            changed, count = decisions.get(number, (0, 0))
            its = _decided(node, values, exact)
            decisions[number] = changed + its[0], count + its[1]
        for slot, rows_of in kept.items():
            rows_of[rows] = values[slot]
        for slot, rows_of in numbers.items():
            rows_of[rows] = exact[slot]
        for slot, rows_of in energies.items():
            rows_of[rows] = energy_of(exact[slot] - wide(values[slot]))
        rows += 1
        after = [(values[result], exact[result]) for _, _, result in changing]
        for (ours, theirs, _), (value, number) in zip(changing, after, strict=True):
            values[ours] = values[theirs] = value
            exact[ours] = exact[theirs] = number
    same = {slot: values[slot] for slot in program.invariant}
    return Recording(
        program=program,
        wrong=wrong,
        rows=rows,
        state=[values[ours] for ours, _, _ in carried],
        exact={number: exact[ours] for number, (ours, _, _) in enumerate(carried) if ours in wrong.slots},
        values={slot: array[:rows] for slot, array in kept.items()} | same,
        numbers={slot: array[:rows] for slot, array in numbers.items()}
        | {slot: exact[slot] for slot in program.invariant & wrong.slots},
        energies={slot: array[:rows] for slot, array in energies.items()},
        decisions=decisions,
    )


def _rows(program: LoopProgram, slot: int, count: int, *, is_wide: bool) -> Array:
    shape = program.array_shape(slot)
    return np.empty((count, *shape.dimensions), np.float64 if is_wide else shape.element_type.storage)


_Step = tuple[Callable[..., Any], tuple[int, ...], int, Callable[..., Any] | None, bool]
"""A kernel, its operands and its result; the kernel for f64 where there may be errors; and whether something else needs
the value in f64."""


def _steps(nodes: Sequence[Node], wrong: Wrong) -> list[_Step]:
    return [
        (
            node.function,
            node.operands,
            node.result,
            node.kernel if node.result in wrong.slots else None,
            node.result in wrong.asked,
        )
        for node in nodes
    ]


def _run(steps: Sequence[_Step], values: list[Any], exact: list[Any]) -> None:
    for function, operands, result, kernel, is_asked in steps:
        values[result] = value = function(*[values[slot] for slot in operands])
        if kernel is not None:
            exact[result] = np.asarray(kernel(*[exact[slot] for slot in operands]))
        elif is_asked:
            exact[result] = value.astype(np.float64) if value.dtype == np.float32 else wide(value)


def _decides(node: Node, wrong: Wrong) -> bool:
    is_number = node.kind is Kind.VALUE and not node.shape.element_type.is_inexact
    return is_number and node.kernel is not None and not wrong.slots.isdisjoint(node.operands)


def _decided(node: Node, values: list[Any], exact: list[Any]) -> tuple[int, int]:
    """How many elements would be others without rounding, and of how many: of none where no operand has an error."""
    assert node.kernel is not None
    pairs = [(values[slot], exact[slot]) for slot in node.operands]
    if not any(is_inexact(value) and np.any(wide(value) != number) for value, number in pairs):
        return 0, 0
    value = values[node.result]
    return int(np.count_nonzero(value != node.kernel(*[number for _, number in pairs]))), value.size
