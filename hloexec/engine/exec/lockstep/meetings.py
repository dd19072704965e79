"""What devices wait for: tasks at steps that need other devices, groups at collectives, and values that were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hloexec.core.structs import define
from hloexec.engine.devices.topology import Group

if TYPE_CHECKING:
    from hloexec.engine.exec.tasks import Task
    from hloexec.engine.plan.steps import Step

Leaves: TypeAlias = "tuple[Any, ...]"


@define(eq=False)
class Waiting:
    """A task at a step that needs other devices."""

    task: Task
    step: Step
    held: dict[int, Leaves]
    """Contributions of each device that have not been used yet."""
    results: dict[int, Leaves]
    """What each device that need not wait any more has got."""

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self.task.devices)


@define(eq=False)
class Meeting:
    """A group at a collective, of which some or all members of this process have come."""

    key: Any
    """Equal in all processes that have members."""
    step: Step
    group: Group
    expected: int
    """How many members this process has."""
    members: dict[int, Waiting]
    shared: Any = None
    """Where processes work out the result together, how far they are."""
    results: Mapping[int, Leaves] | None = None
    """What the members get, where processes have worked it out together."""


@define(eq=False)
class Mail:
    """What a device sends on a channel: at an instruction, in a computation."""

    sender: int
    instruction: str
    computation: str
    data: Leaves
