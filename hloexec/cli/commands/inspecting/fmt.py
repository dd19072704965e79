"""`hloexec fmt`: print a module as canonical text."""

from __future__ import annotations

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, output_option, strict_option, write_text


@click.command("fmt", epilog=examples("hloexec fmt module.hlo --no-metadata"))
@file_argument
@output_option("Write to this file instead of standard output.")
@click.option("--no-metadata", is_flag=True, help="Omit metadata and the tables that it refers to.")
@click.option("--no-layouts", is_flag=True, help="Omit layouts.")
@click.option("--no-backend-config", is_flag=True, help="Omit backend configs.")
@strict_option
def command(
    file: str, output: str | None, no_metadata: bool, no_layouts: bool, no_backend_config: bool, strict: bool
) -> None:
    """Print a module as canonical HLO text.

    The output parses to the same module, except for what the options omit.
    """
    import hloexec

    module = hloexec.load(file, strict=strict)
    text = hloexec.format(
        module, metadata=not no_metadata, layouts=not no_layouts, backend_config=not no_backend_config
    )
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
