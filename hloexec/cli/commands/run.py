"""`hloexec run`: run a module on random or given inputs, and show what comes out."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.inputs import computation_named, given_values, values_per_device
from hloexec.cli.options import KeyValue, echo_json, file_argument, json_option, strict_option
from hloexec.cli.run_options import RunOptions, run_options
from hloexec.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloexec.devices.topology import Topology
    from hloexec.exec.statistics import Statistics
    from hloexec.interop import Snapshot
    from hloexec.ir import Computation, Module
    from hloexec.numerics.comparison import Comparison
    from hloexec.numerics.statistics import LeafStatistics
    from hloexec.values import Value

__all__ = ["command"]


@click.command("run")
@file_argument
@run_options
@click.option(
    "--global-inputs",
    metavar="FILE.npz",
    help="Read whole arrays, of which each device gets its shard as the parameters' shardings say; the result is put "
    "together again.",
)
@click.option(
    "--random-inputs", is_flag=True, help="Draw random inputs even where FILE is a snapshot, which has its own."
)
@click.option("--infeed", metavar="FILE.npz", help="Read the values that infeeds take, keyed 0, 1, … in their order.")
@click.option("--outfeed", metavar="FILE.npz", help="Write the values that outfeeds hand over, keyed 0, 1, …")
@click.option(
    "--recv",
    "received",
    type=KeyValue("CHANNEL", "FILE.npz"),
    multiple=True,
    help="Read the values that recvs take from their host through a channel, keyed 0, 1, … May be repeated.",
)
@click.option(
    "--send",
    "sent",
    type=KeyValue("CHANNEL", "FILE.npz"),
    multiple=True,
    help="Write the values that sends hand to their host through a channel, keyed 0, 1, … May be repeated.",
)
@click.option("--save", metavar="FILE.npz", help="Write the result, in files that numpy.load opens.")
@click.option("--save-inputs", metavar="FILE.npz", help="Write the inputs, to be read by --inputs.")
@click.option("--computation", metavar="NAME", help="Run this computation instead of the entry.")
@click.option(
    "--custom-call",
    "custom_calls",
    type=KeyValue("TARGET", "MODULE:FUNCTION"),
    multiple=True,
    help="Implement a library call by a Python function. May be repeated.",
)
@click.option("--no-plan", is_flag=True, help="Run every instruction by itself. Results are the same; this shows it.")
@click.option("--no-verify", is_flag=True, help="Run a module even if its shapes or structure are wrong.")
@strict_option
@json_option
def command(
    file: str,
    given: RunOptions,
    global_inputs: str | None,
    random_inputs: bool,
    infeed: str | None,
    outfeed: str | None,
    received: Sequence[tuple[str, str]],
    sent: Sequence[tuple[str, str]],
    save: str | None,
    save_inputs: str | None,
    computation: str | None,
    custom_calls: Sequence[tuple[str, str]],
    no_plan: bool,
    no_verify: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Run a module, and show its inputs and its result.

    Parameters get random values that suit their use (the same ones on every machine), unless --inputs or --input give
    them, or FILE is a snapshot, which has its own. The result is shown as a table, one row per array, with a hash of
    its bytes; where a snapshot has a result, it is shown how far the two differ.

    A module for several devices runs on all of them at once. They are given the same inputs unless the options say
    otherwise; where they do not agree, rows say which devices hold what, and files hold the devices' values under the
    keys 0, 1, … in front of those of a single device.
    """
    import hloexec
    from hloexec import literals
    from hloexec.cli.devices import labelled_leaves
    from hloexec.cli.host_values import host_values
    from hloexec.loading import load_with_values

    settings = given.settings()
    for destination in (save, save_inputs, outfeed, *(path for _, path in sent)):
        if destination is not None:
            literals.require_writable(destination)
    host = host_values(infeed, outfeed, received, sent)
    for target, where in custom_calls:
        hloexec.register_custom_call(target, _function(where))
    snapshot = load_with_values(file, strict=strict)
    module = snapshot.module
    if not no_verify:
        hloexec.verify(module, strict=strict)
    chosen = computation_named(module, computation)
    options = {**settings, "computation": computation, "planner": not no_plan, "verify": not no_verify}
    topology = _topology(module, given, options)
    count = topology.count
    source = _Inputs(given, global_inputs, is_random=random_inputs or given.different_inputs or computation is not None)
    values = source.values(snapshot, chosen, topology, verify=not no_verify)
    if save_inputs is not None:
        literals.save(save_inputs, tuple(map(tuple, values)) if len(values) > 1 else tuple(values[0]))
    exchanged = host.on_devices(count)

    view = _JsonView() if as_json else _TerminalView()
    view.module(module, count)
    names = [parameter.name for parameter in chosen.parameters]
    view.inputs(labelled_leaves([tuple(arguments) for arguments in values], lambda index: _input_label(index, names)))
    results, taken, seconds = _timed(module, values, topology, given, {**exchanged, **options})
    if global_inputs is not None:
        results = [hloexec.unshard_outputs(module, results, replicas=topology.replicas, partitions=topology.partitions)]
    if source.is_recorded(snapshot) and not given.overrides and snapshot.result is not None:
        view.comparison = hloexec.compare(results[0], snapshot.result, module=module, numerics=given.numerics)
    view.result(labelled_leaves(results, lambda index: ".".join(map(str, index)) or "value"), seconds, taken, count)
    if save is not None:
        literals.save(save, tuple(results) if len(results) > 1 else results[0])
    host.save()


