"""`--html`: the report of a command as a page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from hloexec.cli.inputs.loading import Prepared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloexec.ir import Module

__all__ = ["page_rows", "write_command_page", "write_run_page"]

_Facts = tuple[tuple[str, str], ...]
_MOST_ROWS = 200


def page_rows() -> int:
    """How many rows the tables of a page have at most; it has more room than a terminal."""
    return _MOST_ROWS


def write_run_page(
    path: str,
    result: object,
    run: Prepared,
    view: Callable[[int], RenderableType],
    facts: _Facts = (),
) -> None:
    """Write the page of what ran a module, with the values of its instructions; `view` takes a number of rows."""
    from hloexec.report.html import Subject, write_page

    policies = run.options["numerics"]
    names = [policy.name for policy in (policies if isinstance(policies, tuple) else (policies,))]
    facts = (
        *(facts or (("file", run.arguments[0]),)),
        ("devices", str(run.devices)),
        ("policy", " before, ".join(dict.fromkeys(names)) + (" after" if len({*names}) > 1 else "")),
        ("seed", str(run.options["seed"])),
    )
    subject = Subject(result, view(_MOST_ROWS), run.module, run.inputs, run.options, _command_line(), facts)
    write_page(path, subject)


def write_command_page(
    path: str, result: object, view: RenderableType, module: Module | None, facts: _Facts = ()
) -> None:
    """Write the page of a command that runs nothing."""
    from hloexec.report.html import Subject, write_page

    write_page(path, Subject(result, view, module, command=_command_line(), facts=facts))


def _command_line() -> str:
    """What was typed."""
    return shlex.join(["hloexec", *sys.argv[1:]])
