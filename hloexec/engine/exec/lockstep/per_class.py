"""Kernels and loops on operands that differ between devices: once for each class of equal ones.

If a large operand dies with the step, the value of each class is freed as soon as the last class that needs it has run,
so that it does not stay allocated together with the results of all classes.

Loops that each class of devices runs separately. In lockstep, each class of devices executes a step before any executes
the next, and the values of a class have left the cache before they are used again. A loop in which devices exchange
nothing can instead be run for each class from its first iteration to its last, and for several classes in parallel if
there are enough cores. This pays if nearly all work is on values that differ between classes, because values that the
classes share are computed once per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.varying import (
    Classes,
    Varying,
    belongs_to_one,
    combined,
    joined,
    last_uses,
    members,
    of_class,
    split,
)
from hloexec.engine.exec.placement import free_classes, is_held_twice
from hloexec.engine.exec.tasks import Frame
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.memory import spread_of
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.steps import COMMUNICATION, Plan, Step, While, inner_plans
from hloexec.errors import HloError
from hloexec.ops.resources import core_count, in_blocks


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
            class_operands = of_class(operands, places, rows[number])
            if reused is not None and reused[number]:
                results.append(step.function(*class_operands, out=class_operands[step.operands.index(step.reused)]))
            else:
                results.append(step.function(*class_operands))
            del class_operands
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


_COMMON_SHARE = 0.1
"""How much of a loop's work may be on values that classes have in common, as a part of the bytes that steps touch."""


@define(eq=False)
class ClassOperands:
    """A class of devices before a loop."""

    devices: tuple[int, ...]
    operands: list[Any]
    """What the class holds of the loop's operands."""


_verdicts: WeakKeyDictionary[While, dict[tuple[Classes, ...], bool]] = WeakKeyDictionary()
"""Whether a loop is worth running per class, by the classes of its operands."""


def parts_of_loop(
    plan: Plan, step: Step, devices: tuple[int, ...], operands: Sequence[Any]
) -> tuple[Classes, list[ClassOperands]] | None:
    """The classes that run a loop by themselves, and what each holds; None for lockstep.

    `operands` are those of the step, of a plan that `devices` run together.
    """
    assert isinstance(step.flow, While)
    same: Classes = (0,) * len(devices)
    partitions = tuple(value.classes if type(value) is Varying else same for value in operands)
    verdicts = _verdicts.setdefault(step.flow, {})
    if partitions not in verdicts:
        verdicts[partitions] = _pays(plan, step, partitions)
    if not verdicts[partitions]:
        return None
    places, classes, rows = split(operands)
    held = (of_class(operands, places, row) for row in rows)
    return classes, list(map(ClassOperands, members(devices, classes), held))


def side_by_side(run: Callable[[int], None], count: int) -> None:
    """Call `run` with the number of each of so many parts.

    If there are at least as many parts as cores, each core runs parts separately: what does not divide between threads,
    or waits for memory, then overlaps with other work. Otherwise one part after the other has all cores.
    """
    if count < core_count():
        for number in range(count):
            run(number)
    else:
        in_blocks(lambda number, _: run(number), count, 1)


def lone_frame(outer: Frame, step: Step, operands: list[Any]) -> Frame:
    """A frame in which nothing but one step of another frame's plan is left to run, for its results.

    The list of operands is emptied, so that the frame alone holds them.
    """
    plan = Plan(
        computation=outer.plan.computation,
        steps=[step],
        program=[],
        parameters=(),
        constants={},
        result_tree=step.results,
        slot_shapes=outer.plan.slot_shapes,
    )
    slots: list[Any] = [None] * len(plan.slot_shapes)
    for slot, value in zip(step.operands, operands, strict=True):
        slots[slot] = value
    operands.clear()
    return Frame(plan, slots, iter(plan.steps), outer.context)


def _is_for_itself(step: Step) -> bool:
    """Whether a step does the same whenever and wherever it runs: it neither communicates, nor generates random
    numbers, nor calls users' functions.
    """
    return step.is_pure if step.kernel is not None else not isinstance(step.flow, COMMUNICATION)


def _pays(plan: Plan, step: Step, partitions: tuple[Classes, ...]) -> bool:
    """Whether a loop whose operands are split like this is worth running per class."""
    flow = step.flow
    assert isinstance(flow, While)
    if not all(_is_for_itself(inner) for _, inner in _steps(flow)):
        return False
    finest = joined(partitions)[0]
    slots: list[Classes | None] = [None] * len(plan.slot_shapes)
    for slot, classes in zip(step.operands, partitions, strict=True):
        slots[slot] = classes
    alone = attrs.evolve(plan, steps=[step], parameters=tuple(range(len(slots))))
    spread = spread_of(alone, slots, Topology(len(finest)))
    own = common = 0
    for inner_plan, inner in _steps(flow):
        if inner.function is not None and inner.results:
            touched = {*inner.operands, *inner.results} - inner_plan.constants.keys()
            size = sum(inner_plan.slot_shapes[slot].byte_size for slot in touched)
            slot_classes = spread.by_plan[id(inner_plan)]
            if any(slot_classes[slot] == finest for slot in inner.results):
                own += size
            else:
                common += size
    return common <= _COMMON_SHARE * (own + common)


def _steps(flow: While) -> Iterator[tuple[Plan, Step]]:
    """All steps of a loop with their plans, those of inner loops and calls included."""
    pending = [flow.condition, flow.body]
    seen: set[int] = set()
    while pending:
        plan = pending.pop()
        if id(plan) in seen:
            continue
        seen.add(id(plan))
        for step in plan.steps:
            yield plan, step
            pending += inner_plans(step.flow)
