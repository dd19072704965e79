"""`hloexec extract`: extract an instruction and everything it depends on as a separate module."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import ByteCount, file_argument, json_option
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options


@click.command(
    "extract",
    epilog=examples(
        "hloexec extract module.hlo -o slice \\\n  --instruction exp.1",
        "hloexec extract module.hlo -o values --outputs all",
    ),
)
@file_argument
@click.option("--instruction", metavar="NAME", help="The instruction, or the path of one run of it.")
@click.option(
    "--outputs",
    metavar="NAMES|fusions|all",
    help="Instead of a slice, write the whole module with the values of these instructions (NAME,NAME,…) as further "
    "outputs, and a script that fetches them from XLA on any device.",
)
@click.option(
    "--max-bytes",
    type=ByteCount(),
    help="Of --outputs, leave out values beyond so many bytes in all, such as 100MB.  [default: 1GiB]",
)
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
    outputs: str | None,
    max_bytes: int | None,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> int:
    """Extract the part of a module that computes one instruction, with its input values, to DIR.

    DIR/module.hlo computes the instruction from the parameters of its own computation (the entry, a fusion, a loop
    body). DIR/inputs.npz has the values of these parameters in the run, DIR/expected.npz the result. The new module is
    run once: exits with 0 if it gives the same bits, with 1 if it does not.

    With --outputs, DIR/module.hlo is the whole module, and gives chosen values, too. Those of loops are stacked, one
    iteration after the other. `python DIR/run.py` runs it by XLA, with jaxlib alone, and writes the values to
    DIR/values.npz, the module's own results to DIR/result.npz; DIR/expected.npz has the values that hloexec computes.
    """
    if (settings["instruction"] is None) == (outputs is None):
        raise click.UsageError(
            "Missing option '--instruction' or '--outputs'."
            if outputs is None
            else "--instruction and --outputs are given; leave out one of them"
        )
    if outputs is None and max_bytes is not None:
        raise click.UsageError("--max-bytes is about --outputs; give --outputs, too")
    if outputs is not None:
        of_slices = ("in_computation", "iteration", "depth", "cuts", "device")
        if any(settings[name] not in (None, ()) for name in of_slices):
            raise click.UsageError("--in, --iteration, --depth, --cut and --device are about --instruction")
        return _write_outputs(file, folder, outputs, max_bytes, as_json, given)
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


def _write_outputs(file: str, folder: str, outputs: str, max_bytes: int | None, as_json: bool, line: Given) -> int:
    from hloexec.core.files import require_new_folder
    from hloexec.report.json.printed import Folder
    from hloexec.report.reducing.extractions import outputs_view
    from hloexec.tools.extraction.outputs import add_outputs

    require_new_folder(folder)
    run = prepared(file, line)
    names: str | list[str] = outputs if outputs in ("all", "fusions") else outputs.split(",")
    limits: dict[str, Any] = {} if max_bytes is None else {"max_bytes": max_bytes}
    result = add_outputs(run.module, names, **limits)
    rerun = result.save(folder, run.inputs, **run.options)
    script = shlex.join(["python", os.path.join(folder, "run.py")])
    values = shlex.join(
        [*"hloexec compare".split(), *(os.path.join(folder, f"{name}.npz") for name in ("values", "expected"))]
    )
    show_report(
        "extract-outputs",
        as_json,
        lambda: [run.facts(), Folder(folder), result, rerun],
        lambda: outputs_view(result, folder, rerun, (script, values)),
    )
    return 0 if rerun.has_same_bits else 1
