"""Watched runs, through which rank 0 goes for all devices; the others, each for some, hand it what long steps give.

What it is not handed, it computes itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.engine.devices.ranks import rank_of_device
from hloexec.engine.devices.varying import Varying, joined, members, of_position
from hloexec.engine.exec.lockstep.parcels import Arriving, Parcel, Post, Row, wait_until
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.tasks import Task
from hloexec.engine.exec.watching import WatchedMachine
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.resources import owner_of

_AHEAD_BYTES = 1 << 27
"""So much may be under way to rank 0 before others go on."""
_LONG_BYTES = 1 << 16
"""A step is long from here on, by what it reads and gives."""


def _is_long(plan: Plan, step: Step) -> bool:
    """Whether it is worth handing over what a step gives, which is the same whoever computes it."""
    size = sum(plan.slot_shapes[slot].byte_size for slot in {*step.operands, *step.results})
    return step.is_pure and size >= _LONG_BYTES


def _name_of(step: Step) -> str:
    return f"{step.instruction.name} {step.results}"


_Handed: TypeAlias = "tuple[str, Arriving, Row | None]"
"""A step, the message with what it has given some devices, and what of it: None where it takes no time to compute."""


class Feed:
    """What the others hand to rank 0 in a run."""

    def __init__(self, post: Post, number: int, count: int) -> None:
        self._post, self._number = post, number
        self._queues: list[deque[_Handed]] = [deque() for _ in range(count)]
        """What has come for each device and has not been taken."""
        self._due = [0] * count
        """How much of what comes for a device has been taken as another's."""
        self._coming: list[Arriving] = []
        self._running = set(range(1, post.comm.size))
        """The ranks that have not ended."""
        self._is_lost = False
        """Whether others have done something else."""

    def take(self, step: str, devices: Sequence[int]) -> tuple[Any, ...] | None:
        """What a step gives these devices, which hold the same; None where that is to be computed here."""
        first, queue = devices[0], self._queues[devices[0]]
        rank = 1 + rank_of_device(first, self._post.comm.size - 1, len(self._queues))
        wait_until(lambda: self._is_lost or self._has_come(first) or rank not in self._running)
        if self._is_lost or not queue:
            return None
        for device in devices:
            self._due[device] += 1
        handed_step, arriving, row = queue[0]
        if handed_step != step:
            self._is_lost = True
            warn_of_failure("handing over what ranks compute", AssertionError(f"{handed_step} in place of {step}"))
        if row is None or self._is_lost:
            return None
        wait_until(arriving.test)
        return arriving.leaves(row)

    def _has_come(self, device: int) -> bool:
        self._look()
        queue = self._queues[device]
        while queue and self._due[device]:
            queue.popleft()
            self._due[device] -= 1
        return bool(queue)

    def _look(self) -> None:
        """Take in what has come."""
        while (arriving := self._post.take()) is not None:
            content = arriving.content
            if content["kind"] == "ended":
                self._running.discard(arriving.source)
                continue
            arriving.ask()
            self._coming.append(arriving)
            for devices, row in content["classes"]:
                for device in devices:
                    self._queues[device].append((content["step"], arriving, row))
        self._coming = [arriving for arriving in self._coming if not arriving.test()]

    def close(self) -> None:
        """End the run, and take in what was under way."""
        for rank in self._running:
            self._post.send(rank, {"kind": "stop", "run": self._number})
        wait_until(self._is_over)

    def _is_over(self) -> bool:
        self._look()
        for queue in self._queues:
            queue.clear()
        return self._post.flush() and not self._running and not self._coming


class FedMachine(WatchedMachine):
    """Is handed what long steps give."""

    def __init__(self, feed: Feed, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._feed = feed
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
        leaves = self._feed.take(_name_of(step), self._each_class.running or self._devices)
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


class StoppedError(BaseException):
    """Rank 0 needs no more of a run."""


class Blind:
    """An observer for whose sake steps run as where they are shown."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""


class HandingMachine(WatchedMachine):
    """Hands over what long steps give, in a run that has a number."""

    def __init__(self, post: Post, number: int, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._post, self._number = post, number

    def _begin(self, task: Task, step: Step) -> bool:
        self._require_taker()
        return super()._begin(task, step)

    def _require_taker(self) -> None:
        arriving = self._post.take(0)
        if arriving is not None and arriving.content["kind"] == "stop" and arriving.content["run"] == self._number:
            raise StoppedError

    def _may_go_on(self) -> bool:
        """Whether rank 0 keeps up."""
        self._require_taker()
        return self._post.flush() or self._post.bytes_under_way < _AHEAD_BYTES

    def _ran(self, task: Task, step: Step) -> None:
        super()._ran(task, step)
        slots = task.frames[-1].slots
        if not _is_long(task.frames[-1].plan, step):
            return
        values, operands = [slots[slot] for slot in step.results], step.fetch(slots)
        same = (0,) * len(task.devices)
        classes, _ = joined(tuple(value.classes if type(value) is Varying else same for value in (*values, *operands)))
        parcel, entries = Parcel(), []
        for number, devices in enumerate(members(task.devices, classes)):
            position = classes.index(number)
            leaves = [of_position(value, position) for value in values]
            # What shows an operand's memory takes no time, and may be the same array for several classes.
            held = {id(owner_of(operand)) for operand in _arrays(of_position(value, position) for value in operands)}
            is_view = any(id(owner_of(leaf)) in held for leaf in _arrays(leaves))
            entries.append([devices, None if is_view else parcel.row(leaves)])
        self._post.send(0, {"kind": "step", "step": _name_of(step), "classes": entries}, parcel)
        wait_until(self._may_go_on)


def _arrays(leaves: Iterable[Any]) -> list[Any]:
    return [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
