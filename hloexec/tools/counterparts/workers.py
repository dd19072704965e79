"""The processes that run modules. Each stays for the next module; one that has ended is started anew."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any, BinaryIO, cast

from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.core.wording import first_line, truncated
from hloexec.tools.counterparts.answers import Outcome
from hloexec.tools.counterparts.worker import MARK, NEXT, read_message, write_message
from hloexec.tools.executing.processes import Ended, end_process

_SCRIPT = Path(__file__).with_name("worker.py")
_STARTING_SECONDS = 120.0
_ENDING_SECONDS = 5.0
"""What a process may take to end, once it has closed its output."""
_MOST_WORKERS = 8
_MOST_REASON = 400
_NOTICE = re.compile(
    r"^(?:[IW]\d{4} .*\n|WARNING: All log messages before .*\n|E0000 .*\n|F\d{4} \S+ +\d+ )", re.MULTILINE
)
"""What XLA says beside what matters: notices, and before a reason the time."""
_MEMORY = re.compile(r"bad_alloc|MemoryError|RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)

Reply = tuple[dict[str, Any], list[list[bytearray]]]
"""A header and, for each device, the bytes of its arrays."""


_HOW = {Outcome.REFUSED: "cannot run", Outcome.CRASHED: "crashes on", Outcome.OUT_OF_MEMORY: "lacks the memory for"}


class NoAnswerError(Exception):
    """Why a process has not answered, as a clause."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.has_begun = outcome, True

    def words(self, name: str) -> str:
        """The same of a module of a name, as a predicate without its subject, such as `crashes on m: …`."""
        if not self.has_begun:
            return f"does not start: {self}"
        return f"{self} for {name}" if self.outcome is Outcome.TIMED_OUT else f"{_HOW[self.outcome]} {name}: {self}"


@define(eq=False)
class _Question:
    """A module that a process is asked to run."""

    header: Mapping[str, Any]
    arrays: Sequence[Array]
    seconds: float
    answer: Reply | NoAnswerError | None = None


