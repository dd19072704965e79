"""Reports of `hloexec triage`: the causes, each with its modules, and what came of each module that does not agree."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import first_line, listing, number_text, plural
from hloexec.report.layout import Parts, Titled, listed, next_steps
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.triaging import (
    CauseGroup,
    MinifiedModule,
    Triage,
    TriagedModule,
)

_STYLES = {"differ": "bold red", "rounding only": "cyan", "agree": "green"}
_OTHER_STYLE = "bold yellow"
_MOST_OPCODES = 4
_MOST_STEPS = 3
_MOST_BARS = 12


def triage_view(triaged: Triage, top: int) -> RenderableType:
    """Everything `hloexec triage` says."""
    parts: Parts = [_verdict(triaged)]
    if triaged.groups:
        parts.append(_groups(triaged.groups))
    worst = [member for group in triaged.groups for member in group.members]
    if worst:
        parts.append(
            _modules(worst, {name.name: group.number for group in triaged.groups for name in group.members}, top)
        )
    if not triaged.is_complete:
        kept = f"; the same command goes on with {triaged.output}" if triaged.output else ""
        parts.append(
            Text(f"\ninterrupted after {len(triaged.modules)} of {triaged.case_count} modules{kept}", "yellow")
        )
    commands = list(_commands(triaged))
    if commands:
        parts.append(next_steps(*commands[:_MOST_STEPS]))
    return Group(*parts)


def triage_page_view(triaged: Triage, top: int) -> RenderableType:
    """The same, and the HLO of each cause: of the instruction to blame, and of the smallest module that shows it."""
    return Group(triage_view(triaged, top), *map(_group, triaged.groups))


def _group(group: CauseGroup) -> RenderableType:
    first = next(member for member in group.members if member.name == group.representative)
    lines = [Text(f"{plural(len(group.members), 'module')}; as in {first.name}, compared with {first.against}")]
    blamed = first.blamed
    if blamed is not None:
        lines.append(Text(f"  {blamed.hlo}"))
        if blamed.instead_of not in (None, blamed.hlo):
            lines.append(Text(f"  should be  {blamed.instead_of}"))
        lines += [Text(f"  from {line}", "cyan") for line in blamed.source]
        lines += [Text(blamed.reason)] if blamed.reason else []
    elif first.reason:
        lines.append(Text(first.reason))
    small = group.minified
    if small is not None and small.hlo_text:
        lines.append(Text(f"minified, from {plural(small.given_instruction_count, 'instruction')}"))
        lines.append(Text("\n".join(f"  {line}" for line in small.hlo_text.rstrip("\n").split("\n"))))
    return Titled(f"cause {group.number}", group.cause, Group(*lines))


def _verdict(triaged: Triage) -> Text:
    text = Text.assemble((triaged.folder, "bold"), f"  {plural(len(triaged.modules), 'module')}")
    for number, (outcome, count) in enumerate(triaged.counts.items()):
        text.append(", " if number else ": ")
        text.append(f"{count} {outcome}", _style(outcome))
    causes = sum(group.outcome == "differ" for group in triaged.groups)
    if causes:
        text.append(f"; {plural(causes, 'cause')}")
    return text


def _style(outcome: str) -> str:
    return _STYLES.get(outcome, _OTHER_STYLE)


def _groups(groups: Sequence[CauseGroup]) -> RenderableType:
    def cells(group: CauseGroup) -> Parts:
        opcodes = (f"{count} {opcode}" for opcode, count in group.opcodes.items())
        cause, members = Text(group.cause, _style(group.outcome)), str(len(group.members))
        return [str(group.number), cause, members, listing(opcodes, _MOST_OPCODES), _minified(group.minified)]

    remarks = ("to blame", "minified")
    return listed("causes", "", list(map(cells, groups)), "cause", names=("#",), figures=("modules",), remarks=remarks)


def _minified(minified: MinifiedModule | None) -> str:
    if minified is None:
        return ""
    if minified.reason:
        return f"not minified: {minified.reason}"
    place = minified.folder or minified.module_name
    left = plural(minified.instruction_count, "instruction")
    return f"{left} in {_from_here(place) if minified.folder else place}"


def _from_here(path: str) -> str:
    """A path from the current folder; as it is where none leads there, as from one drive of Windows to another."""
    try:
        return os.path.relpath(path)
    except ValueError:
        return path


def _modules(modules: Sequence[TriagedModule], numbers: dict[str, int], top: int) -> RenderableType:
    rows = [
        (
            each.name,
            Text(each.outcome, _style(each.outcome)),
            str(numbers[each.name]),
            _off(each),
            _to_blame(each),
            _because(each),
        )
        for each in modules
    ]
    figures, remarks = ("cause", "off"), ("to blame", "because")
    return listed(
        "modules", "all that do not agree", rows, "module", "outcome", top=top, figures=figures, remarks=remarks
    )


def _off(module: TriagedModule) -> str:
    """The largest relative error."""
    errors = [output.max_relative_error for output in module.outputs if output.max_relative_error is not None]
    if module.difference == "NaN or infinities":
        return "NaN"
    return number_text(max(errors), 2) if errors else ""


def _to_blame(module: TriagedModule) -> str:
    blamed = module.blamed
    if blamed is None:
        return module.step or ""
    where = blamed.source[0] if blamed.source else f"in {blamed.computation}"
    step = f"{module.step}: " if module.step else ""
    return f"{step}%{blamed.instruction}, {where}"


def _because(module: TriagedModule) -> str:
    if module.explained is not None:
        return module.explained.words if module.explained.is_whole else f"{module.explained.words}, at this instruction"
    return first_line(module.reason)


def _commands(triaged: Triage) -> list[str]:
    """What shows the first causes."""
    commands = []
    for group in triaged.groups:
        minified = group.minified
        if group.outcome != "differ":
            continue
        if minified is not None and minified.folder is not None and minified.command:
            commands.append(f"cd {shlex.quote(_from_here(minified.folder))} && {minified.command}")
            continue
        first = next(member for member in group.members if member.name == group.representative)
        if first.kind == "pair":
            drawn = [] if triaged.distribution == "normal" else ["--distribution", triaged.distribution]
            commands.append(shlex.join(["hloexec", "diff", *first.files, *drawn]))
    return commands


def _figures(triaged: Triage, _: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    rows = [
        (f"cause {group.number}", len(group.members), f"{len(group.members)}  {group.cause}")
        for group in triaged.groups[:_MOST_BARS]
    ]
    yield bars("How many modules each cause has", rows, "modules")


REPORTS = {Triage: Report(lambda found, top, _: triage_page_view(found, top), _figures)}
