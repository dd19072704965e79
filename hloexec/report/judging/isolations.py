"""Reports of `hloexec isolate`: the causes, each with the unit that is furthest off, the worst first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.wording import count_text, first_line, listing, number_text, plural
from hloexec.report.layout import Parts, listed, next_steps
from hloexec.report.registry import Report
from hloexec.tools.isolating.findings import DIFFERENT, IsolatedUnit, Isolation
from hloexec.tools.watching.recording import Ranked

_STYLES = {**dict.fromkeys(DIFFERENT, "bold red"), "explained": "cyan", "rounding only": "cyan", "equal": "green"}
_OTHER_STYLE = "bold yellow"
_MOST_NAMES = 4


def isolation_view(isolation: Isolation, top: int) -> RenderableType:
    """Everything `hloexec isolate` says."""
    verdict = Text.assemble((isolation.module.name, "bold"), f" on {isolation.against}  ")
    verdict.append(plural(len(isolation.units), "unit"))
    for number, (outcome, count) in enumerate(isolation.counts.items()):
        verdict.append(", " if number else ": ")
        verdict.append(f"{count_text(count)} {outcome}", _STYLES.get(outcome, _OTHER_STYLE))
    parts: Parts = [verdict]
    if isolation.groups:
        figures, remarks = ("off", "beyond", "units"), ("because", "from", "others")
        rows = [*map(_row, isolation.groups)]
        parts.append(
            listed("causes", "the worst first", rows, "unit", "outcome", figures=figures, remarks=remarks, top=top)
        )
    if isolation.unmet:
        text = "the run did not come to" if isolation.is_complete else "the run was interrupted before"
        parts.append(Text(f"\n{text} {listing(isolation.unmet, _MOST_NAMES)}", "yellow"))
    kept = [unit.folder for unit in isolation.different if unit.folder is not None]
    if kept:
        parts.append(next_steps(f"cd {shlex.quote(os.path.relpath(kept[0]))} && sh command.txt"))
    return Group(*parts)


def _row(group: Sequence[IsolatedUnit]) -> Parts:
    unit, outputs = group[0], group[0].outputs
    off, beyond = "", ""
    if outputs:
        numbers = [sum(getattr(output, f"{name}_count") for output in outputs) for name in ("mismatch", "element")]
        off = number_text(max(output.max_relative_error or 0.0 for output in outputs), 2)
        off, beyond = (
            "NaN" if any(output.nan_count for output in outputs) else off,
            " of ".join(map(count_text, numbers)),
        )
    outcome = Text(unit.outcome, _STYLES.get(unit.outcome, _OTHER_STYLE))
    others = listing((other.name for other in group[1:]), _MOST_NAMES)
    place = unit.source[0] if unit.source else unit.hlo
    return [unit.name, outcome, off, beyond, str(len(group)), first_line(unit.cause), place, others]


def _ranking(isolation: Isolation, _: Module) -> Iterator[Ranked]:
    for unit in (group[0] for group in isolation.groups):
        why = f"{unit.outcome} {unit.cause}"
        yield Ranked((unit.computation, unit.instruction), why, is_bad=unit.outcome in DIFFERENT)


REPORTS = {
    Isolation: Report(
        lambda isolation, top, _: isolation_view(isolation, top),
        ranking=_ranking,
        module=lambda isolation: isolation.module,
        watch="hloexec.tools.watching.recording.watch_values",
    )
}
