"""`hloexec run`: run a module on random or given inputs, and show the result."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import Prepared, given_values, require_normal, required_topology, values_per_device
from hloexec.cli.options import (
    ByteCount,
    KeyValue,
    against_option,
    file_argument,
    html_option,
    json_option,
    strict_option,
)
from hloexec.cli.reports import exit_code
from hloexec.cli.run_options import Given, run_options
from hloexec.core.structs import frozen
from hloexec.errors import HloError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloexec.analysis.numerics.comparison import Comparison
    from hloexec.cli.inputs.loading import HostValues
    from hloexec.cli.running import Here
    from hloexec.core.ir import Computation, Module
    from hloexec.core.values import Array, Value
    from hloexec.engine.devices.topology import Topology
    from hloexec.engine.options import Options
    from hloexec.language.interop import Snapshot
    from hloexec.tools.counterparts.answers import Counterpart

    _Division: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@click.command("run", epilog=examples("hloexec run module.hlo", "hloexec run module.hlo --seed 3"))
@file_argument
@run_options
@click.option(
    "--global-inputs",
    metavar="FILE.npz",
    help="Read whole arrays, and split them into the devices' shards according to the parameters' shardings; the "
    "result is reassembled.",
)
@click.option(
    "--before",
    metavar="FILE",
    help="With --global-inputs, the module before partitioning, which has the shardings that FILE lacks: those of the "
    "result and, since jaxlib 0.12, of the parameters.",
)
@click.option(
    "--result-sharding",
    metavar="SHARDING",
    help="With --global-inputs, the sharding of the result, as HLO has it: one for each array where it is a tuple.",
)
@click.option(
    "--random-inputs", is_flag=True, help="Generate random inputs even if FILE is a snapshot, which has its own."
)
@click.option("--infeed", metavar="FILE.npz", help="Read the values for infeeds, keyed 0, 1, … in order.")
@click.option("--outfeed", metavar="FILE.npz", help="Write the values of outfeeds, keyed 0, 1, …")
@click.option(
    "--recv",
    "received",
    type=KeyValue("CHANNEL", "FILE.npz"),
    multiple=True,
    help="Read the values that recvs receive from the host on a channel, keyed 0, 1, … May be repeated.",
)
@click.option(
    "--send",
    "sent",
    type=KeyValue("CHANNEL", "FILE.npz"),
    multiple=True,
    help="Write the values that sends send to the host on a channel, keyed 0, 1, … May be repeated.",
)
@click.option("--save", metavar="FILE.npz", help="Write the result to a file that numpy.load can read.")
@click.option("--save-inputs", metavar="FILE.npz", help="Write the inputs to a file that --inputs can read.")
@click.option(
    "--print",
    "printed",
    metavar="[NAME]",
    is_flag=False,
    flag_value="result",
    multiple=True,
    help="Print the value of an instruction the first time it runs (without a name, the result), as an HLO literal. "
    "May be repeated.",
)
@click.option("--iterations", type=click.IntRange(0), default=0, help="Run this many more times, and show the times.")
@against_option(
    "Compare the result with that of {}; exits with 1 if they differ, and with 3 if they do only where the module "
    "leaves open what they are.",
)
@click.option(
    "--shrink",
    "shrink_to",
    type=ByteCount(),
    help="Shrink the module first, so that the run takes at most so much memory (see hloexec shrink).",
)
@click.option("--computation", metavar="NAME", help="Run this computation instead of the entry.")
@click.option(
    "--no-plan", is_flag=True, help="Run every instruction separately, without optimizations. The results are the same."
)
@click.option("--no-verify", is_flag=True, help="Run the module even if its shapes or structure are invalid.")
@strict_option
@html_option
@json_option
def command(file: str, given: Given, strict: bool, html: str | None, as_json: bool, **more: Any) -> int:
    """Run a module, and show its inputs and its result.

    Parameters get random values that suit their use (the same values on every machine), unless --inputs or --input set
    them or FILE is a snapshot, which has its own. The result is shown as a table with one row per array, with a hash
    of its bytes. If a snapshot contains a result, the two are compared, with the exit codes of --against.

    A module for several devices runs on all of them at once, with the same inputs unless the options say otherwise.
    If the devices' values differ, the rows name the devices that hold each value, and in files the keys of a value
    begin with the number of its device.
    """
    from hloexec.cli.against import as_run, with_inputs_of
    from hloexec.cli.run_views import JsonView, Outcome, PageView, RunView, TerminalView
    from hloexec.core.values import label_of

    own = _Options(html=html, **more)
    other: Counterpart | None = None
    if own.against is not None:
        from hloexec.tools.counterparts.specs import counterpart_of

        own.require_results_only()
        other = counterpart_of(own.against, file=file)
        given = with_inputs_of(other, given)
    loaded = _load_inputs(file, given, own, strict=strict)
    run, module = loaded.run, loaded.run.module
    said = click.get_current_context().obj
    said.has_verdict |= run.recorded_result is not None
    if other is not None:
        other.require(as_run(module, loaded.options), is_divided=own.global_inputs is not None)
    views: list[RunView] = [JsonView() if as_json else TerminalView()]
    if html is not None:
        views.append(PageView(html))
    for view in views:
        view.begin(run)
    names = [parameter.name for parameter in loaded.computation.parameters]
    place, inputs = loaded.place, [*map(tuple, run.inputs)]
    rows = place.rows(inputs, lambda index: _input_label(index, names), are_for_all=not loaded.are_of_each)
    for view in views:
        view.inputs(rows)
    ran = place.execute(module, run.inputs, loaded.options, own.iterations, own.printed)
    results, divided, comparison = ran.results, None, None
    failure: BaseException | None = None
    try:
        if own.global_inputs is not None:
            results, divided = _reassembled(loaded, ran.results, own.result_sharding)
        if ran.is_interrupted:
            raise KeyboardInterrupt
        comparison = _comparison(loaded, ran.results, results, other, divided)
    except (HloError, KeyboardInterrupt) as error:
        failure = error
    rows = place.rows(results, label_of)
    outcome = Outcome(rows, ran, own.printed, comparison, own.against)
    for view in views:
        view.result(outcome)
    loaded.save(own.save, results)
    if failure is not None:
        raise failure
    for view in views:
        view.close()
    return 0 if comparison is None else exit_code(comparison.verdict)


def _reassembled(loaded: _Loaded, results: list[Value], sharding: str | None) -> tuple[list[Value], _Division]:
    """The whole result, and what divides others like it."""
    import hloexec
    from hloexec.engine.sharding import shards_of_result

    run = loaded.run
    sharding_options = {name: run.options[name] for name in ("replicas", "partitions")}
    sharding_options |= {"before": loaded.before, "sharding": sharding}
    whole = hloexec.unshard_outputs(run.module, results, **sharding_options)
    return [whole], partial(shards_of_result, module=run.module, outputs=results, **sharding_options)


def _comparison(
    loaded: _Loaded,
    results: Sequence[Value],
    whole: Sequence[Value],
    counterpart: Counterpart | None,
    divided: _Division | None,
) -> Comparison | None:
    """The results with what --against names, or else with those of a snapshot, which are `whole`."""
    import hloexec
    from hloexec.cli.against import compared

    run, options = loaded.run, loaded.options
    if counterpart is not None:
        return compared(counterpart, run.module, run.inputs, results, options, divided)
    if run.recorded_result is None:
        return None
    return hloexec.compare(
        whole[0], run.recorded_result, module=run.module, inputs=run.inputs, numerics=options.numerics
    )


@frozen
class _Options:
    """The options of this command alone."""

    global_inputs: str | None
    before: str | None
    result_sharding: str | None
    random_inputs: bool
    infeed: str | None
    outfeed: str | None
    received: Sequence[tuple[str, str]]
    sent: Sequence[tuple[str, str]]
    save: str | None
    save_inputs: str | None
    printed: Sequence[str]
    iterations: int
    against: str | None
    shrink_to: int | None
    computation: str | None
    no_plan: bool
    no_verify: bool
    html: str | None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for but that the module runs and its result is described or saved."""
        more = self.global_inputs, self.save_inputs, self.infeed, self.outfeed, self.received, self.sent, self.printed
        return not any(more) and self.against is None and self.html is None

    def require_results_only(self) -> None:
        """click.UsageError where the host takes part in the run, of which nothing would be compared."""
        if self.infeed or self.outfeed or self.received or self.sent:
            raise click.UsageError(
                "--against compares results only; it cannot be combined with --infeed, --outfeed, --recv or --send"
            )

    def require_destinations(self) -> None:
        """LiteralError where a file cannot be written; click.UsageError where two of them are the same."""
        from hloexec.language.literals import require_writable

        written = set()
        for path in (self.save, self.save_inputs, self.outfeed, *(path for _, path in self.sent)):
            if path is not None:
                require_writable(path)
                if os.path.realpath(path) in written:
                    raise click.UsageError(f"{path!r} is to be written twice")
                written.add(os.path.realpath(path))


