"""The scheduler of tasks: who goes on, who waits, and how those who parted join again.

All devices begin as one task (`hloexec.exec.tasks`), which runs until it ends, has to wait for others, or parts into
several. `hloexec.exec.communication` knows who waits for whom. How a task runs is the business of
`hloexec.exec.machine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from hloexec.devices.topology import Topology
from hloexec.devices.varying import merged
from hloexec.exec.communication import Communicator, Waiting, results_of
from hloexec.exec.tasks import Join, Task, merged_task
from hloexec.plan.steps import Step

__all__ = ["Scheduler"]


class Scheduler:
    """The tasks of one run."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ready: deque[Task] = deque()
        self._joins: list[Join] = []
        """Joins at which somebody waits."""
        self._ended: list[tuple[Task, list[Any]]] = []
        """The tasks that have finished, with their results."""

    @cached_property
    def _communicator(self) -> Communicator:
        """Who waits for whom; made when somebody first has to do with others."""
        return Communicator(self._topology)

    def _go(self, task: Task | None) -> None:
        """Run a task until it ends or waits for others."""
        raise NotImplementedError

    def _results(self, first: Task) -> list[Any]:
        """Run a task to its end, and all that it parts into."""
        count = len(first.devices)
        self._ready.append(first)
        del first
        while sum(len(task.devices) for task, _ in self._ended) < count:
            if self._ready:
                self._go(self._ready.popleft())
            else:
                self._unblock()
        if "_communicator" in vars(self):
            self._communicator.require_all_received()
        # The machine is in cycles of references, so that what it refers to would live until they are found.
        ended, self._ended = self._ended, []
        if len(ended) == 1:
            return ended[0][1]
        places = sorted(
            (device, number, position)
            for number, (task, _) in enumerate(ended)
            for position, device in enumerate(task.devices)
        )
        order = [(number, position) for _, number, position in places]
        return [merged(values, order) for values in zip(*(results for _, results in ended), strict=True)]

    # Parting

    def _part(
        self, task: Task, step: Step, keys: Sequence[object], go_on: Callable[[Task, list[int], Any], Task | None]
    ) -> None:
        """Part a task at `step` into those of equal keys, by position, each of which goes on by itself."""
        groups: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            groups.setdefault(key, []).append(position)
        parts = self._parts(task, step, list(groups.values()))
        for part, (key, positions) in zip(parts, groups.items(), strict=True):
            found = go_on(part, positions, key)
            if found is not None:
                self._ready.append(found)

    def _parts(self, task: Task, step: Step, groups: Sequence[Sequence[int]]) -> list[Task]:
        return task.parts(step, groups)

    # Going on

    def _complete(self, task: Task, step: Step, results: Sequence[object]) -> Task | None:
        """Store the results of a step that was no kernel; returns the task that goes on, if one does now."""
        frame = task.frames[-1]
        for slot, value in zip(step.results, results, strict=True):
            frame.slots[slot] = value
        self._completed(task, step)
        self._drop(task, step)
        return self._arrive(task, step)

    def _arrive(self, task: Task, step: Step) -> Task | None:
        """Wait after `step` for those who should join there; returns the task that goes on, if one does now."""
        while task.joins:
            join = task.joins[-1]
            if join.step is not step or join.depth != len(task.frames):
                break
            task.joins.pop()
            if join.is_released:
                continue
            if not join.arrived:
                self._joins.append(join)
            join.arrived.append(task)
            if sum(len(arrived.devices) for arrived in join.arrived) < join.count:
                return None
            self._joins.remove(join)
            task = self._merge(join.arrived)
        return task

    def _merge(self, tasks: Sequence[Task]) -> Task:
        return merged_task(tasks)

    def _resume(self, waiting: Waiting, over: Sequence[Waiting]) -> Task | None:
        """Let those go on who need not wait any more; returns the task of `waiting` where it is one of them."""
        for other in over:
            if other is not waiting:
                self._continue(other)
        return self._complete(waiting.task, waiting.step, results_of(waiting)) if waiting in over else None

    def _continue(self, waiting: Waiting) -> None:
        task = self._complete(waiting.task, waiting.step, results_of(waiting))
        if task is not None:
            self._ready.append(task)

    def _unblock(self) -> None:
        """Let somebody go on where all tasks wait.

        Devices that have what they need part from those in their task that have not; then those who wait for others to
        join go on without them. Where neither helps, DeadlockError says who waits where.
        """
        for waiting in self._communicator.waiting:
            over = self._communicator.part(waiting, self._parts)
            if over is not None:
                self._continue(over)
                return
        if self._joins:
            join = max(self._joins, key=lambda join: join.depth)
            join.is_released = True
            self._joins.remove(join)
            task = self._arrive(self._merge(join.arrived), join.step)
            if task is not None:
                self._ready.append(task)
            return
        done = [device for task, _ in self._ended for device in task.devices]
        raise self._communicator.deadlock(done)

    # What others may watch

    def _drop(self, task: Task, step: Step) -> None:
        slots = task.frames[-1].slots
        for slot in step.dead:
            slots[slot] = None

    def _completed(self, task: Task, step: Step) -> None:
        """A step that was no kernel has its results in place."""
