"""What a kernel that loops by itself asks between its steps: whether the run may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], object] | None] = ContextVar("check", default=None)


@contextmanager
def interrupted_by(check: Callable[[], object]) -> Iterator[None]:
    """A context in which `require_going` calls a function that raises where the run has to end."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def require_going() -> None:
    """Raise what ends the run, ResourceError where it has taken too long, if it has to end."""
    check = _check.get()
    if check is not None:
        check()
