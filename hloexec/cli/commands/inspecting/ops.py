"""`hloexec ops`: list the opcodes."""

from __future__ import annotations

import click

from hloexec.cli.help import examples
from hloexec.cli.options import echo_json, json_option

__all__ = ["command"]


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
        from hloexec.element_types import accepted_element_types

        accepted = {entry.name: accepted_element_types(entry) for entry in opcodes}
    if as_json:
        from hloexec.report.records import opcode_records

        echo_json("ops", {"opcodes": opcode_records(opcodes, accepted or {})})
        return
    from hloexec.report.layout import show
    from hloexec.report.tables import opcode_view

    if accepted is not None and opcodes:
        from hloexec.report.inspecting.opcode_types import opcode_types_view

        show(opcode_types_view(opcodes, accepted))
        return
    show(opcode_view(opcodes))
