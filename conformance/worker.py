"""XLA in a process of its own, which may die without taking the matrix along."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.cell import Array


class XlaRefused(RuntimeError):  # noqa: N818 - a refusal is an answer
    """XLA did not parse, compile or run a module. `crashed` says whether its process died of it."""

    def __init__(self, message: str, crashed: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed


def _serve(connection: Any, log: str) -> None:
    """Answers each request (module text, lists of inputs) with one list of leaves per list of inputs."""
    descriptor = os.open(log, os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 2)
    from conformance import xla

    while True:
        try:
            text, input_sets = connection.recv()
        except EOFError:
            return
        try:
            if input_sets is None:
                xla.parse_hlo(text)
                connection.send((True, []))
                continue
            compiled = xla.compile_hlo(text, 1)
            connection.send((True, [compiled.run(*inputs) for inputs in input_sets]))
        except Exception as error:  # whatever it is, the other side has to hear of it
            connection.send((False, str(error)))


class Worker:
    """Runs modules on XLA:CPU, one after the other, in one process that is started again when it has died."""

    def __init__(self, timeout: float = 120.0, serve: Callable[[Any, str], None] = _serve) -> None:
        self._timeout = timeout
        self._serve = serve
        self._process: Any = None
        self._connection: Any = None
        self._folder: Any = None
        self._log = Path()

    def run(self, text: str, *input_sets: Sequence[Array]) -> list[list[Array]]:
        """The leaves of the result for each list of inputs; raises XlaRefused."""
        answer: list[list[Array]] = self.ask((text, [list(inputs) for inputs in input_sets]))
        return answer

    def parse(self, text: str) -> None:
        """Raises XlaRefused unless XLA's parser takes the text; where a shape is left out, it is inferred."""
        self.ask((text, None))

    def ask(self, request: Any) -> Any:
        """The process's answer to a request; raises XlaRefused with what it said, or that it died or took too long."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(request)
            if not self._connection.poll(self._timeout):
                self.close()
                raise XlaRefused(f"XLA had not finished after {self._timeout:.0f} s", crashed=True)
            done, answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            message = self._last_words()
            self.close()
            raise XlaRefused(message, crashed=True) from error
        if not done:
            raise XlaRefused(answer)
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # No temporary file: on Windows none can be opened again.
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name, "log")
        self._log.touch()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs, str(self._log)), daemon=True)
        self._process.start()
        theirs.close()

    def _last_words(self) -> str:
        """The fatal line of what the process wrote before it died."""
        self._process.join(5)
        with self._log.open(encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        fatal = [line for line in lines if line.startswith("F")]
        said = (fatal or lines or ["without a word"])[0]
        return f"XLA's process died ({self._process.exitcode}): {said[:300]}"

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(5)
            self._connection.close()
            self._folder.cleanup()
        self._process = None
