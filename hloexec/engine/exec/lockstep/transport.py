"""How devices reach those of other processes: what communication needs for that, and its form for a single process."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from hloexec.engine.devices.topology import Group
from hloexec.engine.exec.lockstep.meetings import Leaves, Mail, Meeting, Waiting


class State(enum.Enum):
    """What a process that cannot go on has waited for."""

    ARRIVED = enum.auto()
    """Something has come from another process."""
    QUIET = enum.auto()
    """No process can go on, and nothing is on its way between them."""
    OVER = enum.auto()
    """All devices of all processes have finished."""


class Transport:
    """Of a run whose devices are all in this process: nothing comes from elsewhere."""

    sharing = 1
    """How many processes of the run share this machine."""
    may_have_unread = True
    """Whether there may be mail that nobody has taken, in some process, once a run is over."""

    def devices(self, count: int) -> Sequence[int]:
        """Those of this process, of `count` in all."""
        return range(count)

    def key(self, point: Any, group: Group) -> Any:
        """The key of a meeting of a group at a point."""
        return point, tuple(group.values())

    def offer(self, waiting: Waiting, meetings: Sequence[Meeting]) -> None:
        """Hand what has come to meetings with `waiting` to the processes of their other members."""

    def collect(self, meeting: Meeting) -> Mapping[int, Leaves] | None:
        """What members elsewhere hold, or nothing where the meeting has its results; None where not all of it is
        there."""
        return {}

    def present(self, key: Any) -> set[int]:
        """The members elsewhere that have come to a meeting."""
        return set()

    def send(self, channel: int | None, receiver: int | None, mail: Mail) -> bool:
        """Whether mail has been handed to another process; None stands for any receiver on the channel."""
        return False

    def ask(self, channel: int | None, receiver: int) -> bool:
        """Whether a device takes its mail from its own mailbox, although senders do not say whom it is for. It is
        known then that the device waits."""
        return False

    def wait(self, unfinished: int, unread: int) -> State:
        """Wait until something arrives or nothing will; this process has so many unfinished devices, and mailboxes that
        have not been emptied."""
        return State.QUIET if unfinished else State.OVER

    def receive(self) -> tuple[Sequence[Any], Sequence[tuple[tuple[int | None, int | None], Mail]]]:
        """What has arrived: the keys of meetings that may be complete, and mail by mailbox."""
        return (), ()

    def unclaimed(self) -> list[tuple[int | None, Mail]]:
        """The channels that have mail for anyone here, and the first on each, where no mailbox has it."""
        return []

    def gathered(self, record: Any) -> list[Any]:
        """The records of all processes, which JSON can hold."""
        return [record]


LOCAL = Transport()
