"""`hloexec run`: run a module on inputs that are made up or given, and show what comes out."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.options import ByteCount, KeyValue, echo_json, file_argument, json_option, strict_option
from hloexec.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloexec.ir import Computation, Module
    from hloexec.numerics.statistics import LeafStatistics
    from hloexec.values import Value

__all__ = ["command"]

_DISTRIBUTIONS = ("normal", "uniform", "ones", "zeros", "iota", "special", "large")


@click.command("run")
@file_argument
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Which random inputs, and which random numbers where the module draws some itself (rng).",
)
@click.option(
    "--distribution",
    type=click.Choice(_DISTRIBUTIONS),
    default="normal",
    show_default=True,
    help="What random inputs look like. Indices stay in bounds in all of them.",
)
@click.option("--inputs", metavar="FILE.npz", help="Read the parameters' values, keyed by number or by name.")
@click.option(
    "--input",
    "overrides",
    type=KeyValue("PARAMETER", "FILE"),
    multiple=True,
    help="Read one parameter's value, by number or name. May be repeated.",
)
@click.option("--infeed", metavar="FILE.npz", help="Read the values that infeeds take, keyed 0, 1, … in their order.")
@click.option("--outfeed", metavar="FILE.npz", help="Write the values that outfeeds hand over, keyed 0, 1, …")
@click.option("--save", metavar="FILE.npz", help="Write the result, in files that numpy.load opens.")
@click.option("--save-inputs", metavar="FILE.npz", help="Write the inputs, to be read by --inputs.")
@click.option(
    "--numerics", metavar="POLICY", default="reference", show_default=True, help="How much is rounded, and where."
)
@click.option(
    "--elided",
    metavar="zeros|random|error|FILE.npz",
    default="zeros",
    show_default=True,
    help="The values of constants that the text leaves out: made up, refused, or read by name.",
)
@click.option(
    "--unknown",
    type=click.Choice(("error", "zeros", "random")),
    default="error",
    show_default=True,
    help="What library calls that hloexec does not know give.",
)
@click.option("--computation", metavar="NAME", help="Run this computation instead of the entry.")
@click.option("--memory-limit", type=ByteCount(), help="Refuse to take more, e.g. 8G.  [default: 80 % of what is free]")
@click.option(
    "--custom-call",
    "custom_calls",
    type=KeyValue("TARGET", "MODULE:FUNCTION"),
    multiple=True,
    help="Implement a library call by a Python function. May be repeated.",
)
@click.option("--no-verify", is_flag=True, help="Run a module even if its shapes or structure are wrong.")
@strict_option
@json_option
def command(
    file: str,
    seed: int,
    distribution: str,
    inputs: str | None,
    overrides: Sequence[tuple[str, str]],
    infeed: str | None,
    outfeed: str | None,
    save: str | None,
    save_inputs: str | None,
    numerics: str,
    elided: str,
    unknown: str,
    computation: str | None,
    memory_limit: int | None,
    custom_calls: Sequence[tuple[str, str]],
    no_verify: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Run a module, and show its inputs and its result.

    Parameters get random values that suit their use (the same ones on every machine), unless --inputs or --input give
    them. The result is shown as a table, one row per array, with a hash of its bytes.
    """
    import hloexec
    from hloexec import literals
    from hloexec.cli.progress import ProgressBar
    from hloexec.exec.memory import Statistics, require_memory
    from hloexec.exec.running import plan_of
    from hloexec.numerics.statistics import statistics
    from hloexec.ops.policy import numerics_policy
    from hloexec.summary import device_counts

    is_file = elided.lower().endswith((".npz", ".npy"))
    if not is_file and elided not in ("zeros", "random", "error"):
        raise click.BadParameter(f"{elided!r} is none of zeros, random, error and FILE.npz", param_hint="'--elided'")
    try:
        policy = numerics_policy(numerics)
    except UnsupportedError as error:
        raise click.BadParameter(error.message, param_hint="'--numerics'") from error
    for destination in (save, save_inputs, outfeed):
        if destination is not None:
            literals.require_writable(destination)
    if outfeed is not None and not outfeed.lower().endswith(".npz"):
        raise click.BadParameter(
            f"{outfeed!r} must be a .npz file, which holds any number of values", param_hint="'--outfeed'"
        )
    fed = None if infeed is None else _fed(infeed)
    handed_over: list[Value] | None = None if outfeed is None else []
    for target, where in custom_calls:
        hloexec.register_custom_call(target, _function(where))
    module = hloexec.load(file, strict=strict)
    if not no_verify:
        hloexec.verify(module, strict=strict)
    chosen = _computation(module, computation)
    given = literals.load_arrays(elided) if is_file else elided
    # Whatever keeps the module from running is said before gigabytes of inputs are made.
    options: dict[str, Any] = {
        "numerics": policy,
        "computation": computation,
        "elided": given,
        "unknown": unknown,
        "verify": not no_verify,
    }
    require_memory(plan_of(module, memory_limit=memory_limit, **options), memory_limit)
    values = _inputs(module, chosen, inputs, overrides, seed, distribution, verify=not no_verify)
    if save_inputs is not None:
        literals.save(save_inputs, tuple(values))

    replicas, partitions = device_counts(module)
    view = _JsonView() if as_json else _TerminalView()
    view.module(module, replicas * partitions)
    view.inputs(_labelled(values, [f"{n} {parameter.name}" for n, parameter in enumerate(chosen.parameters)]))
    taken = Statistics()
    with ProgressBar() as progress:
        start = time.perf_counter()
        result = hloexec.run(
            module,
            *values,
            observers=[progress],
            memory_limit=memory_limit,
            seed=seed,
            infeed=fed,
            outfeed=handed_over,
            statistics=taken,
            **options,
        )
        seconds = time.perf_counter() - start
    rows = [(".".join(map(str, leaf.index)) or "value", leaf) for leaf in statistics(result)]
    view.result(rows, seconds, taken.peak_bytes)
    if save is not None:
        literals.save(save, result)
    if outfeed is not None and handed_over is not None:
        literals.save(outfeed, tuple(handed_over))


