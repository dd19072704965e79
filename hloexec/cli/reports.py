"""What a command has found: on the terminal, or as a record under `--json`; and as a page, with `--html`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import click

from hloexec.cli.inputs.loading import Prepared
from hloexec.cli.options import echo_json
from hloexec.cli.problems import Warnings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloexec.analysis.numerics.comparison import Verdict
    from hloexec.core.ir import Module
    from hloexec.core.values import Array
    from hloexec.engine.options import Options
    from hloexec.ops.policies.policy import NumericsPolicy

_Facts = tuple[tuple[str, str], ...]
_MOST_ROWS = 200
"""Of a table on a page, which has more room than a terminal."""


def show_report(
    name: str,
    as_json: bool,
    results: Callable[[], Sequence[object]],
    view: Callable[[], RenderableType],
    blamed: Module | None = None,
) -> None:
    """Print what a command has found: the record of this name under --json, of these results, and what people look at
    otherwise, where a text is printed as it is. `blamed` is the module of which it names an instruction, if it does."""
    if as_json:
        echo_json(name, *results())
    elif isinstance(shown := view(), str):
        click.echo(shown, nl=False)
    else:
        from hloexec.report.layout import show

        show(shown)
        from hloexec.language.origins import advice_on_source_lines

        if blamed is not None and (advice := advice_on_source_lines(blamed)) is not None:
            click.echo(f"\n{advice}")


def exit_code(verdict: Verdict) -> int:
    """0 where two results agree, 1 where they differ, 3 where nothing can be said of what differs."""
    return 0 if verdict.agrees else 3 if verdict.value == "not decided" else 1


def write_run_page(
    path: str,
    result: object,
    run: Prepared,
    view: Callable[[int], RenderableType],
    facts: _Facts = (),
    policies: Sequence[NumericsPolicy] = (),
) -> None:
    """Write the page of what ran a module, or two under these policies, with the values of its instructions; `view`
    takes a number of rows."""
    from hloexec.report.html import Subject, write_page

    options = [attrs.evolve(run.options, numerics=policy) for policy in policies] or [run.options]
    facts = (*facts, *_facts(run.arguments[0], run.devices, options)[1 if facts else 0 :])
    subject = Subject(result, view(_MOST_ROWS), run.module, run.inputs, options, _command_line(), facts)
    write_page(path, subject)


def write_command_page(
    path: str,
    result: object,
    module: Module | None,
    view: Callable[[int], RenderableType],
    facts: _Facts,
    pairs: Mapping[str, tuple[Array, Array]] | None = None,
) -> None:
    """Write the page of a command that runs nothing; `pairs` are the arrays that were compared."""
    from hloexec.report.html import Subject, write_page

    subject = Subject(result, view(_MOST_ROWS), module, command=_command_line(), facts=facts, pairs=pairs or {})
    write_page(path, subject)


def _facts(file: str, devices: int, options: Sequence[Options]) -> _Facts:
    names = [given.numerics.name for given in options]
    told = names[0] if len({*names}) == 1 else f"{names[0]} before, {names[1]} after"
    return (("file", file), ("devices", str(devices)), ("policy", told), ("seed", str(options[0].seed)))


def _command_line() -> str:
    """What was typed."""
    said: Warnings = click.get_current_context().obj
    return shlex.join(["hloexec", *said.words])
