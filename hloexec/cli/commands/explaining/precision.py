"""`hloexec precision`: which instructions may compute in a narrower type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared, values_per_device
from hloexec.cli.options import (
    KeyValue,
    file_argument,
    json_option,
    output_option,
    printed_if_unwritable,
    top_option,
    write_text,
)
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options
from hloexec.core.wording import quoted

if TYPE_CHECKING:
    from hloexec.cli.inputs.loading import Prepared
    from hloexec.core.values import Value


@click.command(
    "precision",
    epilog=examples(
        "hloexec precision module.hlo \\\n  --tolerance 0.1 -o mixed.hlo",
        "hloexec precision module.hlo \\\n  --tolerance 0.1 --type f16",
    ),
)
@file_argument
@click.option("--tolerance", type=float, required=True, metavar="F", help="The relative error that outputs may have.")
@click.option(
    "--output-tolerance",
    "outputs",
    type=KeyValue("OUTPUT", "F"),
    multiple=True,
    help="Another tolerance for one output, by its place in the result, such as 0 or 1.2. May be repeated.",
)
@click.option(
    "--only-output", "only", multiple=True, metavar="OUTPUT", help="Compare only this output. May be repeated."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    default=("bf16",),
    show_default=True,
    metavar="TYPE",
    help="A narrower type to try: bf16, f16, f8e4m3fn, f8e5m2, or f32 where the module has f64. May be repeated.",
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(("contraction", "elementwise")),
    multiple=True,
    help="Narrow only instructions of this kind. May be repeated.  [default: both]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Run the module so many times, as a training step, and compare at each step what is not carried to the next.",
)
@click.option(
    "--carry",
    type=KeyValue("OUTPUT", "PARAMETER"),
    multiple=True,
    help="This output becomes this parameter of the next step. May be repeated.  [default: as the module's "
    "input_output_alias says, or equal shapes in order]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Search on so many inputs, from as many seeds.",
)
@click.option(
    "--held-back",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    help="Check the module that is found on so many other inputs.",
)
@click.option(
    "--margin",
    type=float,
    help="The share of the tolerance that the search uses; on the inputs of the last check, it is the root of that.  "
    "[default: 0.25; 1 where no inputs are held back]",
)
@click.option(
    "--max-trials", type=click.IntRange(1), default=200, show_default=True, help="How many modules to try, at most."
)
@click.option(
    "--portable", is_flag=True, help="Multiply narrow operands in f32, with the same values, as XLA:CPU needs it."
)
@output_option("Write the narrowed module to this file.")
@top_option(20)
@run_options
@json_option
def command(
    file: str,
    outputs: Sequence[tuple[str, str]],
    only: tuple[str, ...],
    kinds: tuple[str, ...],
    carry: Sequence[tuple[str, str]],
    output: str | None,
    top: int,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> None:
    """Find the instructions that may compute in a narrower type, with every output within a tolerance.

    Narrowed are elementwise instructions, and the operands of contractions, which go on to add up in f32. The search
    runs the module on several inputs: those of several seeds, or one per --inputs. A script's function that takes a
    `seed` is called with each of them.
    """
    import hloexec
    from hloexec.cli.reports import ProgressBar
    from hloexec.report.explaining.narrowing import narrowing_view
    from hloexec.report.json.printed import Output

    run = prepared(file, _with_inputs(given, given.inputs[:1] if _are_several(given) else given.inputs))
    with ProgressBar() as progress:
        narrowing = hloexec.narrow(
            run.module,
            _inputs(run, given),
            output_tolerances={name: _number(text) for name, text in outputs},
            only_outputs=only or None,
            kinds=kinds or ("contraction", "elementwise"),
            carry=dict(carry) or None,
            observers=[progress],
            **settings,
            **run.options,
        )
    if output is not None:
        text = hloexec.format(narrowing.module)
        with printed_if_unwritable(text, as_json):
            write_text(output, text)
    show_report(
        "precision",
        as_json,
        lambda: [run.facts(), Output(output), narrowing],
        lambda: narrowing_view(narrowing, output, top),
    )


def _are_several(given: Given) -> bool:
    """Whether each --inputs is for a run of its own, not for a device."""
    return len(given.inputs) > 1 and (given.options.replicas or 1) * (given.options.partitions or 1) == 1


def _with_inputs(given: Given, files: tuple[str, ...], seed: int | None = None) -> Given:
    import attrs

    options = given.options if seed is None else attrs.evolve(given.options, seed=seed)
    return attrs.evolve(given, inputs=files, options=options)


def _inputs(run: Prepared, given: Given) -> list[Any] | Callable[[int], Any]:
    """What `narrow` runs on: a list where files say it all, else a function of the seed."""
    from hloexec.engine.devices.topology import topology_of

    topology = topology_of(run.module, given.options.replicas, given.options.partitions)

    def made(seed: int, files: tuple[str, ...] = given.inputs) -> list[list[Value]]:
        return values_per_device(run.module, topology, _with_inputs(given, files, seed))

    if run.recorded_result is not None:
        return [run.inputs]
    if _are_several(given):
        return [made(given.options.seed + number, (path,)) for number, path in enumerate(given.inputs)]
    if _same(run.inputs, made(given.options.seed + 1)):
        return [run.inputs]
    return made


def _same(ours: Sequence[Sequence[Value]], theirs: Sequence[Sequence[Value]]) -> bool:
    """Whether inputs do not depend on the seed."""
    import numpy as np

    from hloexec.core.tree import flat

    pairs = zip((flat(tuple(row)) for row in ours), (flat(tuple(row)) for row in theirs), strict=True)
    return all(
        not isinstance(mine, np.ndarray) or mine.tobytes() == other.tobytes()
        for mine_row, other_row in pairs
        for mine, other in zip(mine_row, other_row, strict=True)
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{quoted(text)} is not a number", param_hint="'--output-tolerance'") from None
