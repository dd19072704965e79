"""Handing tasks out to an engine, and what comes of them as it comes.

A worker that dies costs its task one more try, and the run nothing. Where an engine breaks as a whole, its executor is
made again if that is possible; else the run ends with a sentence, and what has come until then stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from itertools import islice
from typing import Any, TypeVar

from hloexec.core.structs import define
from hloexec.core.wording import argument, first_line
from hloexec.errors import HloError, ResourceError, UnsupportedError
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.processes import Ended
from hloexec.tools.executing.tasks import Reply, Task, packed, unpacked

_Item = TypeVar("_Item")
_MOST_RENEWALS = 3
"""How often an executor is made again before anything comes of a task."""
_CHECK_SECONDS = 1.0
"""How long nothing may come before the engine is asked what is wrong."""
_DIED = "each worker that it was given to has died"
_AHEAD = 2
"""Tasks that are handed out for each worker, so that none waits for the next."""


@define(eq=False)
class _Handed:
    """An item that is out, or about to be."""

    number: int
    item: Any
    deaths: int = 0


def run_tasks(
    items: Iterable[_Item], task_of: Callable[[_Item], Task], engine: Engine, *, in_order: bool = False
) -> Generator[tuple[_Item, Reply | HloError], None, None]:
    """What comes of the task of each item, as it comes; the error of an item whose task cannot be made.

    `in_order` gives it in the order of the items, of which no more are taken ahead than there are workers: whoever
    closes the iterator early has had few tasks begun in vain. When it is closed or an exception is raised, tasks that
    wait are cancelled, and those that run end as far as the engine can end them. Raises UnsupportedError where workers
    are not what this process is (see `tasks.identity`), and ResourceError where the engine is lost.
    """
    run = _Run(items, task_of, engine, 1 if in_order else _AHEAD)
    following = 0
    try:
        while run.hand_out():
            while run.ready and (not in_order or following in run.ready):
                yield run.ready.pop(following if in_order else next(iter(run.ready)))
                following += 1
            if run.out:
                run.take_back()
    finally:
        if run.out:
            engine.stop()
        for future in run.out:
            future.cancel()


class _Run:
    """Tasks that are out, and what came of others."""

    def __init__(
        self, items: Iterable[Any], task_of: Callable[[Any], Task], engine: Engine, tasks_per_worker: int
    ) -> None:
        self._fresh = (_Handed(number, item) for number, item in enumerate(items))
        self._task_of = task_of
        self._engine = engine
        self._tasks_per_worker = tasks_per_worker
        self._again: deque[_Handed] = deque()
        self._renewals = 0
        self.out: dict[Future[bytes], _Handed] = {}
        self.ready: dict[int, tuple[Any, Reply | HloError]] = {}
        """Items and what came of them, by their numbers."""

    def hand_out(self) -> bool:
        """Hand out as many tasks as may be out, lost ones at once; whether anything is out or ready."""
        while self._has_room():
            handed = self._again.popleft() if self._again else next(self._fresh, None)
            if handed is None:
                break
            try:
                data = packed(self._task_of(handed.item), self._engine.way)
            except HloError as error:
                self.ready[handed.number] = handed.item, error
                continue
            except MemoryError:
                self.ready[handed.number] = handed.item, ResourceError("there is not enough memory")
                continue
            try:
                self.out[self._engine.submit(data)] = handed
            except Exception as error:
                self._again.appendleft(handed)
                self._renew(error)
        return bool(self.out or self.ready)

    def _has_room(self) -> bool:
        """Whether another task may go out: one whose worker has died goes alone, as it may be what killed it."""
        if any(handed.deaths for handed in (*self.out.values(), *islice(self._again, 1))):
            return not self.out
        return bool(self._again) or len(self.out) + len(self.ready) < self._tasks_per_worker * self._engine.workers

    def take_back(self) -> None:
        """Wait for tasks that are out, and keep what came of them, or what has to be handed out again."""
        done = self._done()
        failures = {future: failure for future in done if (failure := _failure(future)) is not None}
        for future in done:
            if future not in failures:
                self._renewals = 0
                handed = self.out.pop(future)
                self.ready[handed.number] = handed.item, _reply(future.result())
        broken = next((failure for failure in failures.values() if _is_of_engine(failure)), None)
        if broken is not None:
            self._renew(broken)
            failures = {future: failures.get(future, CancelledError()) for future in self.out}
        for future, failure in failures.items():
            handed = self.out.pop(future)
            handed.deaths += 1
            if handed.deaths < self._engine.tries:
                self._again.appendleft(handed)
            else:
                ended = Ended(1, _DIED if _is_of_engine(failure) else _words(failure))
                self.ready[handed.number] = handed.item, Reply(ended, None, True, 0.0, is_lost=True)

    def _done(self) -> set[Future[bytes]]:
        """Those of which something has come, once there are any; ResourceError where nothing will."""
        while True:
            done, _ = wait(self.out, _CHECK_SECONDS, FIRST_COMPLETED)
            if done:
                return done
            if problem := self._engine.problem():
                raise ResourceError(f"{argument('executor')} {self._engine.name} is lost: {problem}")

    def _renew(self, error: BaseException) -> None:
        """Make the executor again; ResourceError where that is not possible, or does not help."""
        if self._renewals == _MOST_RENEWALS or not self._engine.renew():
            problem = self._engine.problem() or _words(error)
            raise ResourceError(f"{argument('executor')} {self._engine.name} is lost: {problem}") from error
        self._renewals += 1


def _failure(future: Future[bytes]) -> BaseException | None:
    """Why nothing came of a task; UnsupportedError where a worker cannot carry out any."""
    failure = CancelledError() if future.cancelled() else future.exception()
    if isinstance(failure, (ImportError, AttributeError)):
        raise UnsupportedError(
            f"{argument('executor')}: a worker cannot carry out tasks of this hloexec: {_words(failure)}"
        ) from failure
    return failure


def _reply(data: bytes) -> Reply | HloError:
    reply = unpacked(data)
    if isinstance(reply, str):
        raise UnsupportedError(f"{argument('executor')}: {reply}")
    return reply


def _is_of_engine(error: BaseException) -> bool:
    """Whether an error is none of one task: no task fails in its worker, whatever its process does."""
    return isinstance(error, (BrokenExecutor, CancelledError))


def _words(error: BaseException) -> str:
    said = first_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
