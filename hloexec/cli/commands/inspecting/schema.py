"""`hloexec schema`: what `--json` prints, as JSON Schema."""

from __future__ import annotations

import json

import click

from hloexec.cli.help import examples
from hloexec.core.wording import quoted
from hloexec.errors import InputError


@click.command("schema", epilog=examples("hloexec schema", "hloexec schema run"))
@click.argument("record", required=False)
def command(record: str | None) -> None:
    """Print the JSON Schema of what commands print with --json.

    RECORD is the value of "schema" in what is printed, hloexec.run or run. Without it, lists the records there are.
    """
    from hloexec.report.json.schemas import json_schema, printed_records

    names = printed_records()
    if record is None:
        click.echo("\n".join(names))
        return
    name = record.removeprefix("hloexec.")
    if name not in names:
        raise InputError(f"there is no record {quoted(record)}; there are {', '.join(names)}")
    click.echo(json.dumps(json_schema(name), indent=2))
