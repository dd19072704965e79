"""Engines: what has the workers that tasks run on, opened by a text or made of an executor.

`processes:N` are N processes of this machine at a time. `dask:ADDRESS`, `mpi` and `MODULE:FUNCTION` give any other
`concurrent.futures.Executor`, whose workers start the processes.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event
from time import monotonic
from typing import Any

from hloexec.core.arguments import byte_count, require_flags, require_integer, require_number, wrong
from hloexec.core.structs import frozen
from hloexec.core.wording import argument, first_line
from hloexec.errors import InputError, UnsupportedError
from hloexec.tools.executing.functions import imported
from hloexec.tools.executing.tasks import THREADS, answer, warn_of_unlimited_memory

KINDS = "processes:N, dask:ADDRESS, mpi or MODULE:FUNCTION"
_MOST_PROCESSES = 256
_ANSWER_SECONDS = 15.0
"""How long a Dask scheduler may take to answer."""
_COUNT_SECONDS = 2.0
"""How long a count of workers holds."""
_NO_WORKER_SECONDS = 60.0
"""How long there may be no worker."""


class Engine:
    """Workers, and how tasks come to them."""

    tries = 2
    """How often a task is handed out whose worker dies."""

    def __init__(self, name: str, executor: Executor, way: str) -> None:
        self.name = name
        self.way = way
        """How tasks come to their files, as `tasks.packed` has it."""
        self._executor = executor

    @property
    def workers(self) -> int:
        """How many tasks run at once, as far as the executor says."""
        for name in ("_max_workers", "num_workers", "max_workers"):
            count = getattr(self._executor, name, None)
            if isinstance(count, int) and count > 0:
                return count
        return os.cpu_count() or 1

    def submit(self, data: bytes) -> Future[bytes]:
        """Let a worker carry out a packed task."""
        return self._executor.submit(answer, data)

    def problem(self) -> str:
        """Why nothing more will come of what is submitted, as a clause; empty where nothing is known to be wrong."""
        return ""

    def renew(self) -> bool:
        """Replace an executor that has broken; whether that is possible."""
        return False

    def stop(self) -> None:
        """End what runs, where the engine can."""

    def close(self) -> None:
        """Let go of the workers."""


class _Processes(Engine):
    """Processes of this machine, which share its processors: a thread waits for each."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._threads = _threads_of_each(count)
        self._stop = Event()
        super().__init__(f"processes:{count}", self._pool, "here")

    def submit(self, data: bytes) -> Future[bytes]:
        return self._pool.submit(answer, data, self._stop, self._threads)

    def stop(self) -> None:
        self._stop.set()
        self._stop = Event()

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


