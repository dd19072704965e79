"""`hloexec shrink`: the same module with smaller dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.options import ByteCount, KeyValue, file_argument, json_option, output_option, top_option, write_text
from hloexec.cli.reports import show_report
from hloexec.core.wording import natural_number


@click.command(
    "shrink",
    epilog=examples("hloexec shrink module.hlo -o s.hlo \\\n  --max-bytes 2G", "hloexec shrink module.hlo --report"),
)
@file_argument
@output_option("Write to this file instead of standard output.")
@click.option(
    "--max-bytes",
    type=ByteCount(),
    help="What a run on all devices may take, inputs included.  [default: 2G; without limit if --dim or --devices is "
    "given]",
)
@click.option(
    "--dim",
    "dims",
    type=KeyValue("SIZE", "SIZE"),
    multiple=True,
    help="Make this size another one, wherever it can change. May be repeated.",
)
@click.option("--keep", type=click.IntRange(1), multiple=True, metavar="SIZE", help="Do not change this size.")
@click.option(
    "--devices",
    metavar="N",
    help="Keep so many of the devices, as shorter axes of their grid; or give the sizes of all axes, as in 2x2.",
)
@click.option("--report", is_flag=True, help="Show which sizes changed, and which stayed and why.")
@top_option(20)
@json_option
def command(
    file: str,
    output: str | None,
    dims: tuple[tuple[str, str], ...],
    devices: str | None,
    report: bool,
    top: int,
    as_json: bool,
    **settings: Any,
) -> None:
    """Make a module smaller: the same instructions, loops, collectives and library calls on smaller arrays.

    Prints the smaller module, or a report if it is written to a file. The sizes are the largest with which a run fits
    into memory, and takes minutes; where none do, there are fewer devices. If nothing fits, the error says what holds
    the module up, and the smallest one is written or reported.
    """
    import hloexec
    from hloexec.cli.process import libraries_print_to_stderr
    from hloexec.report.json.printed import File, Output
    from hloexec.report.reducing.shrinkages import shrinkage_view

    module = hloexec.load(file)
    error: hloexec.ResourceError | None = None
    try:
        with libraries_print_to_stderr():
            shrinkage = hloexec.shrink(module, dims=_sizes(dims), devices=_devices(devices), **settings)
    except hloexec.ResourceError as too_large:
        if too_large.smallest is None or not (output or report or as_json):
            raise
        error, shrinkage = too_large, too_large.smallest
    text = hloexec.format(shrinkage.module)
    if output is not None:
        write_text(output, text)
    is_report = report or output is not None
    show_report(
        "shrink",
        as_json,
        lambda: [File(file), Output(output), shrinkage],
        lambda: shrinkage_view(shrinkage, output, top) if is_report else text,
    )
    if error is not None and as_json:  # the record is printed
        click.echo(f"error: {error}", err=True)
        click.get_current_context().exit(1)
    if error is not None:
        raise error


def _sizes(dims: Sequence[tuple[str, str]]) -> dict[int, int]:
    """The pairs of --dim."""
    new_sizes: dict[int, int] = {}
    for before, after in dims:
        size, new_size = natural_number(before), natural_number(after)
        if size is None or new_size is None:
            raise click.BadParameter(f"'{before}={after}' is not of the form 8192=64", param_hint="'--dim'")
        if new_sizes.setdefault(size, new_size) != new_size:
            raise click.BadParameter(f"{size} becomes {new_sizes[size]} and {new_size}", param_hint="'--dim'")
    return new_sizes


def _devices(text: str | None) -> int | tuple[int, ...] | None:
    """A number of devices, or sizes of axes."""
    if text is None:
        return None
    sizes = []
    for part in text.split("x"):
        size = natural_number(part)
        if size is None:
            raise click.BadParameter(f"'{text}' is not a number, or of the form 2x2", param_hint="'--devices'")
        sizes.append(size)
    return sizes[0] if len(sizes) == 1 else tuple(sizes)
