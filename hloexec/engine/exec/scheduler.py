"""The scheduler of tasks: which task runs, which waits, and how tasks that have diverged are joined again.

All devices begin as one task (`exec.tasks`), which runs until it ends, waits for others, or splits into
several. `exec.lockstep.communication` knows which task waits for which; `exec.machine` runs a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.varying import merged
from hloexec.engine.exec.lockstep.communication import Communicator, Waiting, results_of
from hloexec.engine.exec.tasks import Join, Task, in_order, merged_task
from hloexec.engine.plan.steps import Step


class Scheduler:
    """The tasks of one run."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ready: deque[Task] = deque()
        self._joins: list[Join] = []
        """Joins at which tasks wait."""
        self._ended: list[tuple[Task, list[Any]]] = []
        """The tasks that have finished, with their results."""

    @cached_property
    def _communicator(self) -> Communicator:
        """Which tasks wait for which; created on the first communication."""
        return Communicator(self._topology)

    def _go(self, task: Task | None) -> None:
        """Run a task until it ends or waits for others."""
        raise NotImplementedError

    def _results(self, first: Task) -> list[Any]:
        """Run a task to its end, and all tasks that it splits into."""
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
        _, order = in_order([task for task, _ in ended])
        return [merged(values, order) for values in zip(*(results for _, results in ended), strict=True)]

    # Splitting

    def _diverge(
        self, task: Task, step: Step, keys: Sequence[object], go_on: Callable[[Task, list[int], Any], Task | None]
    ) -> None:
        """Split a task at `step` by the keys of its positions; each of the new tasks continues separately."""
        groups: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            groups.setdefault(key, []).append(position)
        parts = self._split_task(task, step, list(groups.values()))
        for part, (key, positions) in zip(parts, groups.items(), strict=True):
            found = go_on(part, positions, key)
            if found is not None:
                self._ready.append(found)

    def _split_task(self, task: Task, step: Step, groups: Sequence[Sequence[int]]) -> list[Task]:
        return task.split(step, groups)

    # Going on

    def _complete(self, task: Task, step: Step, results: Sequence[object]) -> Task | None:
        """Store the results of a step that is not a kernel; returns the task that continues, if any."""
        frame = task.frames[-1]
        for slot, value in zip(step.results, results, strict=True):
            frame.slots[slot] = value
        self._completed(task, step)
        self._drop(task, step)
        return self._arrive(task, step)

    def _arrive(self, task: Task, step: Step) -> Task | None:
        """Wait after `step` for the tasks that join there; returns the task that continues, if any."""
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
        """Resume tasks that no longer have to wait; returns the task of `waiting` if it is one of them."""
        for other in over:
            if other is not waiting:
                self._continue(other)
        return self._complete(waiting.task, waiting.step, results_of(waiting)) if waiting in over else None

    def _continue(self, waiting: Waiting) -> None:
        task = self._complete(waiting.task, waiting.step, results_of(waiting))
        if task is not None:
            self._ready.append(task)

    def _unblock(self) -> None:
        """Let some task continue when all tasks wait.

        Devices that have what they need are split from those of their task that do not; those who wait for others to
        join continue without them. If neither helps, raises DeadlockError, which says which device waits where.
        """
        for waiting in self._communicator.waiting:
            over = self._communicator.split(waiting, self._split_task)
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
