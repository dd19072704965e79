"""A contestant's process, started, asked and ended from here."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


class ContestantError(Exception):
    """A contestant ended, or did not answer in time, or could not do what it was asked."""


class Contestant:
    """`python -m benchmarks.contestants.NAME MODULE INPUTS DEVICES`; once made, its first result is there. What
    measures the machine needs no module.

    `cold_seconds` go from before the process starts to the line that says so.
    """

    def __init__(
        self,
        name: str,
        module: Path | None = None,
        inputs: Path | None = None,
        devices: int = 1,
        *,
        timeout: float = 600.0,
    ) -> None:
        self.name = name
        self._timeout = timeout
        arguments = [] if module is None else [str(module), str(inputs), str(devices)]
        command = [sys.executable, "-m", f"benchmarks.contestants.{name}", *arguments]
        # An installed package has its bytecode beside it, for both alike.
        left_out = ("XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._listen_to_errors, daemon=True).start()
        try:
            self.first: Mapping[str, Any] = self._answer()
        except ContestantError:
            self.close()
            raise
        self.cold_seconds = time.perf_counter() - start

    def ask(self, what: str, **details: object) -> dict[str, Any]:
        """Make a request and wait for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            self.close()
            raise ContestantError(f"{self.name} did not answer within {self._timeout:.0f} s") from None
        if line is None:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContestantError(f"{self.name}: {answer['error']}")
        return answer

    def _ended(self) -> ContestantError:
        status = self._process.wait()
        time.sleep(0.05)
        said = "".join(self._errors[-3:]).strip()
        shown = said if len(said) <= 400 else f"{said[:200]} … {said[-200:]}"
        return ContestantError(f"{self.name} ended with status {status}: {shown}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]
