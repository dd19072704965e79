"""A run in a thread of its own, which stands still until it is told to go on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from hloexec.core.values import Value
from hloexec.tools.stepping.stops import Stop


class _Closed(BaseException):
    """Ends a run that nobody waits for any more. No error, so nothing on the way may take it for one."""


class Worker:
    """Runs a function that calls `wait` wherever it stands still."""

    def __init__(self, name: str) -> None:
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._name = name
        self.stop: Stop | None = None
        """Where it stands still; None before it begins and when it has ended."""
        self.results: list[Value] | None = None
        self.error: BaseException | None = None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def has_ended(self) -> bool:
        """Whether the run has come to its end, or to an error."""
        return self.results is not None or self.error is not None

    def go(self, function: Callable[[], list[Value]] | None = None) -> None:
        """Begin with a function, or go on; returns where it stands still again, or has ended."""
        if function is not None:
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._run, function), name=f"run of {self._name}", daemon=True
            )
            self._thread.start()
        else:
            self._may_go.release()
        self._stands.acquire()

    def wait(self, stop: Stop | None) -> None:
        """Called by the run where it stands still; returns when it is to go on."""
        if self._is_closed:
            raise _Closed
        self.stop = stop
        self._stands.release()
        self._may_go.acquire()
        self.stop = None
        if self._is_closed:
            raise _Closed

    def require_open(self) -> None:
        """Called by the run now and then: ends it where nobody waits for it."""
        if self._is_closed:
            raise _Closed

    def close(self) -> None:
        """End the run where it stands; one that is under way ends after the instruction that it is at."""
        if self._is_closed or self._thread is None:
            self._is_closed = True
            return
        self._is_closed = True
        self._may_go.release()
        if not self.has_ended and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, function: Callable[[], list[Value]]) -> None:
        try:
            self.results = function()
        except _Closed as closed:
            self.error = closed
        except BaseException as error:
            # It is raised where the run was asked to go on.
            self.error = error
        finally:
            self.stop = None
            self._stands.release()