def _topology(module: Module, given: RunOptions, options: dict[str, Any]) -> Topology:
    """The devices; whatever keeps the module from running on them is said before gigabytes of inputs are made."""
    from hloexec.devices.topology import topology_of
    from hloexec.exec.participation import require_devices
    from hloexec.exec.running import plan_of
    from hloexec.plan.memory import require_memory

    plan = plan_of(module, memory_limit=given.memory_limit, **options)
    topology = topology_of(module, given.replicas, given.partitions)
    require_devices(plan, topology)
    require_memory(plan, given.memory_limit)
    return topology


def _timed(
    module: Module, values: list[list[Value]], topology: Topology, given: RunOptions, options: dict[str, Any]
) -> tuple[list[Value], Statistics, float]:
    """The result of each device, what the run took, and its seconds."""
    import hloexec
    from hloexec.cli.progress import ProgressBar
    from hloexec.exec.statistics import Statistics

    taken = Statistics()
    with ProgressBar() as progress:
        start = time.perf_counter()
        results = hloexec.run_devices(
            module,
            values,
            replicas=topology.replicas,
            partitions=topology.partitions,
            observers=[progress],
            seed=given.seed,
            statistics=taken,
            **given.limits(),
            **options,
        )
        return results, taken, time.perf_counter() - start


@attrs.frozen
class _Inputs:
    """Where the inputs of a run come from."""

    given: RunOptions
    global_file: str | None
    is_random: bool
    """Whether they are random even where a snapshot has its own."""

    def is_recorded(self, snapshot: Snapshot) -> bool:
        """Whether they are those of the snapshot."""
        return bool(snapshot.inputs_per_device) and not (self.is_random or self.given.inputs or self.global_file)

    def values(self, snapshot: Snapshot, chosen: Computation, topology: Topology, *, verify: bool) -> list[list[Value]]:
        """One list for all devices, or one for each."""
        import hloexec
        from hloexec.cli.snapshots import recorded_inputs

        given = self.given
        if self.global_file is not None:
            if given.inputs or given.overrides or given.different_inputs or chosen is not snapshot.module.entry:
                raise click.UsageError("--global-inputs takes the place of --inputs, --input, --different-inputs")
            whole = _whole_values(self.global_file)
            return hloexec.shard_inputs(
                snapshot.module, whole, replicas=topology.replicas, partitions=topology.partitions
            )
        if self.is_recorded(snapshot):
            return recorded_inputs(snapshot, chosen, given_values(chosen, given.overrides), topology.count)
        return values_per_device(snapshot.module, topology, given, chosen, verify=verify)


def _whole_values(path: str) -> tuple[Value, ...]:
    """The values of the parameters in a file, in their order."""
    from hloexec import literals

    values = literals.load(path)
    if not isinstance(values, tuple):
        raise InputError(f"{path!r} must hold the values of the parameters under the keys 0, 1, …")
    return values


def _function(where: str) -> Any:
    """The function that `module:name` names; modules in the working folder are found, as `python -m` does."""
    module_name, _, name = where.partition(":")
    if not name:
        raise click.UsageError(f"--custom-call expects TARGET=MODULE:FUNCTION, but {where!r} names no function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--custom-call: {where} cannot be imported: {error}") from error
    if not callable(found):
        raise click.UsageError(f"--custom-call: {where} is not a function")
    return found


def _input_label(index: Sequence[int], names: Sequence[str]) -> str:
    """The place of an input's leaf, and the name of its parameter."""
    return ".".join(map(str, index)) + f" {names[index[0]]}"


class _TerminalView:
    """Shows each part when it is known."""

    comparison: Comparison | None = None
    """Between the result and a snapshot's, where there is one."""

    def module(self, module: Module, devices: int) -> None:
        from hloexec.report.layout import show
        from hloexec.report.tables import module_line

        show(module_line(module.name, module.instruction_count, len(module.computations), devices))

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        from hloexec.report.layout import show
        from hloexec.report.tables import values_table

        show(values_table("inputs", rows))

    def result(
        self, rows: Sequence[tuple[str, LeafStatistics]], seconds: float, taken: Statistics, devices: int
    ) -> None:
        from hloexec.report.layout import show
        from hloexec.report.tables import values_table
        from hloexec.report.units import byte_text, seconds_text

        show(values_table("result", rows))
        if self.comparison is not None:
            show(f"\ncompared with the snapshot's result: {self.comparison}")
        each = f" in all, {byte_text(taken.device_peak_bytes)} on a device" if devices > 1 else ""
        show(f"\nran in {seconds_text(seconds)}, peak memory {byte_text(taken.peak_bytes)} beyond the inputs{each}")


class _JsonView:
    """Collects everything, and prints it at the end."""

    comparison: Comparison | None = None

    def __init__(self) -> None:
        self._record: dict[str, Any] = {}

    def module(self, module: Module, devices: int) -> None:
        self._record["module"] = module.name
        self._record["instructions"] = module.instruction_count
        self._record["computations"] = len(module.computations)
        self._record["devices"] = devices

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        from hloexec.report.records import leaf_records

        self._record["inputs"] = leaf_records(rows)

    def result(
        self, rows: Sequence[tuple[str, LeafStatistics]], seconds: float, taken: Statistics, devices: int
    ) -> None:
        from hloexec.report.records import leaf_records

        self._record["result"] = leaf_records(rows)
        if self.comparison is not None:
            from hloexec.report.comparison import comparison_record

            self._record["comparison"] = comparison_record(self.comparison)
        self._record["seconds"] = seconds
        self._record["peak_bytes"] = taken.peak_bytes
        if devices > 1:
            self._record["device_peak_bytes"] = taken.device_peak_bytes
        echo_json(self._record)
