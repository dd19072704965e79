"""Machines of which one goes through a run for all devices, and others, each for some, hand it what long steps give.

What it is not handed, it computes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.engine.devices.varying import Varying, joined, members, of_position
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.tasks import Task
from hloexec.engine.exec.watching import WatchedMachine
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.resources import owner_of

Taking: TypeAlias = "Callable[[str, Sequence[int]], tuple[Any, ...] | None]"
Giving: TypeAlias = "Callable[[str, Sequence[tuple[Sequence[int], Sequence[Any] | None]]], None]"

_LONG_BYTES = 1 << 16
"""A step is long from here on, by what it reads and gives."""


def _is_long(plan: Plan, step: Step) -> bool:
    """Whether it is worth handing over what a step gives, which is the same whoever computes it."""
    size = sum(plan.slot_shapes[slot].byte_size for slot in {*step.operands, *step.results})
    return step.is_pure and size >= _LONG_BYTES


def _name_of(step: Step) -> str:
    return f"{step.instruction.name} {step.results}"


class FedMachine(WatchedMachine):
    """Is handed what long steps give.

    `take` gets the name of a step and devices that hold the same, and gives what the step gives them; None where that
    is to be computed here.
    """

    def __init__(self, take: Taking, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._take_results = take
        self._fed_steps: dict[Step, Step | None] = {}
        """What runs in the place of long steps; None for others."""
        self._devices: tuple[int, ...] = ()

    def run(self, plan: Plan, arguments: list[Any]) -> list[Any]:
        try:
            return super().run(plan, arguments)
        finally:
            self._fed_steps.clear()

    def _fed(self, task: Task, step: Step) -> Step | None:
        self._devices = task.devices
        if step not in self._fed_steps:
            fed = step.copied() if _is_long(task.frames[-1].plan, step) else None
            if fed is not None:
                fed.function = partial(self._result, step)
            self._fed_steps[step] = fed
        return self._fed_steps[step]

    def _result(self, step: Step, *operands: Any) -> Any:
        """What a step gives the devices for which it runs."""
        leaves = self._take_results(_name_of(step), self._each_class.running or self._devices)
        if leaves is None:
            assert step.function is not None
            return step.function(*operands)
        return leaves[0] if step.result != NO_SLOT else leaves

    def _begin(self, task: Task, step: Step) -> bool:
        super()._begin(task, step)
        fed = self._fed(task, step)
        if fed is not None:
            super()._compute(task, fed)
            self._show(task)
            self._drop(task, step)
        return fed is not None

    def _compute(self, task: Task, step: Step) -> None:
        super()._compute(task, self._fed(task, step) or step)


class Blind:
    """An observer for whose sake steps run as where they are shown."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""


class HandingMachine(WatchedMachine):
    """Hands over what long steps give.

    `give` gets the name of a step, and with each class of devices what it gives them, None for what takes no time.
    `require_taker`, which is called before each step, ends the run where nothing more is needed.
    """

    def __init__(self, give: Giving, require_taker: Callable[[], None], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._give_results, self._require_taker = give, require_taker

    def _begin(self, task: Task, step: Step) -> bool:
        self._require_taker()
        return super()._begin(task, step)

    def _ran(self, task: Task, step: Step) -> None:
        super()._ran(task, step)
        slots = task.frames[-1].slots
        if not _is_long(task.frames[-1].plan, step):
            return
        values, operands = [slots[slot] for slot in step.results], step.fetch(slots)
        same = (0,) * len(task.devices)
        classes, _ = joined(tuple(value.classes if type(value) is Varying else same for value in (*values, *operands)))
        entries: list[tuple[Sequence[int], Sequence[Any] | None]] = []
        for number, devices in enumerate(members(task.devices, classes)):
            position = classes.index(number)
            leaves = [of_position(value, position) for value in values]
            # What shows an operand's memory takes no time, and may be the same array for several classes.
            held = {id(owner_of(operand)) for operand in _arrays(of_position(value, position) for value in operands)}
            is_view = any(id(owner_of(leaf)) in held for leaf in _arrays(leaves))
            entries.append((devices, None if is_view else leaves))
        self._give_results(_name_of(step), entries)


def _arrays(leaves: Iterable[Any]) -> list[Any]:
    return [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
