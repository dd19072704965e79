"""Any folder of HLO files: each is parsed and run by XLA and by hloexec, in processes of their own, and compared."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from conformance.cell import Array
from conformance.worker import Worker, XlaRefused
from hloexec.tools.executing.chunks import answer_each, run_chunks
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.tasks import Json, Reply, Task, Tell

_SUFFIXES = (".hlo", ".txt", ".hlo.gz", ".txt.gz")
_CHUNK = 32
"""Files that share processes, which take seconds to start."""


@attrs.define
class FileReport:
    """What came of one file."""

    path: Path
    failures: dict[str, str] = attrs.Factory(dict)
    """Cause (`hloexec parse`, `XLA run`, …) to message."""
    leaves: int = 0
    unequal: int = 0
    """Elements whose bits differ."""
    beyond: int = 0
    """Elements that are further apart than what rounding does to them, as a few runs show that round at random."""
    worst_steps: float = 0.0
    """The worst distance of an element, in representable values."""
    worst: float = 0.0
    """The worst error of an element, in units of what is allowed of it."""

    @property
    def agrees(self) -> bool:
        return not self.failures and not self.beyond


def files_of(folder: Path) -> list[Path]:
    """The HLO texts in a folder and below."""
    found = (path for path in folder.rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file())
    return sorted(path for path in found if "HloModule" in _text(path)[:4096])


def _text(path: Path) -> str:
    if path.name.endswith(".gz"):
        import gzip

        return gzip.open(path, "rt", encoding="utf-8", errors="replace").read()
    return path.read_text(encoding="utf-8", errors="replace")


def _serve(connection: Any, log: str) -> None:
    """Answers ('hloexec parse' | 'hloexec run' | 'XLA parse' | 'XLA run', arguments) with its result, or its error."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_TRUNC), 2)
    warnings.simplefilter("ignore")
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, _TASKS[what](*arguments)))
        except Exception as error:  # whatever it is, the other side has to hear of it
            connection.send((False, f"{type(error).__name__}: {error}"))


def _parse_hloexec(text: str, name: str) -> None:
    import hloexec

    hloexec.verify(hloexec.parse(text, filename=name))


def _run_hloexec(text: str, name: str, seed: int) -> tuple[list[Array], list[Array]]:
    """The leaves of the random inputs, and those of the result."""
    import hloexec

    module = hloexec.parse(text, filename=name)
    inputs = hloexec.random_inputs(module, seed=seed)
    return list(_leaves(tuple(inputs))), list(_leaves(hloexec.run(module, *inputs)))


def _compare_hloexec(text: str, name: str, seed: int, theirs: list[Array]) -> tuple[int, int, float, float]:
    """XLA's result against hloexec's: elements that differ, and that differ too much; the worst distance and error."""
    import hloexec
    from hloexec.analysis.numerics.leaves import leaves_of

    module = hloexec.parse(text, filename=name)
    inputs = hloexec.random_inputs(module, seed=seed)
    ours = dict(leaves_of(hloexec.run(module, *inputs), "expected"))
    found = hloexec.compare(dict(zip(ours, theirs, strict=True)), ours, module=module, inputs=inputs)
    measured = [leaf.measured for leaf in found.leaves if leaf.measured is not None]
    steps = max((leaf.ulp_percentiles.get(100, 0.0) for leaf in measured), default=0.0)
    worst = max((leaf.worst[0].severity for leaf in measured if leaf.worst), default=0.0)
    return sum(leaf.unequal for leaf in measured), sum(leaf.mismatches for leaf in measured), steps, worst


def _leaves(value: Any) -> Iterator[Array]:
    if isinstance(value, tuple):
        for element in value:
            yield from _leaves(element)
    elif isinstance(value, np.ndarray | np.generic):
        yield np.asarray(value)


def _parse_xla(text: str) -> None:
    from conformance import xla

    xla.parse_hlo(text)


def _run_xla(text: str, inputs: list[Array]) -> list[Array]:
    from conformance import xla

    return xla.run_hlo(text, *inputs)


def _run_equivalent(text: str, inputs: list[Array]) -> list[Array]:
    """The module that XLA:CPU can run, of one that was optimized for another backend, or that has layouts."""
    from conformance import xla

    return xla.run_hlo(xla.equivalent_module(text), *inputs)


_TASKS = {
    "hloexec parse": _parse_hloexec,
    "hloexec run": _run_hloexec,
    "hloexec compare": _compare_hloexec,
    "XLA parse": _parse_xla,
    "XLA run": _run_xla,
    "XLA run of the equivalent module": _run_equivalent,
}


def examine(paths: Sequence[Path], engine: Engine, seed: int = 0, timeout: float = 120.0) -> Iterator[FileReport]:
    """One report per file, as they come."""
    size = max(1, min(_CHUNK, len(paths) // engine.workers))
    chunks = [paths[start : start + size] for start in range(0, len(paths), size)]

    def task_of(chunk: Sequence[Path]) -> Task:
        texts = [(path.name, _text(path)) for path in chunk]
        seconds = len(_TASKS) * timeout * len(chunk)
        return Task(f"{__name__}:examine_chunk", {"texts": texts, "seed": seed, "timeout": timeout}, (), seconds, -1)

    for path, answer in run_chunks(chunks, task_of, engine):
        if isinstance(answer, Reply):
            yield FileReport(path, {"examination": answer.failure(len(_TASKS) * timeout)})
        else:
            figures = {name: float(answer[name]) for name in ("worst_steps", "worst")}
            yield FileReport(**{**answer, **figures, "path": path})


def examine_chunk(request: Mapping[str, Any], tell: Tell, _: Path) -> Json:
    """Examine the files of a task, in its process and two more."""
    with closing(Worker(request["timeout"], _serve)) as ours, closing(Worker(request["timeout"], _serve)) as xla:

        def examined(named: tuple[str, str]) -> Json:
            return attrs.asdict(_examined(Path(named[0]), named[1], ours, xla, request["seed"]))

        return answer_each(examined, request["texts"], tell)


def _examined(path: Path, text: str, hlo_worker: Worker, xla_worker: Worker, seed: int) -> FileReport:
    report = FileReport(path)

    def attempt(worker: Worker, what: str, *arguments: Any) -> Any:
        try:
            return worker.ask((what, arguments))
        except XlaRefused as error:
            report.failures[what] = " ".join(str(error).split())
            return None

    attempt(xla_worker, "XLA parse", text)
    attempt(hlo_worker, "hloexec parse", text, path.name)
    if report.failures:
        return report
    answer = attempt(hlo_worker, "hloexec run", text, path.name, seed)
    if answer is None:
        return report
    inputs, ours = answer
    theirs = attempt(xla_worker, "XLA run", text, inputs)
    if theirs is None:
        theirs = attempt(xla_worker, "XLA run of the equivalent module", text, inputs)
        if theirs is not None:
            del report.failures["XLA run"]
    if theirs is None:
        return report
    report.leaves = len(ours)
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        report.failures["comparison"] = f"shapes {[x.shape for x in ours]}, XLA {[x.shape for x in theirs]}"
        return report
    answer = attempt(hlo_worker, "hloexec compare", text, path.name, seed, theirs)
    if answer is not None:
        report.unequal, report.beyond, report.worst_steps, report.worst = answer
    return report


def causes(reports: Sequence[FileReport]) -> Counter[tuple[str, str]]:
    """Failures by cause: what failed, and the message without names, numbers and places."""
    return Counter(
        (what, re.sub(r"[%'\"][\w.\-]+['\"]?|\d+", "…", message)[:160])
        for report in reports
        for what, message in report.failures.items()
    )
