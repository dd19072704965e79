"""`hloexec extract`: extract an instruction and everything it depends on as a separate module."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import file_argument, json_option
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options


@click.command("extract", epilog=examples("hloexec extract module.hlo -o slice \\\n  --instruction exp.1"))
@file_argument
@click.option("--instruction", metavar="NAME", required=True, help="The instruction, or the path of one run of it.")
@click.option(
    "--in",
    "in_computation",
    metavar="COMPUTATION",
    help="The computation of the instruction, if several have one of that name.",
)
@click.option("--iteration", type=click.IntRange(0), help="The iteration of the innermost loop.  [default: the first]")
@click.option(
    "--depth", type=click.IntRange(1), help="Include at most this many levels of operands; 1 is the instruction alone."
)
@click.option(
    "--cut",
    "cuts",
    metavar="NAME",
    multiple=True,
    help="Make this instruction an input, and do not go beyond it. May be repeated.",
)
@click.option(
    "--device", type=click.IntRange(0), help="Use this device's values; the results of collectives become inputs."
)
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="The folder to write; it must be new.")
@run_options
@json_option
def command(
    file: str,
    folder: str,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> int:
    """Extract the part of a module that computes one instruction, with its input values, to DIR.

    DIR/module.hlo computes the instruction from the parameters of its own computation (the entry, a fusion, a loop
    body). DIR/inputs.npz has the values of these parameters in the run, DIR/expected.npz the result. The new module is
    run once: exits with 0 if it gives the same bits, with 1 if it does not.
    """
    from hloexec.cli.reports import ProgressBar
    from hloexec.core.files import require_new_folder
    from hloexec.report.reducing.extractions import Extracted, extraction_view
    from hloexec.tools.extraction import extract

    require_new_folder(folder)
    run = prepared(file, given)
    with ProgressBar() as progress:
        extraction = extract(run.module, run.inputs, observers=[progress], **settings, **run.options)
    extraction.save(folder)
    rerun = extraction.check()
    names = [name for name, _ in extraction.files() if name.startswith("inputs")]
    words = ["hloexec", "run", os.path.join(folder, "module.hlo")]
    words += [word for name in names for word in ("--inputs", os.path.join(folder, name))]
    if given.options.numerics.name != "reference":
        words += ["--numerics", given.options.numerics.name]
    show_report(
        "extract",
        as_json,
        lambda: [run.facts(), Extracted.of(extraction, folder), extraction, rerun],
        lambda: extraction_view(extraction, folder, rerun, shlex.join(words)),
    )
    return 0 if rerun.has_same_bits else 1
