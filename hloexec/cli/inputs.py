"""A module and its inputs, as the options of commands that run one say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.cli.run_options import RunOptions
from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.devices.topology import Topology
    from hloexec.ir import Computation, Module
    from hloexec.values import Value

__all__ = ["Prepared", "computation_named", "given_values", "prepared", "values_per_device"]


@attrs.frozen(eq=False)
class Prepared:
    """A module that can be run, and on what."""

    module: Module
    inputs: list[list[Value]]
    """One list for all devices, or one for each."""
    options: dict[str, Any]
    """The keyword arguments of `run_devices`."""
    devices: int
    arguments: tuple[str, ...]
    """What of the command line says this: the file, and the options that are not as they are without saying."""
    recorded_result: Value | None = None
    """What a snapshot says came out, where it is run on its own inputs."""

    def command(self, name: str, *more: str) -> str:
        """Another command on the same module and inputs, as one types it."""
        return shlex.join(["hloexec", name, *self.arguments[:1], *more, *self.arguments[1:]])


def prepared(file: str, given: RunOptions) -> Prepared:
    """Load a module and make or read its inputs; raises what keeps it from running before any input is made.

    A snapshot is run on the inputs that it holds, unless others are given.
    """
    from hloexec.cli.snapshots import recorded_inputs
    from hloexec.devices.topology import topology_of
    from hloexec.exec.participation import require_devices
    from hloexec.exec.running import plan_of
    from hloexec.loading import load_with_values
    from hloexec.plan.memory import require_memory

    options = given.settings()
    snapshot = load_with_values(file)
    module = snapshot.module
    plan = plan_of(module, is_observed=True, memory_limit=given.memory_limit, **options)
    topology = topology_of(module, given.replicas, given.partitions)
    require_devices(plan, topology)
    require_memory(plan, given.memory_limit)
    if snapshot.inputs_per_device and not (given.different_inputs or given.inputs):
        values = recorded_inputs(snapshot, module.entry, given_values(module.entry, given.overrides), topology.count)
        recorded_result = None if given.overrides else snapshot.result
    else:
        recorded_result = None
        values = values_per_device(module, topology, given)
    options |= {"replicas": topology.replicas, "partitions": topology.partitions}
    options |= {**given.limits(), "seed": given.seed}
    return Prepared(module, values, options, topology.count, (file, *given.words()), recorded_result)


def values_per_device(
    module: Module,
    topology: Topology,
    given: RunOptions,
    computation: Computation | None = None,
    *,
    verify: bool = True,
) -> list[list[Value]]:
    """The inputs of a computation, the module's entry without one, as the options say: one list for all devices, or
    one for each."""
    from hloexec.cli.devices import inputs_per_device

    chosen = module.entry if computation is None else computation
    return inputs_per_device(
        topology,
        given.inputs,
        given.different_inputs,
        given.seed,
        lambda path, number: _parameter_values(
            module, chosen, path, given.overrides, number, given.distribution, verify=verify
        ),
    )


def computation_named(module: Module, name: str | None) -> Computation:
    """A computation of the module, the entry without a name; InputError where it has none of that name."""
    if name is None:
        return module.entry
    found = module.by_name.get(name.removeprefix("%"))
    if found is None:
        raise InputError(f"module {module.name} has no computation {name!r}; `hloexec fmt` shows those it has")
    return found


def _parameter_values(
    module: Module,
    computation: Computation,
    path: str | None,
    overrides: Sequence[tuple[str, str]],
    seed: int,
    distribution: str,
    *,
    verify: bool = True,
) -> list[Value]:
    """One value per parameter: what `overrides` says, else what the file says, else random."""
    import hloexec
    from hloexec import literals

    values: dict[int, Value] = dict(given_values(computation, overrides))
    if path is not None:
        values |= literals.load_inputs(path, computation.parameters, given=values)
    if len(values) < len(computation.parameters):
        random = hloexec.random_inputs(module, seed, distribution, computation.name, verify=verify)
        values = dict(enumerate(random)) | values
    return [values[number] for number in range(len(computation.parameters))]


def given_values(computation: Computation, overrides: Sequence[tuple[str, str]]) -> Mapping[int, Value]:
    """The values of single parameters, by their numbers."""
    from hloexec import literals

    values: dict[int, Value] = {}
    for key, override in overrides:
        number = _parameter_number(computation, key)
        if number in values:
            raise InputError(f"parameter {number} is given twice")
        parameter = computation.parameters[number]
        values[number] = literals.load_value(override, parameter.shape, f"parameter {number} ({parameter.name})")
    return values


def _parameter_number(computation: Computation, key: str) -> int:
    names = {parameter.name: number for number, parameter in enumerate(computation.parameters)}
    number = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else names.get(key.removeprefix("%"), -1)
    if not 0 <= number < len(names):
        raise InputError(
            f"there is no parameter {key!r}; {computation.name} has {len(names)}, numbered from 0"
            + (f" and named {', '.join(list(names)[:5])}{', …' if len(names) > 5 else ''}" if names else "")
        )
    return number
