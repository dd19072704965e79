"""Cases measured in processes of their own: one that dies or takes too long is a failed case, and the others go on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hloexec.tools.executing.chunks import answer_each, run_chunks
from hloexec.tools.executing.engines import opened_engine
from hloexec.tools.executing.tasks import Reply, Task, Tell

ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
"""What must be set before JAX is imported: some programs are for eight devices."""
Record = dict[str, Any]


def measure_apart(
    function: str,
    chunks: Sequence[Sequence[str]],
    *,
    seconds: float,
    jobs: int = 1,
    executor: str | None = None,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Record]:
    """What `MODULE:FUNCTION` answers for each case and the arguments, chunk by chunk; a chunk shares a process.

    Each case may take so many seconds by the clock. The record of one that the process dies of has its `failure`.
    """

    def task_of(names: Sequence[str]) -> Task:
        request = {"function": function, "names": names, "arguments": arguments}
        environment = ENVIRONMENT | dict(variables or {})
        return Task(f"{__name__}:measure_chunk", request, (), seconds * len(names), -1, variables=environment)

    with opened_engine(executor, jobs) as engine:
        for name, answer in run_chunks(chunks, task_of, engine):
            if isinstance(answer, Reply):
                answer = {"failure": answer.failure(seconds)[:500]}
            yield {"name": name, **answer}


def measure_chunk(request: Mapping[str, Any], tell: Tell, _: Path) -> Record:
    """What such a process does."""
    warnings.simplefilter("ignore")
    module, _, name = request["function"].partition(":")
    function = getattr(import_module(module), name)
    return answer_each(lambda case: function(case, *request["arguments"]), request["names"], tell)
