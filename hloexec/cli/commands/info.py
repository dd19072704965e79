"""`hloexec info`: what a module is made of."""

from __future__ import annotations

import click

from hloexec.cli.options import echo_json, file_argument, json_option, strict_option

__all__ = ["command"]


@click.command("info")
@file_argument
@strict_option
@json_option
def command(file: str, strict: bool, as_json: bool) -> None:
    """Show what a module is made of.

    Computations, parameters, opcodes, library calls, element types, devices, the cost of its contractions, and what of
    it hloexec does not run yet. Nothing is run.
    """
    import hloexec
    from hloexec.summary import summarize

    module = hloexec.load(file, strict=strict)
    if strict:
        hloexec.verify(module, strict=True)
    summary = summarize(module)
    if as_json:
        from hloexec.report.records import summary_record

        echo_json(summary_record(summary))
        return
    from hloexec.report.tables import show, summary_view

    show(summary_view(summary))