@frozen(eq=False)
class _Loaded:
    """A module and its inputs, after checking that it can run."""

    run: Prepared
    computation: Computation
    options: Options
    """Those of `run`, and what the host gives and takes, which it does once."""
    host: HostValues
    before: Module | None
    """The module before partitioning."""
    place: Here
    are_of_each: bool
    """Whether there are inputs for each device, or one list for all."""

    def save(self, path: str | None, results: Sequence[Value]) -> None:
        """Write the results to a file, where it has a name, and the values that the host is sent."""
        if path is not None:
            self.place.save(path, results)
        if self.place.speaks:
            self.host.save()


def _load_inputs(file: str, given: Given, own: _Options, *, strict: bool) -> _Loaded:
    import hloexec
    from hloexec.cli.inputs.loading import host_values
    from hloexec.cli.running import memory_advice, place_of_run, require_instructions
    from hloexec.core.arguments import named_computation
    from hloexec.language.loading import load_with_values

    own.require_destinations()
    for option, value in (("--before", own.before), ("--result-sharding", own.result_sharding)):
        if value is not None and own.global_inputs is None:
            raise click.UsageError(f"{option} says how whole arrays are divided; give --global-inputs, too")
    before = None if own.before is None else hloexec.load(own.before, strict=strict)
    host = host_values(own.infeed, own.outfeed, own.received, own.sent)
    snapshot = load_with_values(file, strict=strict)
    if own.shrink_to is not None:
        snapshot = _shrunken(snapshot, own.shrink_to)
    verify = not own.no_verify
    if verify:
        hloexec.verify(snapshot.module, strict=strict)
    name = own.computation
    chosen = snapshot.module.entry if name is None else named_computation(snapshot.module, name)
    require_instructions(snapshot.module, own.printed)
    options = attrs.evolve(given.options, computation=own.computation, planner=not own.no_plan, verify=verify)
    is_random = own.random_inputs or given.different_inputs or own.computation is not None
    source = _Inputs(given, own.global_inputs, before, is_random=is_random)
    with memory_advice(file, snapshot.module, given, options):
        topology = required_topology(snapshot.module, options)
        is_plain = own.is_plain and not source.is_recorded(snapshot)
        place = place_of_run(topology.count, is_plain=is_plain, sends=bool(own.outfeed or own.sent))
        values = source.values(snapshot, chosen, topology, verify=verify, own=place.devices)
    if own.save_inputs is not None:
        place.save(own.save_inputs, [tuple(row) for row in values])
    options = options.on(topology)
    expected = snapshot.result if source.is_recorded(snapshot) and not given.overrides else None
    run = Prepared(snapshot.module, values, options, topology.count, (file, *given.words()), expected)
    options = attrs.evolve(options, **host.on_devices(topology.count))
    are_of_each = given.different_inputs or len(given.inputs) > 1
    return _Loaded(run, chosen, options, host, before, place, are_of_each)


