"""Reports of `hloexec minify`: what is left, what of it shows the failure, and what was tried."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import plural
from hloexec.language.text import format as format_module
from hloexec.report.layout import Parts, next_steps
from hloexec.tools.minifying import Minified

_MOST_LINES = 40


def minified_view(minified: Minified, folder: str) -> RenderableType:
    """The verdict, the module, and the command that shows the failure."""
    headline = Text.assemble(
        (minified.module.name, "bold"),
        f"  {minified.instruction_count} of {plural(minified.instruction_count_before, 'instruction')} left, "
        f"in {folder}; ",
    )
    if minified.is_confirmed:
        headline.append("it still shows the failure", "bold green")
    else:
        headline.append("the failure does not show when it is read from its text", "bold red")
    parts: Parts = [headline, f"\n  {minified.failure}"]
    parts += [Text(f"  {note}", style="yellow") for note in minified.notes]
    lines = format_module(minified.module).splitlines()
    rest = ["…"] if len(lines) > _MOST_LINES else []
    parts += ["", Text("\n".join(lines[:_MOST_LINES] + rest), style="cyan")]
    tried = f"\n{plural(minified.trial_count, 'module')} tried, {plural(minified.step_count, 'step')}"
    if minified.outcomes:
        tried += "; checks: " + ", ".join(f"{count} {name}" for name, count in sorted(minified.outcomes.items()))
    parts.append(tried + ("" if minified.is_complete else "; the search was ended before it was complete"))
    parts.append(next_steps(f"cd {shlex.quote(folder)} && {shlex.join(minified.command_in(folder))}"))
    return Group(*parts)
