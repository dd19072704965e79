"""Loading a module and its inputs as the command-line options say.

Snapshots in commands: a module with the inputs and the result of an execution.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hloexec.cli.run_options import Given
from hloexec.core.structs import frozen
from hloexec.core.wording import quoted
from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.core.ir import Computation, Module
    from hloexec.core.values import Value
    from hloexec.engine.devices.topology import Topology
    from hloexec.engine.options import Options
    from hloexec.language.interop import Snapshot
    from hloexec.report.json.printed import Run


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
    from hloexec.cli.memory_advice import memory_advice
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
    from hloexec.engine.exec.lockstep.participation import require_devices
    from hloexec.engine.exec.plans import plan_of
    from hloexec.engine.plan.memory import require_memory

    plan = plan_of(module, options)
    topology = topology_of(module, options.replicas, options.partitions)
    require_devices(plan, topology)
    require_memory(plan, options.memory_limit)
    return topology


def _values_and_result(snapshot: Snapshot, topology: Topology, given: Given) -> tuple[list[list[Value]], Value | None]:
    """The inputs, and a snapshot's result for them."""
    from hloexec.cli.inputs.loading import recorded_inputs

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
) -> list[list[Value]]:
    """The inputs of a computation (by default the entry), as the options say: one list for all devices, or one each."""
    from hloexec.cli.devices import inputs_per_device

    chosen = module.entry if computation is None else computation
    return inputs_per_device(
        topology,
        given.inputs,
        given.different_inputs,
        given.options.seed,
        lambda path, number: _parameter_values(module, chosen, path, given, number, verify=verify),
    )


def _parameter_values(
    module: Module, computation: Computation, path: str | None, given: Given, seed: int, *, verify: bool
) -> list[Value]:
    """One value per parameter: from --input, else from the file or script, else random."""
    import hloexec
    from hloexec.cli.inputs.scripts import is_script, script_inputs
    from hloexec.core.arguments import parameter_numbers
    from hloexec.language import literals

    values: dict[int, Value] = dict(given_values(computation, given.overrides))
    if path is not None and is_script(path):
        values = script_inputs(path, module, computation, seed) | values
    elif path is not None:
        values |= literals.load_inputs(path, computation.parameters, given=values)
    ranges: dict[int | str, tuple[float, float]] = {}
    numbers = parameter_numbers(computation, [key for key, _ in given.ranges])
    for number, (_, text) in zip(numbers, given.ranges, strict=True):
        if number in values or number in ranges:
            raise InputError(f"parameter {number} is given twice, by --range and by a value or another range")
        ranges[number] = _ends(text)
    if len(values) < len(computation.parameters):
        name, kind = computation.name, given.distribution
        random = hloexec.random_inputs(module, seed, kind, name, ranges=ranges, verify=verify)
        values = dict(enumerate(random)) | values
    elif computation.parameters:
        require_normal(given, f"each parameter of {computation.name} is given a value")
    return [values[number] for number in range(len(computation.parameters))]


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
