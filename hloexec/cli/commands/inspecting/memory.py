"""`hloexec memory`: memory usage of a module, and its comparison with XLA's buffer assignment."""

from __future__ import annotations

from functools import partial

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_command_page
from hloexec.cli.run_options import run_option


@click.command(
    "memory",
    epilog=examples(
        "hloexec memory module.hlo --top 0", "hloexec memory step.hlo --ranks 2 \\\n  --network 100Gbps,2us"
    ),
)
@file_argument
@click.option(
    "--assignment",
    "assignments",
    type=click.Path(allow_dash=True),
    multiple=True,
    metavar="FILE",
    help="XLA's buffer assignment for the module. May be repeated if XLA wrote several files.",
)
@click.option(
    "--ranks",
    type=int,
    metavar="N",
    help="Also show what each of N ranks would hold and send that run the module's devices together.",
)
@click.option(
    "--network",
    metavar="BANDWIDTH[,LATENCY]",
    help="How fast a rank sends, such as 100Gbps,2us or 12.5GB/s: shows the least time that messages take.",
)
@run_option("replicas")
@run_option("partitions")
@top_option(10)
@html_option
@json_option
def command(
    file: str,
    assignments: tuple[str, ...],
    ranks: int | None,
    network: str | None,
    replicas: int | None,
    partitions: int | None,
    top: int,
    html: str | None,
    as_json: bool,
) -> int:
    """Show the live ranges and sizes of a module's values, and the peak memory.

    With --assignment, compares live ranges, sizes, allocations and the peak with XLA's buffer assignment, which XLA
    writes with --xla_dump_to to …-buffer-assignment.txt, …-live-range.txt and similar files. Exits with 1 if the two
    differ.

    With --ranks, says what ranks of a cluster would hold and send, each of which runs a block of neighbouring devices.
    Nothing is run.
    """
    import hloexec
    from hloexec.analysis.buffers.usage import run_estimate
    from hloexec.report.inspecting.memory import Memory, memory_view
    from hloexec.report.json.printed import File

    if file == "-" and "-" in assignments:
        raise click.UsageError("the module and the assignment cannot both come from standard input")
    if ranks is None:
        for name, value in (("--network", network), ("--replicas", replicas), ("--partitions", partitions)):
            if value is not None:
                raise click.UsageError(f"{name} is for --ranks, which is not given")
    module = hloexec.load(file)
    distributed = None
    if ranks is not None:
        distributed = hloexec.distributed_usage(module, ranks, network, replicas=replicas, partitions=partitions)
    usage = hloexec.memory_usage(module)
    comparison = None
    if assignments:
        comparison = hloexec.compare_memory(usage, hloexec.load_buffer_assignment(*assignments))
    estimate = run_estimate(module)
    view = partial(memory_view, usage, comparison, estimate, distributed)
    record = Memory(estimate, comparison, distributed)
    show_report("memory", as_json, lambda: [File(file), usage, record], lambda: view(top))
    if html is not None:
        facts = (("file", file), *(("assignment", assignment) for assignment in assignments))
        write_command_page(html, usage if comparison is None else comparison, module, view, facts)
    return 0 if comparison is None or comparison.agrees else 1
