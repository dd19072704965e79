"""Reports of golden checks, as text and as records."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.structs import frozen
from hloexec.core.wording import plural
from hloexec.report.judging.comparison import comparison_view
from hloexec.report.judging.diffs import diff_line
from hloexec.report.layout import Parts, rest_text
from hloexec.report.registry import Figures, Linker, Report
from hloexec.report.units import seconds_text
from hloexec.tools.diffing import Diff
from hloexec.tools.golden.checking import GoldenCheck, Outcome
from hloexec.tools.golden.recording import INPUTS, MODULE, OURS, Golden

_STYLES = {
    Outcome.PASSED: "green",
    Outcome.NOT_DECIDED: "bold yellow",
    Outcome.FAILED: "bold red",
    Outcome.BROKEN: "bold yellow",
}


def checks_view(checks: Sequence[GoldenCheck], count: int, top: int, advice: Sequence[str] = ()) -> RenderableType:
    """The overall verdict, a line per golden, and details of those that failed; `count` are to be checked.

    `advice` are the `change_lines` of a golden whose module was replaced.
    """
    parts: Parts = [_headline(checks, count), ""]
    width = max(len(check.folder.name) for check in checks)
    parts += [_line(check, width) for check in checks]
    failed = [check for check in checks if check.outcome in (Outcome.FAILED, Outcome.NOT_DECIDED)]
    for check in failed[: top or None]:
        if check.comparison is not None:
            devices = 1 if check.golden is None else check.golden.devices
            view = comparison_view(check.comparison, top, devices=devices)
            parts += ["", Text(str(check.folder), style="bold"), view]
    if 0 < top < len(failed):
        parts.append(rest_text(len(failed) - top))
    if len(checks) < count:
        parts.append(Text(f"\ninterrupted after {len(checks)} of {plural(count, 'golden')}", "yellow"))
    if advice:
        parts.append(Text("\n" + "\n".join(["where to look:", *(f"  {line}" for line in advice)]), style="dim"))
    elif failed and failed[0].golden is not None and failed[0].golden.expected_source == OURS:
        command = shlex.join(["hloexec", "golden", "check", "--update", str(failed[0].folder)])
        parts.append(Text(f"\nif the new result is meant:\n  {command}", style="dim"))
    return Group(*parts)


def _headline(checks: Sequence[GoldenCheck], count: int) -> Text:
    counts = {outcome: sum(check.outcome is outcome for check in checks) for outcome in Outcome}
    if counts[Outcome.PASSED] == len(checks):
        checked = f"{len(checks)} of " if len(checks) < count else ""
        return Text.assemble(("all agree", "bold green"), (f"  {checked}{plural(count, 'golden')}", "dim"))
    said = [f"{counts[Outcome.FAILED]} different"] if counts[Outcome.FAILED] else []
    said += [f"{counts[Outcome.BROKEN]} broken"] if counts[Outcome.BROKEN] else []
    said += [f"{counts[Outcome.NOT_DECIDED]} not decided"] if counts[Outcome.NOT_DECIDED] else []
    return Text.assemble((", ".join(said), "bold red"), (f"  of {plural(len(checks), 'golden')}", "dim"))


def _line(check: GoldenCheck, width: int) -> Text:
    took = f"  {seconds_text(check.seconds)}" if check.seconds else ""
    policy = f" ({check.golden.numerics})" if check.golden is not None else ""
    label = (f"{check.outcome.value:<6} ", _STYLES[check.outcome])
    message = check.message.replace("\n", "\n" + " " * (width + 9))
    return Text.assemble(label, f"{check.folder.name:<{width}}  ", message, (policy + took, "dim"))


def change_lines(golden: Golden, module_file: str, result: Diff | None) -> list[str]:
    """Where to look if another module fails a golden: the instruction that a diff names, and the command for it."""
    words = ["hloexec", "diff", str(golden.folder / MODULE), module_file, "--inputs", str(golden.folder / INPUTS)]
    words += ["--numerics", golden.numerics] if golden.numerics != "reference" else []
    lines = [] if result is None else [diff_line(result).plain]
    return [*lines, shlex.join(words)] if golden.inputs_per_device == 1 else lines


def _figures(check: GoldenCheck, _: Linker) -> Figures:
    from hloexec.report.html.figures import error_maps

    return error_maps(() if check.comparison is None else check.comparison.leaves)


@frozen
class Recorded:
    """A golden that was recorded."""

    file: str
    folder: str
    module: str
    module_hash: str
    """SHA-256 of the module's text."""
    seed: int
    """Of random inputs, and of the random numbers that the module draws."""
    numerics: str
    disagreement: str | None
    """How the given result differs from the module's own; None where it does not."""


@frozen
class Checks:
    """What came of goldens."""

    checks: tuple[GoldenCheck, ...]
    """What came of each golden."""
    is_complete: bool
    """Whether all were checked."""
    advice: tuple[str, ...]
    """If another module fails: what is to blame, and the command that shows it."""


REPORTS = {GoldenCheck: Report(lambda found, top, _: checks_view([found], 1, top), _figures)}
