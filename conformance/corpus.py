"""Any folder of HLO files: each is parsed and run by XLA and by hloexec, in processes of their own, and compared."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from conformance import bounds
from conformance.cell import Array
from conformance.judging import same_bits
from conformance.worker import Worker, XlaRefused
from hloexec.dtypes import ELEMENT_TYPES, element_type_of

__all__ = ["FileReport", "causes", "examine", "files_of"]

_SUFFIXES = (".hlo", ".txt", ".hlo.gz", ".txt.gz")
_AGREEMENT = 64
"""How many units of roundoff of the module's narrowest float the norm of a difference may be, relative to the result:
programs of some hundred operations whose roundings differ stay within it, and a wrong operation does not."""


@attrs.define
class FileReport:
    """What came of one file."""

    path: Path
    failures: dict[str, str] = attrs.Factory(dict)
    """Cause (`hloexec parse`, `XLA run`, …) to message."""
    leaves: int = 0
    unequal_exact: int = 0
    """Elements of integers and pred that differ."""
    worst_steps: float = 0.0
    """The worst distance of an element, in representable values."""
    worst_norm: float = 0.0
    """The worst ‖difference‖₂ / ‖result‖₂ of a leaf."""
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        return not self.failures and self.unequal_exact == 0 and self.worst_norm <= self.tolerance


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
    "XLA parse": _parse_xla,
    "XLA run": _run_xla,
    "XLA run of the equivalent module": _run_equivalent,
}


def examine(paths: Sequence[Path], seed: int = 0, timeout: float = 120.0) -> Iterator[FileReport]:
    """One report per file, as they come."""
    mine, its = Worker(timeout, _serve), Worker(timeout, _serve)
    try:
        for path in paths:
            yield _examined(path, mine, its, seed)
    finally:
        mine.close()
        its.close()


def _examined(path: Path, mine: Worker, its: Worker, seed: int) -> FileReport:
    report = FileReport(path)
    text = _text(path)

    def attempt(worker: Worker, what: str, *arguments: Any) -> Any:
        try:
            return worker.ask((what, arguments))
        except XlaRefused as error:
            report.failures[what] = " ".join(str(error).split())
            return None

    attempt(its, "XLA parse", text)
    attempt(mine, "hloexec parse", text, path.name)
    if report.failures:
        return report
    answer = attempt(mine, "hloexec run", text, path.name, seed)
    if answer is None:
        return report
    inputs, ours = answer
    theirs = attempt(its, "XLA run", text, inputs)
    if theirs is None:
        theirs = attempt(its, "XLA run of the equivalent module", text, inputs)
        if theirs is not None:
            del report.failures["XLA run"]
    if theirs is not None:
        _compare(report, text, ours, theirs)
    return report


def _compare(report: FileReport, text: str, ours: list[Array], theirs: list[Array]) -> None:
    floats = [entry for name, entry in ELEMENT_TYPES.items() if entry.is_floating and re.search(rf"\b{name}\[", text)]
    floats += [ELEMENT_TYPES[part] for name, part in (("c64", "f32"), ("c128", "f64")) if f"{name}[" in text]
    report.tolerance = _AGREEMENT * max((bounds.unit_roundoff(entry) for entry in floats), default=0.0)
    report.leaves = len(ours)
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        report.failures["comparison"] = f"shapes {[x.shape for x in ours]}, XLA {[x.shape for x in theirs]}"
        return
    for mine, its in zip(ours, theirs, strict=True):
        entry = element_type_of(mine.dtype)
        if not entry.is_floating and not entry.is_complex:
            report.unequal_exact += int((~same_bits(mine, its)).sum())
            continue
        distances = bounds.steps(mine, its)
        wide, exact = mine.astype(np.complex128), its.astype(np.complex128)
        finite = np.isfinite(wide) & np.isfinite(exact)
        report.unequal_exact += int((~finite & (distances > 0)).sum())
        norm = float(np.linalg.norm(exact[finite]))
        error = float(np.linalg.norm((wide - exact)[finite]))
        report.worst_norm = max(report.worst_norm, error / norm if norm else float(error > 0))
        report.worst_steps = max(report.worst_steps, float(distances[np.isfinite(distances)].max(initial=0)))


def causes(reports: Sequence[FileReport]) -> Counter[tuple[str, str]]:
    """Failures by cause: what failed, and the message without names, numbers and places."""
    return Counter(
        (what, re.sub(r"[%'\"][\w.\-]+['\"]?|\d+", "…", message)[:160])
        for report in reports
        for what, message in report.failures.items()
    )
