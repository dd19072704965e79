"""`hloexec graph`: the data flow of a module, or of what is around one instruction, to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, json_option
from hloexec.cli.reports import show_report
from hloexec.cli.run_options import Given, run_options

if TYPE_CHECKING:
    from hloexec.tools.graphing import Colours, Graph


@click.command(
    "graph",
    epilog=examples(
        "hloexec graph module.hlo -o module.svg",
        "hloexec graph module.hlo --around dot_general.4 \\\n  --distance 4 --colour error -o dot.svg",
        "hloexec graph module.hlo --colour bytes -o m.json",
    ),
)
@file_argument
@click.option("--computation", metavar="NAME", help="Draw this computation instead of the entry.")
@click.option(
    "--around",
    metavar="NAME",
    help="Draw only what this instruction is computed from, and what is computed from it. It is a name, or a path as "
    "other commands print it.",
)
@click.option("--distance", type=click.IntRange(0), metavar="N", help="How many steps from --around.  [default: 2]")
@click.option(
    "--colour",
    "--color",
    "colour",
    type=click.Choice(("error", "time", "bytes")),
    help="Colour by the error that `hloexec shadow` finds, by the time in a run, or by the bytes of the values.",
)
@click.option(
    "--values",
    metavar="FILE",
    help="Colour by what `hloexec shadow`, `diff`, `nan` or `memory` printed with --json, or by a JSON object that has "
    "a number for each of some instructions.",
)
@click.option(
    "--closed", "is_closed", is_flag=True, help="Draw calls, fusions and loops without the computations that they call."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write FILE.svg (an image, laid out by Graphviz), FILE.dot, or FILE.json (for Model Explorer, with "
    "the colours in FILE.node-data.json).  [default: print DOT]",
)
@run_options
@json_option
def command(
    file: str,
    distance: int | None,
    colour: str | None,
    values: str | None,
    output: str | None,
    as_json: bool,
    given: Given,
    **settings: Any,
) -> None:
    """Draw the data flow of a module, or of what is around one instruction.

    Shows each instruction with its opcode and shape, and draws fusions, calls, loops and conditionals around what they
    compute. Inputs and options of a run are for --colour error and --colour time, which run the module; else nothing
    runs.
    """
    if distance is not None and settings["around"] is None:
        raise click.UsageError("--distance is about --around; give --around, too")
    if colour is not None and values is not None:
        raise click.UsageError("give --colour or --values, not both")
    if given.words() and colour not in ("error", "time"):
        raise click.UsageError(f"{given.words()[0]} is about a run, and only --colour error and --colour time run")
    import attrs

    import hloexec
    from hloexec.report.inspecting.graphs import Files, graph_view
    from hloexec.report.json.printed import File
    from hloexec.tools.graphing.files import require_savable

    module = hloexec.load(file)
    drawn = hloexec.graph(module, distance=2 if distance is None else distance, **settings)
    if output is not None:
        require_savable(drawn, output)
    colours = _colours(file, drawn, colour, values, given)
    drawn = attrs.evolve(drawn, colours=colours)
    files = () if output is None else drawn.save(output)
    show_report(
        "graph",
        as_json,
        lambda: [File(file), Files(tuple(files), None if files else drawn.dot()), drawn],
        lambda: graph_view(drawn, files) if files else drawn.dot(),
    )


def _colours(file: str, drawn: Graph, colour: str | None, values: str | None, given: Given) -> Colours | None:
    """What the graph is coloured by, as the options say."""
    from hloexec.tools import graphing

    if values is not None:
        return graphing.read_colours(values, drawn.module)
    if colour is None:
        return None
    if colour == "bytes":
        return graphing.byte_colours(drawn.module)
    from hloexec.cli.inputs.loading import prepared
    from hloexec.cli.reports import ProgressBar

    run = prepared(file, given)
    with ProgressBar() as progress:
        if colour == "time":
            return graphing.time_colours(run.module, run.inputs, observers=[progress], **run.options)
        from hloexec.tools.shadowing import shadow

        return graphing.error_colours(shadow(run.module, run.inputs, observers=[progress], **run.options))
