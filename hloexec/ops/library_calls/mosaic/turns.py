"""Bodies that take turns: one runs at a time, until it waits for something that is not there yet.

Each has a thread of its own, and hands over at its waits alone, in the order of their numbers: whatever the threads of
the system do, the same happens in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context

import attrs
import numpy as np

from hloexec.core.structs import define


class _StopError(BaseException):
    """Ends a body from outside; nothing that a body catches."""


def _can_go() -> bool:
    return True


@define(eq=False)
class _Player:
    body: Callable[[], None]
    turn: threading.Semaphore = attrs.Factory(lambda: threading.Semaphore(0))
    is_ready: Callable[[], bool] = _can_go
    """Whether it can go on."""
    thread: threading.Thread | None = None
    is_over: bool = False
    error: BaseException | None = None


class Turns:
    """Bodies by number."""

    def __init__(self, bodies: Sequence[Callable[[], None]]) -> None:
        self._players = [_Player(body) for body in bodies]
        self._back = threading.Semaphore(0)
        self._is_stopped = False

    def run(self, stuck: Callable[[], Exception]) -> None:
        """Run all bodies to their ends; raises the first error of one, and what `stuck` makes where none can go on."""
        try:
            while self._round():
                pass
            if self.unfinished:
                raise stuck()
        finally:
            self._stop()

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the bodies that have not come to their ends."""
        return [number for number, player in enumerate(self._players) if not player.is_over]

    def wait(self, number: int, is_ready: Callable[[], bool]) -> None:
        """Called by the body of this number: let others run until it can go on."""
        if not is_ready():
            player = self._players[number]
            player.is_ready = is_ready
            self.pass_on(number)
            player.is_ready = _can_go
        self.require_going()

    def pass_on(self, number: int) -> None:
        """Called by the body of this number: let others run until its turn comes again."""
        self._back.release()
        self._players[number].turn.acquire()
        self.require_going()

    def require_going(self) -> None:
        """End the body that calls this where the run has ended."""
        if self._is_stopped:
            raise _StopError

    def _round(self) -> bool:
        """Let each run that can go on, in order; False where none can."""
        has_moved = False
        for player in self._players:
            if not player.is_over and player.is_ready():
                self._give_turn(player)
                has_moved = True
        return has_moved

    def _give_turn(self, player: _Player) -> None:
        if player.thread is None:
            # Daemons, as one that computes must not keep the process from ending.
            run = copy_context().run
            player.thread = threading.Thread(target=run, args=(self._play, player), daemon=True)
            player.thread.start()
        player.turn.release()
        self._back.acquire()
        if player.error is not None:
            raise player.error

    def _play(self, player: _Player) -> None:
        player.turn.acquire()
        try:
            with np.errstate(all="ignore"):
                player.body()
        except _StopError:
            pass
        except BaseException as error:
            player.error = error
        finally:
            player.is_over = True
            self._back.release()

    def _stop(self) -> None:
        """End what still waits; what is in the middle of a computation, after an interruption, at its next step."""
        self._is_stopped = True
        for player in self._players:
            if player.thread is not None:
                player.turn.release()
                player.thread.join()