def _threads_of_each(count: int) -> str:
    """With how many threads so many processes work that share this machine's processors."""
    from hloexec.ops.resources import core_count

    return str(max(1, core_count() // max(1, count)))


class _Dask(Engine):
    """The workers of a Dask scheduler, which hands out the tasks of a dead worker again by itself."""

    tries = 1

    def __init__(self, address: str, way: str) -> None:
        try:
            from distributed import Client
            from distributed.comm import parse_address, parse_host_port
            from distributed.comm.registry import get_backend
        except ImportError as error:
            raise UnsupportedError(
                f"{argument('executor')} dask needs distributed, which is not installed; install hloexec[dask]"
            ) from error
        # Losing a worker is told once, by what comes of its tasks. Dask sets levels when it is imported.
        for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._client = Client.__new__(Client)
        try:
            scheme, place = parse_address(address)
            get_backend(scheme)
            if scheme in ("tcp", "tls"):
                parse_host_port(place)
            self._client.__init__(address, timeout=_ANSWER_SECONDS, set_as_default=False)
        except Exception as error:
            # What is not whole is not to be closed, which would take half a minute and end in a traceback.
            self._client.status = "closed"
            why = first_line(str(error)) or f"there was no answer within {_ANSWER_SECONDS:g} s"
            raise InputError(f"{argument('executor')}: no Dask scheduler answers at {address}: {why}") from error
        self._count, self._counted, self._seen = 0, 0.0, monotonic()
        super().__init__(f"dask:{address}", self._client.get_executor(pure=False), way)

    @property
    def workers(self) -> int:
        if self._client.status == "running" and monotonic() > self._counted + _COUNT_SECONDS:
            with suppress(Exception):
                self._count = sum(self._client.nthreads().values())
            self._counted = monotonic()
            self._seen = self._counted if self._count else self._seen
        return self._count or 1

    def submit(self, data: bytes) -> Future[bytes]:
        return self._executor.submit(_answer_on_dask, data)

    def problem(self) -> str:
        if self._client.status != "running":
            return "its scheduler no longer answers"
        if self.workers and not self._count and monotonic() > self._seen + _NO_WORKER_SECONDS:
            return f"it has had no worker for {_NO_WORKER_SECONDS:g} s"
        return ""

    def close(self) -> None:
        with suppress(Exception):
            self._client.close(timeout=2)


def _answer_on_dask(data: bytes) -> bytes:
    return answer(data, _Released())


class _Released:
    """Whether nobody asks for the task of a Dask worker's thread any more, or the worker is about to end."""

    def __init__(self) -> None:
        from distributed import get_worker

        self._worker = get_worker()
        self._key = self._worker.get_current_task()

    def is_set(self) -> bool:
        task = self._worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled" or self._worker.status.name.startswith(("clos", "fail"))


class _Ranks(Engine):
    """The other ranks of MPI. What is stopped is told to them beside mpi4py's own messages."""

    def __init__(self, executor: Executor, told: Any, way: str) -> None:
        self._told = told
        self._round = 1
        super().__init__("mpi", executor, way)

    def submit(self, data: bytes) -> Future[bytes]:
        return self._executor.submit(_answer_on_rank, data, self._round)

    def stop(self) -> None:
        for rank in range(1, self._told.size):
            self._told.Send(self._round.to_bytes(8, "little"), rank)
        self._round += 1


class _Stopped:
    """Which tasks of this rank nobody asks for any more."""

    def __init__(self, told: Any) -> None:
        self._told = told
        self._round = 0

    def receive(self) -> int:
        """The last round whose tasks were stopped."""
        while self._told.Iprobe(0):
            message = bytearray(8)
            self._told.Recv(message, 0)
            self._round = int.from_bytes(message, "little")
        return self._round


class _StoppedRound:
    """Whether nobody asks for the tasks of a round any more."""

    def __init__(self, stopped: _Stopped, number: int) -> None:
        self._stopped = stopped
        self._number = number

    def is_set(self) -> bool:
        return self._stopped.receive() >= self._number


_of_rank: list[_Stopped] = []
"""That of this rank, while it is a worker."""


def _answer_on_rank(data: bytes, number: int) -> bytes:
    return answer(data, _StoppedRound(_of_rank[-1], number))


class _Made(Engine):
    """An executor that a function has made, which may make another."""

    def __init__(self, spec: str, way: str) -> None:
        self._make = _factory(spec)
        super().__init__(spec, _made(spec, self._make), way)

    def renew(self) -> bool:
        self.close()
        self._executor = _made(self.name, self._make)
        return True

    def close(self) -> None:
        with suppress(Exception):
            self._executor.shutdown(wait=False, cancel_futures=True)


def _factory(spec: str) -> Callable[[], Any]:
    try:
        make = imported(spec)
    except InputError as error:
        raise InputError(f"{argument('executor')} {error}; it may be {KINDS}") from error
    if not callable(make):
        raise InputError(f"{argument('executor')} {spec!r} is no function that makes an executor")
    return make  # type: ignore[no-any-return]


def _made(spec: str, make: Callable[[], Any]) -> Executor:
    try:
        executor = make()
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {first_line(str(error))}"
        raise InputError(f"{argument('executor')} {spec!r} failed: {why}") from error
    if not _is_executor(executor):
        raise InputError(
            f"{argument('executor')} {spec!r} gives {type(executor).__name__}, which has no submit and shutdown as a "
            "concurrent.futures.Executor has"
        )
    return executor  # type: ignore[no-any-return]


def _is_executor(value: object) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("submit", "shutdown"))


@contextmanager
def opened_engine(executor: str | Executor | None, jobs: int = 1, *, shared: bool = False) -> Iterator[Engine]:
    """An engine for an executor or the text that names one; by default as many processes of this machine as `jobs`.

    `shared` says that workers see the same files by the same absolute paths. Raises InputError where the text names
    none or nothing answers, UnsupportedError where a package is missing, and SystemExit in processes that have been
    workers of MPI until the caller had no more tasks.
    """
    require_integer("jobs", jobs, 1)
    require_flags(shared=shared)
    if executor is not None and jobs != 1:
        raise InputError(f"{argument('jobs')} are processes of this machine; leave it out, as the executor has workers")
    way = "shared" if shared else "carried"
    if executor is None or isinstance(executor, str):
        if executor == "mpi":
            with _mpi_executor() as (ranks, told):
                yield _Ranks(ranks, told, way)
            return
        engine = _named_engine(f"processes:{jobs}" if executor is None else executor, way)
    elif _is_executor(executor):
        engine = Engine(type(executor).__name__, executor, way)
    else:
        raise wrong("executor", f"a concurrent.futures.Executor, or one of {KINDS}", executor)
    try:
        yield engine
    finally:
        engine.close()


def checked_bounds(timeout: float, memory: int | str, name: str = "timeout") -> tuple[float, int]:
    """The seconds and bytes that a task may take; InputError where they are none."""
    require_number(name, timeout)
    size = byte_count("memory", memory)
    for argument_name, limit in ((name, timeout), ("memory", size)):
        if not limit:
            raise InputError(f"{argument_name} must be more than 0")
    return float(timeout), size


@frozen
class Workers:
    """What carries out tasks, and what each of them may take."""

    executor: str | Executor | None
    jobs: int
    shared: bool
    seconds: float
    memory: int

    def opened(self) -> AbstractContextManager[Engine]:
        """The engine, open."""
        warn_of_unlimited_memory(self.memory)
        return opened_engine(self.executor, self.jobs, shared=self.shared)


def workers_of(
    executor: str | Executor | None,
    jobs: int | None,
    shared: bool,
    bounds: Mapping[str, float | int | str | None],
    seconds: float = 120.0,
) -> Workers | None:
    """What a caller gave of workers; None where neither an executor nor a number of jobs is given.

    `bounds` are what a task may take, the seconds first, by the names of the arguments; None stands for `seconds` and
    for 4 GiB. InputError where one of them is given, but nothing that it bounds.
    """
    (name, timeout), (_, memory) = bounds.items()
    if jobs is not None:
        require_integer("jobs", jobs, 1)
    require_flags(shared=shared)
    limits = checked_bounds(seconds if timeout is None else timeout, "4G" if memory is None else memory, name)  # type: ignore[arg-type]
    if executor is not None or jobs is not None:
        return Workers(executor, 1 if jobs is None else jobs, shared, *limits)
    idle = [key for key, value in {**bounds, "shared": shared or None}.items() if value is not None]
    if idle:
        raise InputError(f"{argument(idle[0])} is for workers; give {argument('executor')} or {argument('jobs')}, too")
    return None


def _named_engine(spec: str, way: str) -> Engine:
    kind, colon, rest = spec.partition(":")
    if kind == "processes":
        if not rest.isdecimal() or not 1 <= int(rest) <= _MOST_PROCESSES:
            raise InputError(f"{argument('executor')} processes:N has 1 to {_MOST_PROCESSES} processes, not {rest!r}")
        return _Processes(int(rest))
    if kind == "dask":
        if not rest:
            raise InputError(f"{argument('executor')} dask:ADDRESS lacks the scheduler's address")
        return _Dask(rest, way)
    if not colon or not kind or not rest:
        raise InputError(f"{argument('executor')} {spec!r} is none of {KINDS}")
    return _Made(spec, way)


@contextmanager
def _mpi_executor() -> Iterator[tuple[Any, Any]]:
    """The other ranks of MPI as workers, and a communicator that tells them what is stopped.

    SystemExit in those, once rank 0 has no more tasks.
    """
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(
            f"{argument('executor')} mpi needs mpi4py and an MPI library; install hloexec[mpi]"
        ) from error
    if MPI.COMM_WORLD.size < 2:
        raise InputError(
            f"{argument('executor')} mpi needs two ranks at least, of which the first hands out tasks; start hloexec "
            "with mpiexec -n 3, for example"
        )
    told = MPI.COMM_WORLD.Dup()
    machine = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    threads = _threads_of_each(machine.allreduce(int(told.rank > 0)))
    machine.Free()
    if told.rank:
        os.environ.setdefault(THREADS, threads)
        # mpiexec passes Ctrl-C on to all ranks: the first one tells the others what to do.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _of_rank.append(_Stopped(told))
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as ranks:
        if ranks is not None:
            yield ranks, told
            return
    _of_rank.pop().receive()
    raise SystemExit(0)
