"""`hloexec diff` on folders that XLA dumped: every module, every pass."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import click

from hloexec.cli.inputs.loading import stage_inputs_apart, values_per_device
from hloexec.cli.problems import advice_for, commands_at_hand
from hloexec.cli.reports import show_report, write_command_page

if TYPE_CHECKING:
    from hloexec.cli.commands.judging.diff import DiffOptions
    from hloexec.core.ir import Module
    from hloexec.core.values import Value
    from hloexec.tools.diffing.folders import ModuleDiff


def diff_dumps(folder: str, other: str | None, select: Sequence[str], chosen: DiffOptions) -> int:
    """Compare the modules of one or two dump folders, show the result, and return the exit code."""
    from hloexec.cli.reports import ProgressBar
    from hloexec.engine.devices.topology import topology_of
    from hloexec.report.json.printed import Sides
    from hloexec.report.judging.folder_diffs import folder_view
    from hloexec.tools.diffing.folders import diff_folders

    run_options, policies = chosen.given, chosen.policies
    if other is None and policies[0] != policies[1]:
        raise click.UsageError("all stages of one folder run under one policy; give --numerics alone")

    def inputs(module: Module) -> list[list[Value]]:
        topology = topology_of(module, run_options.options.replicas, run_options.options.partitions)
        return values_per_device(module, topology, run_options)

    options = attrs.evolve(run_options.options, numerics="reference")
    is_apart = any(chosen.workers[name] is not None for name in ("executor", "jobs"))
    with ProgressBar() as progress:
        result = diff_folders(
            folder,
            other,
            stage_inputs_apart(run_options) if is_apart else inputs,
            select=select,
            **chosen.workers,
            top=chosen.top,
            runs=chosen.runs,
            budget=chosen.budget,
            observers=[progress],
            numerics=policies,
            **options,
        )
    result = attrs.evolve(result, modules=tuple(map(_in_options, result.modules)))
    words = run_options.words()

    def command(name: str, *arguments: str) -> str:
        return shlex.join(["hloexec", name, *arguments, *words])

    view = partial(folder_view, result, command=command)
    sides = Sides(folder, other, run_options.options.seed, *(policy.name for policy in policies))
    show_report("diff-folders", chosen.as_json, lambda: [sides, result], lambda: view(chosen.top))
    if chosen.html is not None:
        folders = folder if other is None else f"{folder}, {other}"
        write_command_page(
            chosen.html, result, None, view, (("folders", folders), ("seed", str(run_options.options.seed)))
        )
    if result.left:
        return 130
    return {"differ": 1, "not compared": 2, "not decided": 3}.get(result.outcome, 0)


def _in_options(module: ModuleDiff) -> ModuleDiff:
    """What keeps stages from running, as options say it."""
    steps = [attrs.evolve(step, reason=advice_for(step.reason, commands_at_hand())) for step in module.steps]
    return attrs.evolve(module, steps=tuple(steps))
