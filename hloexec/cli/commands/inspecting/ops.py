"""`hloexec ops`: list the opcodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hloexec.cli.help import examples
from hloexec.cli.options import json_option
from hloexec.cli.reports import show_report

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("ops", epilog=examples("hloexec ops --types"))
@click.option("--unsupported", is_flag=True, help="List only opcodes that cannot run yet.")
@click.option("--types", is_flag=True, help="Show which element types each opcode accepts.")
@json_option
def command(unsupported: bool, types: bool, as_json: bool) -> None:
    """List the opcodes that hloexec knows, and whether it can run them."""
    import hloexec.ops  # noqa: F401 - fills the registry
    from hloexec.ops.registry import OPCODES

    opcodes = [OPCODES[name] for name in sorted(OPCODES) if not (unsupported and OPCODES[name].is_supported)]
    accepted = None
    if types:
        from hloexec.language.element_types import accepted_element_types

        accepted = {entry.name: accepted_element_types(entry) for entry in opcodes}

    def view() -> RenderableType:
        from hloexec.report.inspecting.opcode_types import opcode_types_view
        from hloexec.report.tables import opcode_view

        return opcode_types_view(opcodes, accepted) if accepted is not None and opcodes else opcode_view(opcodes)

    def results() -> list[object]:
        from hloexec.report.inspecting.opcode_types import OpcodeFacts, Opcodes

        return [Opcodes(tuple(OpcodeFacts.of(entry, (accepted or {}).get(entry.name)) for entry in opcodes))]

    show_report("ops", as_json, results, view)
