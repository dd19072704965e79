"""Failures of optimizations: the run continues without the optimization, and warns.

An optimization changes no result, so its failure costs only time; but it should be reported.
"""

from __future__ import annotations

import signal
from functools import partial
from traceback import walk_tb
from typing import Any

from hloexec.errors import OptimizationWarning, warn


def warn_of_failure(subject: str, error: BaseException) -> None:
    """Warn that an optimization has failed; `subject` says which, as a clause. What a signal handler raised is no
    failure, and is raised again."""
    if is_of_signal_handler(error):
        raise error
    warn(
        f"{subject} failed ({type(error).__name__}: {error}); the run goes on without this optimization, with the same "
        "result. Please report this with the module: it is a fault of hloexec",
        OptimizationWarning,
    )


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether an error was raised by a signal handler that the program has set, as of a time limit: no fault of what it
    interrupted."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _code(handler: Any) -> object:
    """The code of a handler that is written in Python, else None, as for the numbers that stand for no handler."""
    if not callable(handler):
        return None
    while isinstance(handler, partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    return getattr(handler if hasattr(handler, "__code__") else type(handler).__call__, "__code__", None)