class Worker:
    """A process that runs modules, one after the other."""

    def __init__(self, python: str | None, settings: Mapping[str, Any]) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if python is None:
            environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        else:
            # Another environment has packages of its own.
            environment = {name: text for name, text in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._environment = environment
        self._command = [python or sys.executable, os.fspath(_SCRIPT), json.dumps(settings)]
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._late: float | None = None
        """The seconds that the process has not kept to, for which it was killed."""
        self._lock = Lock()
        self._pending: deque[_Question] = deque()

    def begin(self, header: Mapping[str, Any], arrays: Sequence[Array], seconds: float) -> Callable[[], Reply]:
        """Ask the process, which may be busy with what it was asked before; what is given waits for the answer.

        That raises NoAnswerError if there is none within so many seconds. Then the process ends, and a new one is
        asked what is left; it ends with what else ends the waiting, too.
        """
        question = _Question(header, arrays, seconds)
        with self._lock:
            is_idle = not self._pending
            self._pending.append(question)
            if is_idle and self._process is not None and self._process.poll() is not None:
                self.close()
            if self._process is None:
                self._start_again()
            else:
                if is_idle and self._printed is not None:
                    self._printed.truncate(0)
                self._write(question)
        return lambda: self._answer(question)

    def _answer(self, question: _Question) -> Reply:
        with self._lock:
            while question.answer is None:
                if self._process is None:
                    self._start_again()
                    continue
                current = self._pending.popleft()
                try:
                    current.answer = self._read(current.seconds)
                except NoAnswerError as error:
                    current.answer = error
                if self._late is not None:
                    self.close()
        if isinstance(question.answer, NoAnswerError):
            raise question.answer
        return question.answer

    def _start_again(self) -> None:
        """Start a process, and ask it what is pending."""
        try:
            self._start()
        except NoAnswerError as error:
            self._drop(error)
        for question in self._pending:
            self._write(question)

    def _drop(self, reason: NoAnswerError) -> None:
        for question in self._pending:
            question.answer = reason
        self._pending.clear()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            end_process(self._process)
            for stream in (self._process.stdout, self._printed):
                if stream is not None:
                    stream.close()
            self._process = None

    def _start(self) -> None:
        self._printed, self._late = tempfile.TemporaryFile("ab+"), None  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                env=self._environment,
                start_new_session=True,
            )
            self._read(_STARTING_SECONDS)
        except (NoAnswerError, OSError) as error:
            self.close()
            reason = error if isinstance(error, NoAnswerError) else NoAnswerError(Outcome.REFUSED, str(error))
            reason.has_begun = False
            raise reason from None

    def _write(self, question: _Question) -> None:
        assert self._process is not None
        # Why it has ended, reading its answer says.
        with self._within(question.seconds), suppress(BrokenPipeError):
            write_message(cast(BinaryIO, self._process.stdin), question.header, question.arrays)

    def _read(self, seconds: float) -> Reply:
        """What the process writes next."""
        process = self._process
        assert process is not None
        with self._within(seconds):
            try:
                reply, data = read_message(cast(BinaryIO, process.stdout))
            except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
                raise self._ended(process, error) from error
        if "outcome" in reply:
            raise NoAnswerError(Outcome(reply["outcome"]), _shortened(reply["reason"]))
        return reply, data

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Kill the process if what is done takes longer, and end it with what ends that."""
        process = self._process
        assert process is not None

        def stop() -> None:
            self._late = seconds
            process.kill()

        timer = Timer(seconds, stop)
        timer.start()
        try:
            yield
        except NoAnswerError:
            raise
        except BaseException:
            self.close()
            self._drop(NoAnswerError(Outcome.CRASHED, "it was interrupted"))
            raise
        finally:
            timer.cancel()

    def _ended(self, process: subprocess.Popen[bytes], error: Exception) -> NoAnswerError:
        """How a process has failed to answer, after ending it."""
        assert self._printed is not None
        with suppress(subprocess.TimeoutExpired):
            if isinstance(error, EOFError):
                process.wait(_ENDING_SECONDS)
        process.kill()
        process.wait()
        self._printed.seek(0)
        printed = self._printed.read().rpartition(NEXT)[2].decode("utf-8", "replace")
        self.close()
        if self._late is not None:
            return NoAnswerError(Outcome.TIMED_OUT, f"takes more than {self._late:g} s")
        data = error.args[0] if error.args else b""
        if not isinstance(data, bytes) or not MARK.startswith(data):
            begin = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(error)
            return NoAnswerError(Outcome.CRASHED, f"it prints what is no answer: {truncated(begin, 40)!r}")
        outcome = Outcome.OUT_OF_MEMORY if _MEMORY.search(printed) else Outcome.CRASHED
        said = _shortened(_NOTICE.sub("", printed.partition("*** ")[0]).strip())
        ended = str(Ended(process.returncode, printed))
        return NoAnswerError(outcome, f"{ended}: {said}" if said else ended)


def _shortened(text: str) -> str:
    return truncated(first_line(text), _MOST_REASON)


_WORKERS: dict[tuple[Any, ...], Worker] = {}
"""By what they were started with, the last used last."""


def worker_for(python: str | None, settings: Mapping[str, Any]) -> Worker:
    """The worker that has these settings, which outlives the modules that it is asked about."""
    # XLA reads its flags once; a copy of this process must not ask the worker of the other.
    key = os.getpid(), python, json.dumps(settings), os.environ.get("XLA_FLAGS"), os.getcwd(), tuple(sys.path)
    _WORKERS[key] = _WORKERS.pop(key) if key in _WORKERS else Worker(python, settings)
    if len(_WORKERS) > _MOST_WORKERS:
        _WORKERS.pop(next(iter(_WORKERS))).close()
    return _WORKERS[key]


@atexit.register
def _close_all() -> None:
    for key, worker in _WORKERS.items():
        if key[0] == os.getpid():
            worker.close()
