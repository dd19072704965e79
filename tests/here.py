"""What hloexec does in processes of its own, done in this one: starting them takes longer than what they do.

Neither is for modules that may crash XLA, hang or run out of memory, which is what the processes are for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from threading import Event, Lock
from unittest import mock

from conformance.xla import compile_hlo
from hloexec.core.ir import Module
from hloexec.core.values import Array
from hloexec.language.interop import xla_cpu
from hloexec.tools.executing import tasks
from hloexec.tools.executing.processes import Ended, run_command


@contextmanager
def triaging_here() -> Iterator[None]:
    """`triage` judges and minifies one case after the other, with as much memory as there is."""
    lock = Lock()

    def run_command_or_work(
        words: Sequence[str],
        printed: Path,
        seconds: float,
        stop: Event | None,
        environment: object = None,
        **named: bool,
    ) -> Ended:
        if environment is None:
            return run_command(words, printed, seconds, stop, **named)
        with lock:
            if stop is None or not stop.is_set():
                tasks.work(Path(words[-1]))
        return Ended(0, "")

    with mock.patch.multiple(tasks, run_command=run_command_or_work, limit=lambda *_: None):
        yield


@contextmanager
def xla_here(flags: Mapping[str, object] | None = None) -> Iterator[None]:
    """XLA:CPU compiles each program once, with these flags, and runs it in this process."""
    compiled = cache(partial(compile_hlo, xla_flags=flags))

    def executed(text: str, arrays: Sequence[Array], _: Module) -> list[Array]:
        return compiled(text).run(*arrays)

    with mock.patch.object(xla_cpu, "_executed_apart", executed):
        yield
