"""Tasks: groups of devices that run in lockstep, and how they split and join.

All devices begin as one task. Where control flow diverges, the task splits: each group of devices continues with its
own copy of the frames. The groups join after the step at which they split, and wait there for one another. The join is
an optimization, not part of the program: if waiting for it would block all tasks, the groups that have arrived continue
separately.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from hloexec.core.structs import define
from hloexec.engine.devices.varying import merged, restricted
from hloexec.engine.plan.steps import Context, Plan, Step, While


@define(eq=False)
class Loop:
    """A while loop under way."""

    flow: While
    state: list[Any]
    """The carried leaves while the condition runs; empty while the body, which owns them then, does."""
    iteration: int = 0
    in_body: bool = False
    at_a_time: int = 1
    """How many iterations run as Python at a time, where the run is watched."""
    read: list[tuple[str, Any]] = attrs.field(factory=list)
    """What the condition last read, by name, where the run has limits."""

    def restricted_to(self, positions: Sequence[int]) -> Loop:
        """The loop for the devices at some positions."""
        return Loop(self.flow, [restricted(value, positions) for value in self.state], self.iteration, self.in_body)


@define(eq=False)
class Frame:
    """A running plan."""

    plan: Plan
    slots: list[Any]
    remaining: Iterator[Step]
    """The steps that are still to run; the loop over them stops at control flow and resumes after it."""
    context: Context | None = None
    """The caller's step that this frame executes, and its call path; None for the outermost frame."""
    loop: Loop | None = None
    begun: int = 0
    """How many steps have begun, if the run is observed."""
    shown: int = 0
    """How many steps of the program have been shown to observers."""

    def restricted_to(self, positions: Sequence[int]) -> Frame:
        """The frame for the devices at some positions."""
        return Frame(
            self.plan,
            [restricted(value, positions) for value in self.slots],
            copy.copy(self.remaining),
            self.context,
            None if self.loop is None else self.loop.restricted_to(positions),
            self.begun,
            self.shown,
        )


@define(eq=False)
class Join:
    """Where devices that were split are joined: after `step`, in the frame at `depth`."""

    step: Step
    depth: int
    count: int
    """How many devices are expected."""
    arrived: list[Task] = attrs.field(factory=list)
    is_released: bool = False
    """Whether arriving devices no longer wait."""


@define(eq=False)
class Task:
    """Devices in lockstep, and the frames that they are in."""

    devices: tuple[int, ...]
    frames: list[Frame]
    joins: list[Join]

    def restricted_to(self, positions: Sequence[int]) -> Task:
        """The task of the devices at some positions."""
        devices = tuple(self.devices[position] for position in positions)
        return Task(devices, [frame.restricted_to(positions) for frame in self.frames], list(self.joins))

    def split(self, step: Step, groups: Sequence[Sequence[int]]) -> list[Task]:
        """The tasks of groups of positions, which split at `step` of the innermost frame and join after it."""
        top = self.joins[-1] if self.joins else None
        depth = len(self.frames)
        if top is None or top.step is not step or top.depth != depth or top.is_released:
            self.joins.append(Join(step, depth, len(self.devices)))
        return [self.restricted_to(positions) for positions in groups]


def in_order(tasks: Sequence[Task]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """The devices of tasks in order, and of each the number of its task and its position there."""
    places = sorted(
        (device, (number, position))
        for number, task in enumerate(tasks)
        for position, device in enumerate(task.devices)
    )
    return tuple(device for device, _ in places), [place for _, place in places]


def merged_task(tasks: Sequence[Task]) -> Task:
    """Tasks that are at the same point, as one."""
    if len(tasks) == 1:
        return tasks[0]
    devices, order = in_order(tasks)

    def values(lists: Sequence[list[Any]]) -> list[Any]:
        return [merged(entries, order) for entries in zip(*lists, strict=True)]

    frames = []
    for level in zip(*(task.frames for task in tasks), strict=True):
        first, loops = level[0], [frame.loop for frame in level]
        loop = first.loop
        if loop is not None:
            states = values([entry.state for entry in loops if entry is not None])
            loop = Loop(loop.flow, states, loop.iteration, loop.in_body)
        slots = values([frame.slots for frame in level])
        frames.append(Frame(first.plan, slots, first.remaining, first.context, loop, first.begun, first.shown))
    return Task(devices, frames, tasks[0].joins)
