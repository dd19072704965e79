"""`hloexec info`: describe a file, usually a module."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, json_option, strict_option
from hloexec.cli.reports import show_report

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("info", epilog=examples("hloexec info module.hlo", "hloexec info a.npz"))
@file_argument
@click.option(
    "--computations", is_flag=True, help="List the computations: what calls each, how often it runs, and its result."
)
@strict_option
@json_option
def command(file: str, computations: bool, strict: bool, as_json: bool) -> None:
    """Describe a module without running it.

    Shows computations, parameters, opcodes, library calls, element types, devices, the cost of contractions, and what
    hloexec cannot run.

    For a .npz or .npy file it shows the arrays, for a buffer assignment the allocations.
    """
    from hloexec.language.interop.content import Format

    form = _format(file)
    if form is Format.ARRAYS:
        _show_arrays(file, as_json)
    elif form is Format.BUFFER_ASSIGNMENT:
        _show_assignment(file, as_json)
    else:
        _show_module(file, computations, strict, as_json)


def _format(file: str) -> object:
    """The kind of a file, by its first bytes; None if they do not tell."""
    from hloexec.core.files import opened
    from hloexec.language.interop.content import Format, detect
    from hloexec.language.literals.xla import holds_literal

    try:
        with opened(file) as stream:
            form = detect(stream.read(4096))
        return Format.ARRAYS if holds_literal(file) else form
    except (OSError, ValueError):
        return None


def _show_module(file: str, computations: bool, strict: bool, as_json: bool) -> None:
    import hloexec
    from hloexec.report.json.printed import File
    from hloexec.report.tables import Computations
    from hloexec.tools.summary import summarize, summarize_computations

    module = hloexec.load(file, strict=strict)
    if strict:
        hloexec.verify(module, strict=True)
    summary = summarize(module)
    parts = tuple(summarize_computations(module)) if computations else None

    def view() -> RenderableType:
        from hloexec.report.tables import computations_view, summary_view

        return summary_view(summary) if parts is None else computations_view(summary, parts)

    show_report("info", as_json, lambda: [File(file), summary, Computations(parts)], view)


def _show_arrays(file: str, as_json: bool) -> None:
    from hloexec.analysis.numerics.leaves import statistics
    from hloexec.language.literals.files import entries
    from hloexec.report.json.printed import Arrays, leaves_of

    rows = [(entry.stem or "value", leaf) for entry in entries(file) for leaf in statistics(entry.read(None))]

    def view() -> RenderableType:
        from hloexec.report.tables import values_table

        return values_table("arrays", rows)

    show_report("info-arrays", as_json, lambda: [Arrays(file, leaves_of(rows))], view)


def _show_assignment(file: str, as_json: bool) -> None:
    import hloexec
    from hloexec.report.inspecting.memory import Assignment

    assignment = hloexec.load_buffer_assignment(file)
    counts = (None if entries is None else len(entries) for entries in (assignment.allocations, assignment.used_values))
    allocations, values = counts
    whole = Assignment(file, allocations, values, assignment.allocated_bytes)

    def view() -> RenderableType:
        from rich.console import Group

        from hloexec.report.inspecting.memory import assignment_line
        from hloexec.report.layout import next_steps

        command = shlex.join(["hloexec", "memory", "MODULE", "--assignment", file])
        return Group(assignment_line(assignment), next_steps(command))

    show_report("info-assignment", as_json, lambda: [whole], view)
