"""Reports of `hloexec diff` on dump folders: the pass to blame, each module, each step, and the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.wording import plural
from hloexec.report.judging.diffs import diff_view, results_lines
from hloexec.report.layout import Command, Parts, command_text, plain_table, with_rest
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.diffing import Diff
from hloexec.tools.diffing.folders import FolderDiff, ModuleDiff
from hloexec.tools.diffing.sharded import ShardedDiff
from hloexec.tools.watching.recording import Ranked

_STYLES = {
    "differ": "bold red",
    "not compared": "bold yellow",
    "not decided": "bold yellow",
    "rounding only": "cyan",
    "agree": "green",
}
_HINT = "--top says how many"
_RANKS = {outcome: rank for rank, outcome in enumerate(_STYLES)}


def folder_view(folder_diff: FolderDiff, top: int, command: Command) -> RenderableType:
    """Everything there is to say; `command` writes a command with the options that were given."""
    parts: Parts = [_verdict(folder_diff)]
    shown = next((module for module in folder_diff.modules if module.outcome == folder_diff.outcome), None)
    if shown is not None and shown.to_blame is not None and shown.to_blame.diff is not None:
        parts += results_lines(shown.to_blame.diff)
    if len(folder_diff.modules) > 1:
        parts += ["", _modules(folder_diff.modules, top)]
    if shown is not None and (len(folder_diff.modules) == 1 or shown.to_blame is not None):
        parts += ["", _steps(shown, top)]
    failed = [
        (module, step) for module in folder_diff.modules for step in module.steps if step.outcome == "not compared"
    ]
    parts += [Text(f"{module.name}: {step.reason}", style="yellow") for module, step in failed[:top]]
    parts += [Text(note, style="yellow") for note in folder_diff.notes[:top]]
    if folder_diff.left:
        count = len(folder_diff.modules)
        parts.append(Text(f"\ninterrupted after {count} of {plural(count + folder_diff.left, 'module')}", "yellow"))
    if shown is not None and shown.to_blame is not None:
        step = shown.to_blame
        parts += ["", Text(f"{step} in {shown.name}", style="bold")]
        if step.diff is not None:
            parts.append(diff_view(step.diff, top, lambda name, *more: command(name, str(step.after.path), *more)))
        parts.append(command_text(command("diff", str(step.before.path), str(step.after.path))))
    return Group(*parts)


def sharded_view(result: ShardedDiff, top: int, command: Command | None = None) -> RenderableType:
    """What makes many devices compute something else than one, and how it was found; there are no files that a command
    could go on with."""
    return Group(Text(str(result), style="bold" if result.hlo else ""), "", diff_view(result.diff, top, None))


def _verdict(folder_diff: FolderDiff) -> Text:
    steps = sum(len(module.steps) for module in folder_diff.modules)
    missing = folder_diff.unpaired + folder_diff.left
    modules = plural(len(folder_diff.modules) + missing, "module")
    counted = f"{modules}, {plural(steps, 'step')} that changed the text"
    blamed = [(module, module.to_blame) for module in folder_diff.modules if module.to_blame is not None]
    if not blamed:
        failed = sum(module.outcome == "not compared" for module in folder_diff.modules) + missing
        rest = f"  {failed} of {counted}" if failed else f"  {counted}"
        return Text.assemble((folder_diff.outcome, _STYLES[folder_diff.outcome]), (rest, "dim"))
    module, step = blamed[0]
    assert step is not None
    if step.made_by is not None:
        text = Text.assemble((str(step), "bold red"), f" is to blame in {module.name}")
    else:
        text = Text.assemble((module.name, "bold red"), f" differs, {step}")
    if step.diff is not None and step.diff.findings:
        text.append(f": %{step.diff.findings[0].after.instruction}")
    if len(blamed) > 1:
        text.append(f", and {plural(len(blamed) - 1, 'other module')} differ")
    return text


def _modules(modules: Sequence[ModuleDiff], top: int) -> RenderableType:
    """The worst first."""
    ranked = sorted(modules, key=lambda module: _RANKS[module.outcome])
    table = plain_table("module", "stages", "steps", "verdict", "to blame")
    for module in ranked[:top]:
        step = module.to_blame
        table.add_row(
            module.name,
            str(module.stages),
            str(len(module.steps)),
            Text(module.outcome, _STYLES[module.outcome]),
            Text("" if step is None else str(step)),
        )
    return with_rest(table, len(ranked), top, _HINT)


def _steps(module: ModuleDiff, top: int) -> RenderableType:
    """The steps in their order, around the one to blame where there are too many; all that differ."""
    steps = module.steps
    first = 0
    if module.to_blame is not None:
        first = max(0, min(steps.index(module.to_blame) - top // 2, len(steps) - top))
    shown = [step for place, step in enumerate(steps) if first <= place < first + top or step.outcome == "differ"]
    table = plain_table("step", "verdict", "values found before")
    for step in shown:
        table.add_row(
            str(step),
            Text(step.outcome, _STYLES[step.outcome]),
            ("" if step.diff is None else f"{step.diff.matched_values} of {step.diff.values}"),
        )
    return with_rest(table, len(steps), len(shown), _HINT)


def _ranking(result: Diff, _: Module) -> Iterator[Ranked]:
    for number, finding in enumerate(result.findings):
        place = finding.after
        why = "to blame" if finding.is_certain else "where it begins"
        why += f": {finding.reason}" if finding.reason else ""
        yield Ranked((place.computation, place.instruction), why, is_bad=not number)
    for finding in result.findings:
        for place in finding.region:
            yield Ranked((place.computation, place.instruction), f"in the region of %{finding.after.instruction}")


def _first_diff(folder_diff: FolderDiff) -> Diff | None:
    """The diff of the first module that differs, at the step to blame."""
    return next(
        (step.diff for module_diff in folder_diff.modules if (step := module_diff.to_blame) and step.diff is not None),
        None,
    )


def _figures(result: Diff, _: Linker) -> Figures:
    from hloexec.report.html.figures import error_maps

    for finding in result.findings[:1]:
        if finding.comparison is not None:
            yield from error_maps(finding.comparison.leaves, f"Errors that %{finding.after.instruction} makes")
    yield from error_maps(result.outputs.leaves, "" if len(result.outputs.leaves) > 1 else "Errors of the result")


def _module(folder_diff: FolderDiff) -> Module | None:
    first = _first_diff(folder_diff)
    return None if first is None else first.after


def _of_first(say: Callable[[Diff, Any], Iterator[Any]]) -> Callable[[FolderDiff, Any], Iterator[Any]]:
    """What is said of the first module that differs."""
    return lambda found, other: iter(()) if (first := _first_diff(found)) is None else say(first, other)


REPORTS = {
    Diff: Report(
        diff_view, _figures, _ranking, lambda found: found.after, watch="hloexec.tools.diffing.recording.watching.watch"
    ),
    FolderDiff: Report(folder_view, _of_first(_figures), _of_first(_ranking), _module),
    ShardedDiff: Report(sharded_view, module=lambda result: result.diff.after),
}
