"""Reports of `hloexec bisect`: what gives another result first, what came of each version, and what differs there."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import listing, plural
from hloexec.report.judging.diffs import diff_view
from hloexec.report.layout import Command, Parts, next_steps, plain_table
from hloexec.report.registry import Report
from hloexec.tools.bisecting import PassBisection, VersionBisection, VersionChange

_STYLES = {"different": "bold red", "equal": "green", "rounding only": "cyan"}
_CODE = "what differs comes of the code that is generated"


def versions_view(result: VersionBisection, top: int, command: Command | None = None) -> RenderableType:
    """The first version that gives another result, all that were tried, and what differs in the optimized modules."""
    if result.first is None:
        untried = len(result.versions) - len(result.trials)
        rest = "; --all tries those between them" if untried else ""
        parts: Parts = [Text.assemble(("no change", "bold green"), f" between the versions that were tried{rest}")]
    else:
        parts = [
            Text.assemble(
                (result.first, "bold red"), f" is the first that differs from the one before it{_more(result)}"
            )
        ]
    if not result.is_monotone:
        parts.append(Text("results that were seen come back after others: there is more than one change", "yellow"))
    table = plain_table(names=("version", "outcome"), remarks=("",))
    for trial in result.trials:
        rest = trial.text.removeprefix(trial.outcome).removeprefix(": ").removeprefix(f"{trial.against} ")
        table.add_row(trial.against, Text(trial.outcome, _STYLES.get(trial.outcome, "bold yellow")), rest)
    parts += ["", table]
    for change in result.changes:
        parts += ["", *_change_lines(change, top)]
    return Group(*parts)


def _more(result: VersionBisection) -> str:
    rest = len(result.changes) - 1
    return f", and {plural(rest, 'other change')} after it" if rest > 0 else ""


def _change_lines(change: VersionChange, top: int) -> Parts:
    title = Text(f"{change.before} → {change.after}", "bold")
    if change.diff is None:
        return [title, Text(change.reason, "yellow")]
    if change.has_same_text:
        return [title, Text(f"both have the same optimized module: {_CODE}")]
    if change.diff.agrees:
        return [title, Text(f"their optimized modules differ, but not what hloexec gives for them: {_CODE}")]
    right = Text(f"their optimized modules differ when hloexec runs them; below, before is that of {change.right}")
    return [title, right, "", diff_view(change.diff, top, None)]


def passes_view(result: PassBisection, top: int, command: Command) -> RenderableType:
    """The passes to blame, and what the first wrong step of the compilation does."""
    if not result.candidates:
        style = _STYLES.get(result.outcome, "bold yellow")
        return Group(Text.assemble((result.outcome, style), f": nothing to search in the passes of {result.against}"))
    counts = f"{len(result.candidates)} passes change the module, {plural(result.trials, 'compilation')}"
    if result.passes:
        verb, them = ("is", "it") if len(result.passes) == 1 else ("are", "them")
        rest = f" {verb} to blame: without {them}, the result is right"
        line = Text.assemble((listing(result.passes, 8), "bold red"), rest)
    else:
        line = Text.assemble(("no pass", "bold yellow"), " found without which the result is right")
    parts: Parts = [line, Text(f"{result.against} with all passes: {result.text}"), Text(counts, "dim")]
    if result.required:
        parts.append(Text(f"without these there is no result: {listing(result.required, 8)}", "dim"))
    if result.step is None:
        parts.append(Text(f"no step gives another result when hloexec runs the module after it: {_CODE}", "yellow"))
    else:
        confirmed = "the same pass" if result.is_confirmed else "another step"
        parts += ["", Text(f"the first step after which hloexec gives another result is {confirmed}: {result.step}")]
    if result.diff is not None:
        parts += ["", diff_view(result.diff, top, None)]
    if result.dump is not None:
        parts.append(next_steps(command("diff", result.dump)))
    return Group(*parts)


REPORTS = {VersionBisection: Report(versions_view), PassBisection: Report(passes_view)}
