"""Cases measured in processes of their own: one that dies or takes too long is a failed case, and the others go on."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
"""What must be set before JAX is imported: some programs are for eight devices."""
Record = dict[str, Any]


def answer(measured: Callable[[str], Record], names: Sequence[str]) -> None:
    """What such a process does: it prints a line of JSON for each of its cases."""
    warnings.simplefilter("ignore")
    for name in names:
        print(json.dumps({"name": name, **measured(name)}), flush=True)


def measure_apart(
    command: Sequence[str],
    chunks: Sequence[Sequence[str]],
    *,
    seconds: float,
    jobs: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """What `python -m COMMAND… NAME…` answers for each case, as it comes; the cases of a chunk share a process.

    Each may take so many seconds by the clock. The record of one that the process dies of has its `failure`.
    """
    environment = {**os.environ, **ENVIRONMENT, **(variables or {}), "PYTHONPATH": os.pathsep.join(sys.path)}
    records: Queue[Record] = Queue()

    def measure(chunk: Sequence[str]) -> None:
        for record in _answers([sys.executable, "-m", *command], list(chunk), seconds, environment):
            records.put(record)

    with ThreadPoolExecutor(jobs) as pool:
        for chunk in chunks:
            pool.submit(measure, chunk)
        for _ in range(sum(map(len, chunks))):
            yield records.get()


def _answers(
    command: Sequence[str], left: Sequence[str], seconds: float, environment: Mapping[str, str]
) -> Iterator[Record]:
    """The same of one chunk: where a process dies, another goes on with the next case."""
    while left:
        with (
            TemporaryFile() as complaints,
            Popen([*command, *left], stdout=PIPE, stderr=complaints, text=True, env=environment) as process,
        ):
            assert process.stdout is not None
            watch = Timer(seconds * len(left), process.kill)
            watch.start()
            for line in process.stdout:
                if line.startswith("{") and line.endswith("}\n"):
                    yield json.loads(line)
                    left = left[1:]
            process.wait()
            watch.cancel()
            complaints.seek(0)
            reason = complaints.read().decode(errors="replace").strip().splitlines()[-1:]
        if left:
            name, *left = left
            yield {"name": name, "failure": f"its process ended with {process.returncode}: {''.join(reason)}"[:500]}
