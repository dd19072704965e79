"""Loading a module and its inputs as the command-line options say, scripts and values of the host included.

Snapshots in commands: a module with the inputs and the result of an execution.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.run_options import Given
from hloexec.core.structs import define, frozen
from hloexec.core.values import Value
from hloexec.core.wording import natural_number, quoted
from hloexec.errors import HloError, InputError
from hloexec.language import literals

if TYPE_CHECKING:
    from hloexec.core.ir import Computation, Module, Shape
    from hloexec.core.values import Value
    from hloexec.engine.devices.topology import Topology
    from hloexec.engine.options import Options
    from hloexec.language.interop import Snapshot
    from hloexec.report.json.printed import Run
    from hloexec.tools.executing.functions import NamedFunction


@define(eq=False)
class HostValues:
    """The values for a run's infeeds and recvs, and the files for its outfeeds and sends."""

    _infeed: tuple[Value, ...] | None
    _outfeed: str | None
    _received: dict[int, tuple[Value, ...]]
    _sent: dict[int, str]
    _files: dict[str, list[list[Value]]] = attrs.field(factory=dict, init=False)
    """The values that each device sends, by file."""

    def on_devices(self, count: int) -> dict[str, Any]:
        """The options of the run; every device receives the same values."""
        for path in (*self._sent.values(), *([self._outfeed] if self._outfeed else [])):
            self._files[path] = [[] for _ in range(count)]
        transfers = [
            self._received | {channel: self._files[path][device] for channel, path in self._sent.items()}
            for device in range(count)
        ]
        return {
            "infeed": None if self._infeed is None else [self._infeed] * count,
            "outfeed": None if self._outfeed is None else self._files[self._outfeed],
            "host_transfers": transfers if self._received or self._sent else None,
        }

    def save(self) -> None:
        """Write the requested files; with several devices, keys begin with the device number."""
        for path, devices in self._files.items():
            literals.save(path, tuple(map(tuple, devices)) if len(devices) > 1 else tuple(devices[0]))


def host_values(
    infeed: str | None, outfeed: str | None, received: Sequence[tuple[str, str]], sent: Sequence[tuple[str, str]]
) -> HostValues:
    """Read the values for a run; raises InputError or click.BadParameter if they cannot be used."""
    values_by_channel: dict[int, tuple[Value, ...]] = {}
    files: dict[int, str] = {}
    for key, path in received:
        channel = _channel(key, values_by_channel, "'--recv'")
        values_by_channel[channel] = _values(path, f"recvs through channel {key}")
    for key, path in sent:
        channel = _channel(key, values_by_channel | files, "'--send'")
        files[channel] = _archive(path, "'--send'")
    if outfeed is not None:
        _archive(outfeed, "'--outfeed'")
    return HostValues(None if infeed is None else _values(infeed, "infeeds"), outfeed, values_by_channel, files)


def _values(path: str, subject: str) -> tuple[Value, ...]:
    """The values in a file, in order."""
    values = literals.load(path)
    if not isinstance(values, tuple):
        raise InputError(
            f"{path!r} must hold the values for {subject} under the keys 0, 1, … (0.0, 0.1, … for a tuple)"
        )
    return values


def _channel(key: str, known: Mapping[int, Any], option: str) -> int:
    channel = natural_number(key)
    if channel is None:
        raise click.BadParameter(f"{key!r} is not a channel number", param_hint=option)
    if channel in known:
        raise click.BadParameter(f"channel {channel} is given twice", param_hint=option)
    return channel


def _archive(path: str, option: str) -> str:
    if not path.lower().endswith(".npz"):
        raise click.BadParameter(
            f"{path!r} must be a .npz file, because there may be several values", param_hint=option
        )
    return path


