"""Loops that each class of devices runs separately.

In lockstep, each class of devices executes a step before any executes the next, and the values of a class have left the
cache before they are used again. A loop in which devices exchange nothing can instead be run for each class from its
first iteration to its last, and for several classes in parallel if there are enough cores. This pays if nearly all work
is on values that differ between classes, because values that the classes share are computed once per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from hloexec.core.structs import define
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.varying import Classes, Varying, joined, members, of_class, split
from hloexec.engine.exec.tasks import Frame
from hloexec.engine.plan.spread import spread_of
from hloexec.engine.plan.steps import COMMUNICATION, Plan, Step, While, inner_plans
from hloexec.ops.resources import core_count, in_blocks

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
    known = _verdicts.setdefault(step.flow, {})
    if partitions not in known:
        known[partitions] = _pays(plan, step, partitions)
    if not known[partitions]:
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
            found = spread.by_plan[id(inner_plan)]
            if any(found[slot] == finest for slot in inner.results):
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
