"""Reports of `hloexec isolate`: the causes, each with the unit that is furthest off, the worst first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.wording import count_text, first_line, listing, number_text, plural
from hloexec.report.layout import Parts, listed, next_steps
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.isolating.findings import DIFFERENT, IsolatedUnit, Isolation, UnitGroup
from hloexec.tools.watching.recording import Ranked

_STYLES = {**dict.fromkeys(DIFFERENT, "bold red"), "explained": "cyan", "rounding only": "cyan", "equal": "green"}
_OTHER_STYLE = "bold yellow"
_MOST_NAMES = 4
_MOST_BARS = 12


def isolation_view(isolation: Isolation, top: int) -> RenderableType:
    """Everything `hloexec isolate` says."""
    verdict = Text.assemble((isolation.module.name, "bold"), f" on {isolation.against}  ")
    verdict.append(plural(len(isolation.units), "unit"))
    for number, (outcome, count) in enumerate(isolation.counts.items()):
        verdict.append(", " if number else ": ")
        verdict.append(f"{count_text(count)} {outcome}", _STYLES.get(outcome, _OTHER_STYLE))
    parts: Parts = [verdict]
    if isolation.groups:
        names, figures, remarks = ("furthest off", "outcome"), ("off", "beyond", "units"), ("because", "from", "others")
        rows = [*map(_row, isolation.groups)]
        parts.append(listed("causes", "the worst first", rows, names=names, figures=figures, remarks=remarks, top=top))
    if isolation.unmet:
        text = "the run was interrupted before" if not isolation.is_complete else "the run did not come to"
        parts.append(Text(f"\n{text} {listing(isolation.unmet, _MOST_NAMES)}", "yellow"))
    kept = [unit.folder for unit in isolation.different if unit.folder is not None]
    if kept:
        parts.append(next_steps(f"cd {shlex.quote(os.path.relpath(kept[0]))} && sh command.txt"))
    return Group(*parts)


def _row(group: UnitGroup) -> Parts:
    unit, count = group.worst, len(group.unit_names)
    style = _STYLES.get(group.outcome, _OTHER_STYLE)
    place = unit.source[0] if unit.source else unit.hlo
    others = listing(group.unit_names[1:], _MOST_NAMES)
    return [unit.name, Text(group.outcome, style), *_how_far(unit), str(count), first_line(group.cause), place, others]


def _how_far(unit: IsolatedUnit) -> list[str]:
    """The largest relative error of what is further off than rounding explains, and how many elements are."""
    outputs = unit.outputs
    if not outputs:
        return ["", ""]
    beyond, count = (sum(getattr(one, f"{name}_count") for one in outputs) for name in ("mismatch", "element"))
    error = max(output.max_relative_error or 0.0 for output in outputs)
    off = "NaN" if any(output.nan_count for output in outputs) else number_text(error, 2)
    return [off, f"{count_text(beyond)} of {count_text(count)}"]


def _figures(isolation: Isolation, _: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    groups = isolation.groups[:_MOST_BARS]
    rows = [(group.worst.name, len(group.unit_names), f"{group.outcome} {group.cause}") for group in groups]
    yield bars("How many units each cause has", rows, "units") if rows else None


def _ranking(isolation: Isolation, _: Module) -> Iterator[Ranked]:
    for unit in (group.worst for group in isolation.groups):
        is_bad = unit.outcome in DIFFERENT
        yield Ranked((unit.computation, unit.instruction), f"{unit.outcome} {unit.cause}", is_bad=is_bad)


REPORTS = {
    Isolation: Report(
        lambda isolation, top, _: isolation_view(isolation, top),
        _figures,
        _ranking,
        module=lambda isolation: isolation.module,
        watch="hloexec.tools.watching.recording.watch_values",
    )
}
