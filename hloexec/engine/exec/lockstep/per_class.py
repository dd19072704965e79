"""Kernels on operands that differ between devices: they run once per class of the common refinement of the operands'
partitions. Kernels that round at random take all classes of small arrays at once.

If a large operand dies with the step, the value of each class is freed as soon as the last class that needs it has run,
so that it does not stay allocated together with the results of all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloexec.core.values import flat
from hloexec.engine.devices.varying import Varying, belongs_to_one, combined, last_uses, members, of_class, split
from hloexec.engine.exec.ownership import free_classes, is_held_twice
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.steps import Step
from hloexec.errors import HloError


class EachClass:
    """Runs kernels once per class of devices; `keeps_operands` where something else looks at operands afterwards."""

    def __init__(self, *, keeps_operands: bool = False) -> None:
        self._keeps_operands = keeps_operands
        self.running: Sequence[int] = ()
        """The devices for which a kernel runs; none between kernels."""

    def run(self, devices: tuple[int, ...], step: Step, operands: Sequence[Any], slots: list[Any]) -> None:
        """Run a kernel with operands that differ between `devices`, and store its results in their slots."""
        assert step.function is not None
        places, classes, rows = split(operands)
        holders = members(devices, classes)
        freed: list[tuple[int, int]] = []
        reused: list[bool] | None = None
        if not self._keeps_operands:
            freed = _freed_by_class(step, places, slots) if step.is_large else []
            reused = _reused_by_class(step, places, slots, rows)
        is_last = last_uses(rows) if freed else ()
        results = [] if step.is_large else _results_at_once(step, operands, places, rows)
        for number, result in enumerate(results):
            self.made(result, holders[number])
        for number in range(len(results), len(rows)):
            self.running = holders[number]
            given = of_class(operands, places, rows[number])
            if reused is not None and reused[number]:
                results.append(step.function(*given, out=given[step.operands.index(step.reused)]))
            else:
                results.append(step.function(*given))
            del given
            self.made(results[number], holders[number])
            for place, column in freed:
                if is_last[column][number]:
                    self._free(operands[place], rows[number][column], devices)
        self.running = ()
        for result, holder in zip(results, holders, strict=True):
            self.freed(result, holder)
        if step.result != NO_SLOT:
            slots[step.result] = combined(classes, results)
            return
        columns = zip(*(flat(result) for result in results), strict=True)
        for slot, values in zip(step.results, columns, strict=True):
            slots[slot] = combined(classes, values)

    def _free(self, split: Varying, number: int, devices: tuple[int, ...]) -> None:
        """Free the value of one class after its last use."""
        self.freed(split.values[number], members(devices, split.classes)[number])
        split.values[number] = None

    # What others may watch

    def made(self, value: object, devices: Sequence[int]) -> None:
        """A kernel has returned a value for a class of devices, which is in no slot yet."""

    def freed(self, value: object, devices: Sequence[int]) -> None:
        """The value of a class of devices is no longer needed, or is now in its slot."""


def _results_at_once(
    step: Step, operands: Sequence[Any], places: Sequence[int], rows: Sequence[Sequence[int]]
) -> list[Any]:
    """The results of all classes where a kernel finds them together in less time; else none."""
    of_each = getattr(step.function, "of_each", None)
    if of_each is None:
        return []
    try:
        return of_each([of_class(operands, places, row) for row in rows]) or []
    except Exception as error:
        # An HloError is raised again for the class that makes it, and names its devices there.
        if not isinstance(error, HloError):
            warn_of_failure(f"computing %{step.instruction.name} for all devices at once", error)
        return []


def _freed_by_class(step: Step, places: Sequence[int], slots: Sequence[object]) -> list[tuple[int, int]]:
    """The operands that die with each class that has run, and where they stand among those that are split."""
    return [
        (place, column)
        for column, place in enumerate(places)
        if step.operands[place] in step.dead and is_held_twice(slots, step.operands[place])
    ]


def _reused_by_class(
    step: Step, places: Sequence[int], slots: Sequence[object], rows: tuple[tuple[int, ...], ...]
) -> list[bool] | None:
    """For each class, whether its value of the operand that may be overwritten has no other references; None: for
    none."""
    if step.reused == NO_SLOT:
        return None
    place = step.operands.index(step.reused)
    free = free_classes(slots, step.reused) if place in places else ()
    if not free:
        return None
    column = places.index(place)
    # No two of the new classes may share one.
    return [free[row[column]] and alone for row, alone in zip(rows, belongs_to_one(rows)[column], strict=True)]
