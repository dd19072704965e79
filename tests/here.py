"""What hloexec does in processes of its own, done in this one or in one that stays: starting them takes longer than
what they do."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any
from unittest import mock

from hloexec.core.ir import Module
from hloexec.core.tree import flat
from hloexec.core.values import Inputs
from hloexec.tools.counterparts.specs import counterpart
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
def xla_flags(flags: Mapping[str, object]) -> Iterator[None]:
    """XLA, as a counterpart, runs with these flags; all that has them shares a process."""
    texts = [os.environ.get("XLA_FLAGS", ""), *(f"--{name}={str(value).lower()}" for name, value in flags.items())]
    with mock.patch.dict(os.environ, XLA_FLAGS=" ".join(texts)):
        yield


def on_xla(module: Module, inputs: Inputs) -> list[Any]:
    """The leaves of what XLA:CPU gives; raises what keeps it from giving anything."""
    return flat(counterpart("xla-cpu").run(module, inputs).value())
