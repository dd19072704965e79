"""Handing tasks out to an engine, and what comes of them as it comes.

A worker that dies costs its task one more try, and the run nothing. Where an engine breaks as a whole, its executor is
made again if that is possible; else the run ends with a sentence, and what has come until then stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from typing import TypeVar

from hloexec.core.structs import define
from hloexec.core.wording import argument, first_line
from hloexec.errors import HloError, ResourceError, UnsupportedError
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.processes import Ended
from hloexec.tools.executing.tasks import Reply, Task, packed, unpacked

_Item = TypeVar("_Item")
_TRIES = 2
"""How often a task is handed out whose worker died."""
_MOST_RENEWALS = 3
"""How often an executor is made again before anything comes of a task."""
_AHEAD = 2
"""Tasks that are handed out for each worker, so that none waits for the next."""


@define(eq=False)
class _Handed:
    """An item that is out, or about to be."""

    number: int
    deaths: int = 0


def run_tasks(
    items: Iterable[_Item], task_of: Callable[[_Item], Task], engine: Engine
) -> Iterator[tuple[_Item, Reply | HloError]]:
    """What comes of the task of each item, as it comes; the error of an item whose task cannot be made.

    When the iterator is closed or an exception is raised, tasks that wait are cancelled, and those that run end as far
    as the engine can end them. Raises UnsupportedError where workers are not what this process is (see
    `tasks.identity`), and ResourceError where the engine is lost.
    """
    every = list(items)
    left = deque(_Handed(number) for number in range(len(every)))
    out: dict[Future[bytes], _Handed] = {}
    renewals = 0
    try:
        while left or out:
            while left and len(out) < _AHEAD * engine.workers:
                handed = left.popleft()
                try:
                    data = packed(task_of(every[handed.number]), engine.way)
                except HloError as error:
                    yield every[handed.number], error
                    continue
                try:
                    out[engine.submit(data)] = handed
                except Exception as error:
                    left.appendleft(handed)
                    renewals = _renewed(engine, error, renewals)
            done, _ = wait(out, return_when=FIRST_COMPLETED)
            for future in done:
                handed = out.pop(future)
                failure = CancelledError() if future.cancelled() else future.exception()
                if failure is None:
                    renewals = 0
                    yield every[handed.number], _reply(future.result())
                elif _is_of_engine(failure, engine):
                    left.appendleft(handed)
                    left.extendleft(out.values())
                    out.clear()
                    renewals = _renewed(engine, failure, renewals)
                    break
                else:
                    handed.deaths += 1
                    if handed.deaths < _TRIES:
                        left.append(handed)
                    else:
                        yield every[handed.number], Reply(Ended(1, _words(failure)), None, True, 0.0)
    finally:
        if out:
            engine.stop()
        for future in out:
            future.cancel()


def _reply(data: bytes) -> Reply:
    reply = unpacked(data)
    if isinstance(reply, str):
        raise UnsupportedError(f"{argument('executor')}: {reply}")
    return reply


def _is_of_engine(error: BaseException, engine: Engine) -> bool:
    """Whether an error is none of one task: no task fails in its worker, whatever its process does."""
    return isinstance(error, (BrokenExecutor, CancelledError)) or not engine.is_alive()


def _renewed(engine: Engine, error: BaseException, renewals: int) -> int:
    """Make the executor again; ResourceError where that is not possible, or does not help."""
    if renewals == _MOST_RENEWALS or not engine.renew():
        raise ResourceError(f"{argument('executor')} {engine.name} is lost: {_words(error)}") from error
    return renewals + 1


def _words(error: BaseException) -> str:
    said = first_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