def imported_function(where: str) -> Callable[..., Any]:
    """Import the function `module:name`, also from the working folder, as `python -m` does."""
    from hloexec.tools.executing.functions import imported

    if not where.partition(":")[2]:
        raise click.UsageError(f"--custom-call expects TARGET=MODULE:FUNCTION, but {quoted(where)} names no function")
    try:
        target = imported(where)
    except InputError as error:
        raise click.UsageError(f"--custom-call: {error}") from error
    if not callable(target):
        raise click.UsageError(f"--custom-call: {where} is not a function")
    function: Callable[..., Any] = target
    return function


def is_script(path: str) -> bool:
    """Whether a path of inputs is `FILE.py:FUNCTION`."""
    file, colon, name = path.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


def script_inputs(where: str, module: Module, computation: Computation, seed: int) -> dict[int, Value]:
    """The values by parameter that the function `FILE.py:FUNCTION` returns for a module, and for a `seed` if it takes
    one.

    It returns a list with a value per parameter, or a mapping from some parameters' names or numbers to values.
    """
    from hloexec.engine.exec.arguments import values_by_number

    path, _, name = where.rpartition(":")
    returned = _called(path, name, module, seed)
    if not isinstance(returned, (list, tuple, dict)):
        raise InputError(
            f"{where} must return a list with a value per parameter, or a dict, but returned {quoted(returned)}"
        )
    values: dict[int, Any] = {}
    if isinstance(returned, dict):
        values = values_by_number(computation, returned)
    elif len(returned) != len(computation.parameters):
        raise InputError(
            f"{where} must return {len(computation.parameters)} values, one per parameter of {computation.name}, but "
            f"returned {len(returned)}"
        )
    else:
        values = dict(enumerate(returned))
    for number, value in values.items():
        parameter = computation.parameters[number]
        values[number] = _value(value, parameter.shape, f"{where}: parameter {number} ({parameter.name})")
    return values


def _value(argument: object, shape: Shape, subject: str) -> Value:
    """A value from a script, checked against a shape; InputError, which calls it `subject`, if it does not fit."""
    from hloexec.engine.exec.arguments import value_leaves
    from hloexec.engine.inputs import value_of

    leaves = value_leaves(argument, shape, subject)
    return value_of(shape, lambda number, _: leaves[number])


def _called(path: str, name: str, module: Module, seed: int) -> object:
    def call(function: Callable[..., Any]) -> object:
        return function(module, **({"seed": seed} if _takes_seed(function) else {}))

    return called_in(path, name, call)