def _shrunken(snapshot: Snapshot, max_bytes: int) -> Snapshot:
    """The snapshot with a smaller module, which its values do not fit; standard error says so."""
    from hloexec.cli.process import libraries_print_to_stderr
    from hloexec.core.wording import byte_text, counted
    from hloexec.tools.shrinking import shrink

    try:
        with libraries_print_to_stderr():
            shrinkage = shrink(snapshot.module, max_bytes=max_bytes)
    except ResourceError as error:
        raise ResourceError(str(error).replace("--dim", "hloexec shrink --dim")) from error
    if not shrinkage.changes and not shrinkage.axes:
        return snapshot
    devices = f", on {shrinkage.devices_text}" if shrinkage.axes else ""
    before, after = byte_text(shrinkage.argument_bytes_before), byte_text(shrinkage.argument_bytes)
    fitted = f", {counted(len(shrinkage.fitted), 'operand')} made to fit" if shrinkage.fitted else ""
    click.echo(
        f"shrunken: inputs take {after} instead of {before}{devices}{fitted} (hloexec shrink --report says how)",
        err=True,
    )
    return attrs.evolve(snapshot, module=shrinkage.module, inputs_per_device=(), result=None)


@frozen
class _Inputs:
    """Where the inputs of a run come from."""

    given: Given
    global_file: str | None
    before: Module | None
    is_random: bool
    """Whether they are random even if the snapshot has inputs."""

    def is_recorded(self, snapshot: Snapshot) -> bool:
        """Whether they come from the snapshot."""
        return bool(snapshot.inputs_per_device) and not (self.is_random or self.given.inputs or self.global_file)

    def values(
        self,
        snapshot: Snapshot,
        chosen: Computation,
        topology: Topology,
        *,
        verify: bool,
        own: Sequence[int] | None = None,
    ) -> list[list[Value]]:
        """One list for all devices, or one for each, or for each of the `own` devices of this process."""
        import hloexec
        from hloexec.cli.inputs.loading import recorded_inputs

        run_options = self.given
        if self.global_file is not None:
            if (
                run_options.inputs
                or run_options.overrides
                or run_options.different_inputs
                or chosen is not snapshot.module.entry
            ):
                raise click.UsageError(
                    "--global-inputs replaces --inputs, --input and --different-inputs, and runs the entry computation"
                )
            require_normal(run_options, "--global-inputs gives them all")
            whole = _whole_values(self.global_file, self.before or snapshot.module)
            return hloexec.shard_inputs(
                snapshot.module,
                whole,
                before=self.before,
                replicas=topology.replicas,
                partitions=topology.partitions,
            )
        if self.is_recorded(snapshot):
            require_normal(run_options, "a snapshot runs on its own inputs; --random-inputs generates others")
            return recorded_inputs(snapshot, chosen, given_values(chosen, run_options.overrides), topology.count)
        return values_per_device(snapshot.module, topology, run_options, chosen, verify=verify, own=own)


def _whole_values(path: str, module: Module) -> tuple[Value, ...]:
    """The values of the parameters in a file, in order, of a module whose parameters may be parts of them."""
    from hloexec.errors import LiteralError
    from hloexec.language import literals

    try:
        values = literals.load(path)
    except LiteralError as error:
        # Names, and types that NumPy does not know, mean something with the parameters only.
        with suppress(LiteralError):
            return tuple(value for _, value in sorted(literals.load_inputs(path, module.entry.parameters).items()))
        raise error from None
    return values if isinstance(values, tuple) else (values,)


def _input_label(index: Sequence[int], names: Sequence[str]) -> str:
    """The tuple index of an input's leaf, and the name of its parameter."""
    return ".".join(map(str, index)) + f" {names[index[0]]}"
