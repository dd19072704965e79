"""`hloexec ops`: the opcodes there are."""

from __future__ import annotations

import click

from hloexec.cli.options import echo_json, json_option

__all__ = ["command"]


@click.command("ops")
@click.option("--unsupported", is_flag=True, help="Only those that do not run yet.")
@json_option
def command(unsupported: bool, as_json: bool) -> None:
    """List the opcodes that hloexec knows, and which of them run."""
    import hloexec.ops  # noqa: F401 - fills the registry
    from hloexec.ops.registry import OPCODES

    opcodes = [OPCODES[name] for name in sorted(OPCODES) if not (unsupported and OPCODES[name].is_supported)]
    if as_json:
        from hloexec.report.records import opcode_records

        echo_json(opcode_records(opcodes))
        return
    from hloexec.report.tables import opcode_view, show

    show(opcode_view(opcodes))
