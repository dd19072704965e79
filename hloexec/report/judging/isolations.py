"""Reports of `hloexec isolate`: the causes, and each unit that is not equal but for rounding, the worst first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.wording import count_text, first_line, listing, number_text, plural
from hloexec.report.layout import Command, Parts, listed, next_steps
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
        verdict.append(f"{count_text(count)} {outcome}", _style(outcome))
    parts: Parts = [verdict]
    if isolation.groups:
        parts.append(_groups(isolation.groups))
    units = [unit for group in isolation.groups for unit in group.members]
    if units:
        parts.append(_units(units, top))
    if isolation.unmet:
        names = listing(isolation.unmet, _MOST_NAMES)
        parts.append(Text(f"\nthe run did not come to {names}", "yellow"))
    if not isolation.is_complete:
        parts.append(Text(f"\ninterrupted after {len(isolation.units)} of {isolation.unit_count} units", "yellow"))
    kept = [unit.folder for unit in isolation.different if unit.folder is not None]
    if kept:
        place = shlex.quote(os.path.relpath(kept[0]))
        parts.append(next_steps(f"cd {place} && sh command.txt"))
    return Group(*parts)


def _style(outcome: str) -> str:
    return _STYLES.get(outcome, _OTHER_STYLE)


def _groups(groups: tuple[UnitGroup, ...]) -> RenderableType:
    rows = [
        (
            str(group.number),
            Text(group.outcome, _style(group.outcome)),
            str(len(group.members)),
            first_line(group.cause),
            listing(group.unit_names, _MOST_NAMES),
        )
        for group in groups
    ]
    return listed("causes", "", rows, names=("#", "outcome"), figures=("units",), remarks=("cause", "in"))


def _units(units: list[IsolatedUnit], top: int) -> RenderableType:
    rows = [
        (
            unit.name,
            Text(unit.outcome, _style(unit.outcome)),
            str(unit.group),
            _off(unit),
            _beyond(unit),
            unit.source[0] if unit.source else unit.hlo,
        )
        for unit in units
    ]
    figures, remarks = ("cause", "off", "beyond"), ("from",)
    return listed("units", "the worst first", rows, "unit", "outcome", top=top, figures=figures, remarks=remarks)


def _off(unit: IsolatedUnit) -> str:
    """The largest relative error of what is further off than rounding explains."""
    errors = [output.max_relative_error for output in unit.outputs if output.max_relative_error is not None]
    if any(output.nan_count or output.infinity_count for output in unit.outputs):
        return "NaN" if any(output.nan_count for output in unit.outputs) else "infinite"
    return number_text(max(errors), 2) if errors else ""


def _beyond(unit: IsolatedUnit) -> str:
    """How many elements are."""
    counts = [(output.mismatch_count, output.element_count) for output in unit.outputs]
    return " of ".join(count_text(sum(numbers)) for numbers in zip(*counts, strict=True)) if counts else ""


def _figures(isolation: Isolation, link: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    rows = [
        (f"cause {group.number}", len(group.members), f"{len(group.members)}  {group.outcome}: {group.cause}")
        for group in isolation.groups[:_MOST_BARS]
    ]
    if rows:
        yield bars("How many units each cause has", rows, "units")


def _ranking(isolation: Isolation, _: Module) -> Iterator[Ranked]:
    for group in isolation.groups:
        for unit in group.members:
            why = f"{unit.outcome}: {unit.cause}"
            yield Ranked((unit.computation, unit.instruction), why, is_bad=unit.outcome in DIFFERENT)


def _view(isolation: Isolation, top: int, _: Command) -> RenderableType:
    return isolation_view(isolation, top)


REPORTS = {
    Isolation: Report(
        _view,
        _figures,
        _ranking,
        module=lambda isolation: isolation.module,
        watch="hloexec.tools.watching.recording.watch_values",
    )
}