def _fed(path: str) -> tuple[Value, ...]:
    """The values for infeeds in a file, in their order."""
    from hloexec import literals

    values = literals.load(path)
    if not isinstance(values, tuple):
        raise InputError(f"{path!r} must hold the values for infeeds under the keys 0, 1, … (0.0, 0.1, … for a tuple)")
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


def _computation(module: Module, name: str | None) -> Computation:
    if name is None:
        return module.entry
    found = module.by_name.get(name.removeprefix("%"))
    if found is None:
        raise InputError(f"module {module.name} has no computation {name!r}; `hloexec fmt` shows those it has")
    return found


def _inputs(
    module: Module,
    computation: Computation,
    path: str | None,
    overrides: Sequence[tuple[str, str]],
    seed: int,
    distribution: str,
    *,
    verify: bool,
) -> list[Value]:
    """One value per parameter: what `overrides` says, else what the file says, else random."""
    import hloexec
    from hloexec import literals

    values: dict[int, Value] = {}
    for key, override in overrides:
        number = _parameter_number(computation, key)
        if number in values:
            raise InputError(f"parameter {number} is given twice")
        parameter = computation.parameters[number]
        values[number] = literals.load_value(override, parameter.shape, f"parameter {number} ({parameter.name})")
    if path is not None:
        values |= literals.load_inputs(path, computation.parameters, given=values)
    if len(values) < len(computation.parameters):
        random = hloexec.random_inputs(module, seed, distribution, computation.name, verify=verify)
        values = dict(enumerate(random)) | values
    return [values[number] for number in range(len(computation.parameters))]


def _parameter_number(computation: Computation, key: str) -> int:
    names = {parameter.name: number for number, parameter in enumerate(computation.parameters)}
    number = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else names.get(key.removeprefix("%"), -1)
    if not 0 <= number < len(names):
        raise InputError(
            f"there is no parameter {key!r}; {computation.name} has {len(names)}, numbered from 0"
            + (f" and named {', '.join(list(names)[:5])}{', …' if len(names) > 5 else ''}" if names else "")
        )
    return number


def _labelled(values: Sequence[Value], labels: Sequence[str]) -> list[tuple[str, LeafStatistics]]:
    from hloexec.numerics.statistics import statistics

    rows = []
    for label, value in zip(labels, values, strict=True):
        for leaf in statistics(value):
            number, _, name = label.partition(" ")
            rows.append((".".join([number, *map(str, leaf.index)]) + f" {name}", leaf))
    return rows


class _TerminalView:
    """Shows each part when it is known."""

    def module(self, module: Module, devices: int) -> None:
        from hloexec.report.tables import module_line, show

        show(module_line(module.name, module.instruction_count, len(module.computations), devices))

    def inputs(self, rows: Sequence[tuple[str, LeafStatistics]]) -> None:
        from hloexec.report.tables import show, values_table

        show(values_table("inputs", rows))

    def result(self, rows: Sequence[tuple[str, LeafStatistics]], seconds: float, peak_bytes: int) -> None:
        from hloexec.report.tables import show, values_table
        from hloexec.report.units import byte_text, seconds_text

        show(values_table("result", rows))
        show(f"\nran in {seconds_text(seconds)}, peak memory {byte_text(peak_bytes)} beyond the inputs")


class _JsonView:
    """Collects everything, and prints it at the end."""

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

    def result(self, rows: Sequence[tuple[str, LeafStatistics]], seconds: float, peak_bytes: int) -> None:
        from hloexec.report.records import leaf_records

        self._record["result"] = leaf_records(rows)
        self._record["seconds"] = seconds
        self._record["peak_bytes"] = peak_bytes
        echo_json(self._record)
