"""The instructions that a result singles out, the foremost first: those that pages have details of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hloexec.analysis.buffers import MemoryComparison, MemoryUsage
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.wording import byte_text
from hloexec.report.html.recording import Key
from hloexec.report.units import count_text
from hloexec.tools.diffing import Diff, FolderDiff
from hloexec.tools.explaining import Explanation
from hloexec.tools.nan_search import NanSearch
from hloexec.tools.shadowing import ShadowRun


@frozen
class Ranked:
    """An instruction, and why it is singled out."""

    key: Key
    why: str
    is_bad: bool = False
    """Whether the verdict names it as the culprit."""


def ranked(result: object, module: Module | None, most: int) -> list[Ranked]:
    """At most so many instructions of the module, each once."""
    rank = _RANKS.get(type(result))
    if rank is None or module is None:
        return []
    found: dict[Key, Ranked] = {}
    for each in rank(result, module):
        computation = module.by_name.get(each.key[0])
        if computation is not None and each.key[1] in computation.by_name:
            found.setdefault(each.key, each)
    return list(found.values())[:most]


def module_of(result: object) -> Module | None:
    """The module that a result is about, if it has it."""
    if isinstance(result, Module):
        return result
    if isinstance(result, Diff):
        return result.after
    if isinstance(result, FolderDiff):
        first = first_diff(result)
        return None if first is None else first.after
    return None


def first_diff(found: FolderDiff) -> Diff | None:
    """The diff of the first module that differs, at the step to blame."""
    return next((step.diff for each in found.modules if (step := each.to_blame) and step.diff is not None), None)


def _of_diff(found: Diff, _: Module) -> Iterator[Ranked]:
    for number, finding in enumerate(found.findings):
        place = finding.after
        why = "to blame" if finding.is_certain else "where it begins"
        why += f": {finding.reason}" if finding.reason else ""
        yield Ranked((place.computation, place.instruction), why, is_bad=not number)
    for finding in found.findings:
        for place in finding.region:
            yield Ranked((place.computation, place.instruction), f"in the region of %{finding.after.instruction}")


def _of_folders(found: FolderDiff, module: Module) -> Iterator[Ranked]:
    first = first_diff(found)
    return iter(()) if first is None else _of_diff(first, module)


def _of_shadow(found: ShadowRun, _: Module) -> Iterator[Ranked]:
    for number, loss in enumerate(found.losses):
        of_what = "of what is infinite or NaN and should not be" if loss.lost_share else "of the error of the outputs"
        why = f"{loss.kind}, {loss.lost_share or loss.share:.1%} {of_what}"
        yield Ranked((loss.computation, loss.instruction), why, is_bad=not number and found.is_more_than_rounding)
    for each in found.decisions:
        many = f"{count_text(each.count)} of {count_text(each.total)} elements"
        yield Ranked((each.computation, each.instruction), f"exact numbers would have decided {many} otherwise")


def _of_nan(found: NanSearch, _: Module) -> Iterator[Ranked]:
    if found.finding is not None:
        yield Ranked((found.finding.computation, found.finding.instruction), found.finding.reason, is_bad=True)
    for each in found.later:
        yield Ranked((each.computation, each.instruction), f"took part: {each.reason}")
    for each in found.discarded:
        yield Ranked((each.computation, each.instruction), f"did not reach the result: {each.reason}")


def _of_explanation(found: Explanation, module: Module) -> Iterator[Ranked]:
    homes: dict[str, list[str]] = {}
    for computation in module:
        for instruction in computation:
            homes.setdefault(instruction.name, []).append(computation.name)
    names = [(each.name, each.verdict.value) for each in found.instructions]
    names += [(name, f"explained by {policy.name}") for name, policy in found.best.policy.overrides]
    for name, why in names:
        stated, _, last = name.rpartition("/")
        places = [stated.rpartition("/")[2]] if stated else homes.get(last, [])
        if len(places) == 1:
            first = found.first_unexplained
            yield Ranked((places[0], last), why, is_bad=first is not None and first.name == name)


def _of_memory(found: MemoryUsage, _: Module) -> Iterator[Ranked]:
    for value in found.alive_at(found.peak.time):
        yield Ranked((value.computation, value.instruction), f"{byte_text(value.byte_size)} alive at the peak")


_RANKS: Mapping[type, Callable[[Any, Module], Iterator[Ranked]]] = {
    Diff: _of_diff,
    Explanation: _of_explanation,
    FolderDiff: _of_folders,
    MemoryComparison: lambda found, module: _of_memory(found.usage, module),
    MemoryUsage: _of_memory,
    NanSearch: _of_nan,
    ShadowRun: _of_shadow,
}
