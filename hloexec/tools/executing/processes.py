"""A command in a process of its own, and how it ended: an exit code, the signal that ended it, or not in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from hloexec.core.structs import frozen
from hloexec.errors import InputError

_MOST_OUTPUT = 1 << 20
_WAIT_SECONDS = 0.05
_SHELL_SIGNAL = 128
"""What shells, and programs that pass on how another ended, add to the number of a signal."""
_FIRST_STATUS = 0xC0000000
"""Windows has no signals: a program that crashes exits with a code from here on, which says why."""
_GUARD = "import os, sys\nwhile os.read(0, 1): pass\ngetattr(os, 'killpg', os.kill)(int(sys.argv[1]), 9)"


class Stop(Protocol):
    """Whether something is to end early; `threading.Event` is one."""

    def is_set(self) -> bool:
        """Asked every now and then."""


@frozen
class Ended:
    """How a command ended."""

    code: int | None
    """The exit code, minus the number of the signal that ended it; None if it had to be stopped."""
    output: str
    """The end of what it printed."""

    @property
    def outcome(self) -> str:
        """`pass`, `fail`, `crash` or `hang`."""
        if self.code is None:
            return "hang"
        if self.code == 0:
            return "pass"
        return "crash" if self.signal else "fail"

    @property
    def signal(self) -> int:
        """The number of the signal that ended it, or a program that it ran, or Windows' code of a crash; 0 for none."""
        code = self.code or 0
        if code >= _FIRST_STATUS:
            return code
        number = -code if code < 0 else code - _SHELL_SIGNAL
        return number if number in set(signal.Signals) else 0

    def __str__(self) -> str:
        if self.code is None:
            return "it did not end in time"
        if self.signal:
            return f"it was ended by {signal_name(self.signal)}"
        return f"it exited with {self.code}"


def signal_name(number: int) -> str:
    """What `Ended.signal` stands for."""
    return f"{number:#x}" if number >= _FIRST_STATUS else signal.Signals(number).name


def run_command(
    words: Sequence[str],
    printed: Path,
    timeout: float,
    stop: Stop | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    is_tied: bool = False,
    is_guarded: bool = False,
) -> Ended:
    """Run a command without a shell, for so many seconds at most; it ends early, too, once `stop` is set.

    What it prints goes to a file. All processes that it has started end with it, where the system has groups of them
    (Windows has none). One that is tied has a pipe as its standard input, which closes when this process ends, however
    that happens; one that is guarded is ended then by another process. Raises InputError if it cannot run.
    """
    stdin = subprocess.PIPE if is_tied else subprocess.DEVNULL
    with printed.open("wb") as output:
        try:
            process = subprocess.Popen(
                words, stdin=stdin, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        except OSError as error:
            raise InputError(f"command: cannot run {words[0]!r}: {error.strerror or error}") from error
        try:
            with _guarded(process.pid) if is_guarded else nullcontext():
                code = _waited(process, timeout, stop)
        finally:
            end_process(process)
    with printed.open("rb") as stream:
        stream.seek(max(0, printed.stat().st_size - _MOST_OUTPUT))
        return Ended(code, stream.read().decode("utf-8", "replace"))


@contextmanager
def _guarded(pid: int) -> Iterator[None]:
    """A process that ends another, and what that has started, when its standard input closes, as this one ends."""
    words = [sys.executable, "-I", "-S", "-c", _GUARD, str(pid)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.kill()


def _waited(process: subprocess.Popen[Any], timeout: float, stop: Stop | None) -> int | None:
    """The exit code; None if it did not end in time, or was told to stop."""
    left = timeout
    while left > 0 and not (stop is not None and stop.is_set()):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, _WAIT_SECONDS) if stop is not None else left)
        left -= _WAIT_SECONDS if stop is not None else left
    return None


def end_process(process: subprocess.Popen[Any]) -> None:
    """End it, and all that it has started where the system has groups of processes."""
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    if process.stdin is not None:
        # What it has not read is lost.
        with suppress(OSError):
            process.stdin.close()