def called_in(path: str, name: str, call: Callable[[Callable[..., Any]], object]) -> object:
    """What `call` makes of a function of a file; InputError where there is none, or it raises another exception than an
    HloError."""
    spec = spec_from_file_location("_hloexec_inputs", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise InputError(f"cannot read {path!r}: there is no such file")
    script = module_from_spec(spec)
    try:
        spec.loader.exec_module(script)
        function = getattr(script, name, None)
        if not callable(function):
            raise InputError(f"{path} has no function {name}")
        return call(function)
    except HloError:
        raise
    except Exception as error:
        raise InputError(f"{path}:{name} raised {type(error).__name__}: {error}") from error


def _takes_seed(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `seed`."""
    try:
        return "seed" in signature(function).parameters
    except (TypeError, ValueError):  # a function of an extension may not say
        return False


def recorded_inputs(
    snapshot: Snapshot, computation: Computation, given: Mapping[int, Value], count: int
) -> list[list[Value]]:
    """The recorded inputs, for all devices or for each of `count`, with the `given` values replacing theirs."""
    recorded = snapshot.inputs_per_device
    if len(recorded) not in (1, count):
        raise InputError(f"the snapshot has the inputs of {len(recorded)} devices, but the module runs on {count}")
    for values in recorded:
        if len(values) != len(computation.parameters):
            raise InputError(
                f"the snapshot has {len(values)} inputs, but {computation.name} has {len(computation.parameters)} "
                f"parameters; --random-inputs generates others"
            )
    return [[given.get(number, value) for number, value in enumerate(values)] for values in recorded]


@frozen(eq=False)
class Prepared:
    """A module that can be run, with its inputs and options."""

    module: Module
    inputs: list[list[Value]]
    """One list for all devices, or one for each."""
    options: Options
    devices: int
    arguments: tuple[str, ...]
    """The file, and the options that differ from their defaults."""
    recorded_result: Value | None = None
    """The result in a snapshot, if the module runs on the snapshot's inputs."""

    def facts(self) -> Run:
        """What every record says of a run."""
        from hloexec.report.json.printed import Run

        options = self.options
        return Run(self.arguments[0], self.module.name, self.devices, options.seed, options.numerics.name)

    def command(self, name: str, *more: str) -> str:
        """The command line of another command on the same module and inputs."""
        return shlex.join(["hloexec", name, *self.arguments[:1], *more, *self.arguments[1:]])


def prepared(file: str, given: Given) -> Prepared:
    """Load a module, and generate or read its inputs.

    Raises before inputs are generated if the module cannot run. A snapshot runs on its own inputs unless others are
    given.
    """
    from hloexec.cli.running import memory_advice
    from hloexec.language.loading import load_with_values

    options = attrs.evolve(given.options, is_observed=True)
    snapshot = load_with_values(file)
    module = snapshot.module
    with memory_advice(file, module, given, options):
        topology = required_topology(module, options)
        values, recorded_result = _values_and_result(snapshot, topology, given)
    return Prepared(module, values, given.options.on(topology), topology.count, (file, *given.words()), recorded_result)


def required_topology(module: Module, options: Options) -> Topology:
    """The devices; raises if the module cannot run on them, before gigabytes of inputs are generated."""
    from hloexec.engine.devices.topology import topology_of
    from hloexec.engine.exec.lockstep.communication import require_devices
    from hloexec.engine.exec.running import plan_of
    from hloexec.engine.plan.memory import require_memory

    plan = plan_of(module, options)
    topology = topology_of(module, options.replicas, options.partitions)
    require_devices(plan, topology)
    require_memory(plan, options.memory_limit)
    return topology


def _values_and_result(snapshot: Snapshot, topology: Topology, given: Given) -> tuple[list[list[Value]], Value | None]:
    """The inputs, and a snapshot's result for them."""

    entry = snapshot.module.entry
    if not snapshot.inputs_per_device or given.different_inputs or given.inputs:
        return values_per_device(snapshot.module, topology, given), None
    values = recorded_inputs(snapshot, entry, given_values(entry, given.overrides), topology.count)
    require_normal(given, "a snapshot runs on its own inputs")
    return values, None if given.overrides else snapshot.result


def values_per_device(
    module: Module,
    topology: Topology,
    given: Given,
    computation: Computation | None = None,
    *,
    verify: bool = True,
    own: Sequence[int] | None = None,
) -> list[list[Value]]:
    """The inputs of a computation (by default the entry), as the options say: one list for all devices, or one each, of
    all or of the `own` devices of this process."""
    from hloexec.analysis.dataflow.dependences import agreed_parameters
    from hloexec.cli.running import inputs_per_device
    from hloexec.core.arguments import parameter_numbers
    from hloexec.engine.inputs import input_generator

    chosen = module.entry if computation is None else computation
    numbers = parameter_numbers(chosen, [key for key, _ in given.ranges])
    if len(set(numbers)) < len(numbers):
        raise _given_twice(next(number for number in numbers if numbers.count(number) > 1))
    ranges: dict[int | str, tuple[float, float]] = {
        number: _ends(text) for number, (_, text) in zip(numbers, given.ranges, strict=True)
    }

    @cache
    def random() -> Callable[[int], list[Value]]:
        return input_generator(module, given.distribution, chosen.name, ranges=ranges, verify=verify)

    @cache
    def alike() -> dict[int, Value]:
        """The values of parameters that have to be the same on all devices, so that these do not wait for one another
        for ever."""
        numbers = agreed_parameters(module, topology) if chosen is module.entry and given.different_inputs else ()
        values = random()(given.options.seed) if numbers else []
        return {number: values[number] for number in numbers}

    def seeded(seed: int) -> list[Value]:
        return list((dict(enumerate(random()(seed))) | alike()).values())

    return inputs_per_device(
        topology,
        given.inputs,
        given.different_inputs,
        given.options.seed,
        lambda path, number: _parameter_values(module, chosen, path, given, number, ranges, seeded),
        own,
    )


def stage_inputs(module: Module, **values: Any) -> list[list[Value]]:
    """`values_per_device` of a module, as these values of options say, for workers; InputError where they cannot."""
    from hloexec.cli.run_options import resolve_given
    from hloexec.engine.devices.topology import topology_of

    try:
        line = resolve_given(**values)
        return values_per_device(module, topology_of(module, line.options.replicas, line.options.partitions), line)
    except click.ClickException as error:
        raise InputError(error.format_message()) from error


def stage_inputs_apart(line: Given) -> NamedFunction:
    """`stage_inputs` as other processes call it."""
    from hloexec.tools.executing.functions import NamedFunction

    for path in line.inputs:
        if is_script(path):
            raise click.UsageError(
                f"--inputs {path} is a function, which does not travel to workers; name a .npz file, or leave out "
                "--executor and --jobs"
            )
    names = ("distribution", "inputs", "overrides", "ranges", "different_inputs")
    arguments = {name: getattr(line, name) for name in names}
    arguments |= {name: getattr(line.options, name) for name in ("seed", "replicas", "partitions")}
    files = (*line.inputs, *(path for _, path in line.overrides))
    return NamedFunction(f"{__name__}:{stage_inputs.__name__}", arguments, files)


def _parameter_values(
    module: Module,
    computation: Computation,
    path: str | None,
    given: Given,
    seed: int,
    ranges: Collection[int | str],
    random: Callable[[int], list[Value]],
) -> list[Value]:
    """One value per parameter: from --input, else from the file or script, else random."""
    from hloexec.language import literals

    values: dict[int, Value] = dict(given_values(computation, given.overrides))
    if path is not None and is_script(path):
        values = script_inputs(path, module, computation, seed) | values
    elif path is not None:
        values |= literals.load_inputs(path, computation.parameters, given=values)
    if both := [number for number in ranges if number in values]:
        raise _given_twice(both[0])
    if len(values) < len(computation.parameters):
        values = dict(enumerate(random(seed))) | values
    elif computation.parameters:
        require_normal(given, f"each parameter of {computation.name} is given a value")
    return [values[number] for number in range(len(computation.parameters))]


def _given_twice(parameter: int | str) -> InputError:
    return InputError(f"parameter {parameter} is given twice, by --range and by a value or another range")


def require_normal(given: Given, reason: str) -> None:
    """Refuse a distribution that no input is drawn from: who asks for one believes that it was tried."""
    if given.distribution != "normal":
        raise InputError(f"--distribution {given.distribution} is for random inputs, but {reason}")


def _ends(text: str) -> tuple[float, float]:
    """The ends of `LOW:HIGH`; integers stay exact."""
    numbers = list(map(_number, text.split(":")))
    if len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise InputError(f"--range expects PARAMETER=LOW:HIGH with two numbers, but was given {quoted(text)}")
    return numbers[0], numbers[1]


def _number(text: str) -> float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return math.nan


def given_values(computation: Computation, overrides: Sequence[tuple[str, str]]) -> Mapping[int, Value]:
    """The values given by --input, by parameter number."""
    from hloexec.core.arguments import parameter_numbers
    from hloexec.language import literals

    values: dict[int, Value] = {}
    numbers = parameter_numbers(computation, [key for key, _ in overrides])
    for number, (_, override) in zip(numbers, overrides, strict=True):
        if number in values:
            raise InputError(f"parameter {number} is given twice")
        parameter = computation.parameters[number]
        values[number] = literals.load_value(override, parameter.shape, f"parameter {number} ({parameter.name})")
    return values
