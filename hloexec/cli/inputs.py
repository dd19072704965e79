"""What commands that run a module have in common: the options that say on which inputs and how, and what they give."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from hloexec.cli.options import ByteCount, KeyValue
from hloexec.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from hloexec.exec.topology import Topology
    from hloexec.ir import Computation, Module
    from hloexec.values import Value

__all__ = [
    "DISTRIBUTIONS",
    "Prepared",
    "computation_named",
    "given_values",
    "parameter_values",
    "prepared",
    "run_options",
    "run_settings",
    "said_options",
    "values_per_device",
]

DISTRIBUTIONS = ("normal", "uniform", "ones", "zeros", "iota", "special", "large")

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Which random inputs."
    ),
    click.option(
        "--distribution",
        type=click.Choice(DISTRIBUTIONS),
        default="normal",
        show_default=True,
        help="What random inputs look like.",
    ),
    click.option(
        "--inputs",
        metavar="FILE.npz",
        multiple=True,
        help="Read the parameters' values, keyed by number or name. Give it once for all devices, or once for each.",
    ),
    click.option(
        "--input",
        "overrides",
        type=KeyValue("PARAMETER", "FILE"),
        multiple=True,
        help="Read one parameter's value, by number or name. May be repeated.",
    ),
    click.option("--different-inputs", is_flag=True, help="Draw other random inputs for each device."),
    click.option("--replicas", type=click.IntRange(1), help="How many replicas there are.  [default: the module's]"),
    click.option(
        "--partitions", type=click.IntRange(1), help="How many partitions there are.  [default: the module's]"
    ),
    click.option(
        "--numerics", metavar="POLICY", default="reference", show_default=True, help="How much is rounded, and where."
    ),
    click.option(
        "--elided",
        metavar="zeros|random|error|FILE.npz",
        default="zeros",
        show_default=True,
        help="The values of constants that the text leaves out: made up, refused, or read by name.",
    ),
    click.option(
        "--unknown",
        type=click.Choice(("error", "zeros", "random")),
        default="error",
        show_default=True,
        help="What library calls that hloexec does not know give.",
    ),
    click.option(
        "--memory-limit", type=ByteCount(), help="Refuse to take more, e.g. 8G.  [default: 80 % of what is free]"
    ),
)


def run_options(function: _Function) -> _Function:
    """The options of `prepared`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


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


def prepared(
    file: str,
    *,
    seed: int,
    distribution: str,
    inputs: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    different_inputs: bool,
    replicas: int | None,
    partitions: int | None,
    numerics: str,
    elided: str,
    unknown: str,
    memory_limit: int | None,
) -> Prepared:
    """Load a module and make or read its inputs; raises what keeps it from running before any input is made.

    A snapshot is run on the inputs that it holds, unless others are given.
    """
    from hloexec.cli.snapshots import recorded_inputs
    from hloexec.exec.memory import require_memory
    from hloexec.exec.participation import require_devices
    from hloexec.exec.running import plan_of
    from hloexec.exec.topology import topology_of
    from hloexec.loading import load_with_values

    options = run_settings(numerics, elided, unknown)
    snapshot = load_with_values(file)
    module = snapshot.module
    plan = plan_of(module, is_observed=True, memory_limit=memory_limit, **options)
    topology = topology_of(module, replicas, partitions)
    require_devices(plan, topology)
    require_memory(plan, memory_limit)
    if snapshot.inputs_per_device and not (different_inputs or inputs):
        values = recorded_inputs(snapshot, module.entry, given_values(module.entry, overrides), topology.count)
        recorded_result = None if overrides else snapshot.result
    else:
        recorded_result = None
        values = values_per_device(module, topology, inputs, overrides, different_inputs, seed, distribution)
    options |= {"replicas": topology.replicas, "partitions": topology.partitions}
    options |= {"memory_limit": memory_limit, "seed": seed}
    words = said_options(
        seed=seed,
        distribution=distribution,
        inputs=inputs,
        overrides=overrides,
        different_inputs=different_inputs,
        replicas=replicas,
        partitions=partitions,
        numerics=numerics,
        elided=elided,
        unknown=unknown,
    )
    return Prepared(module, values, options, topology.count, (file, *words), recorded_result)


def run_settings(numerics: str, elided: str, unknown: str) -> dict[str, Any]:
    """The arguments of `run_devices` that are the same for every module; click.BadParameter where one is unknown."""
    from hloexec import literals
    from hloexec.ops.policy import numerics_policy

    is_file = elided.lower().endswith((".npz", ".npy"))
    if not is_file and elided not in ("zeros", "random", "error"):
        raise click.BadParameter(f"{elided!r} is none of zeros, random, error and FILE.npz", param_hint="'--elided'")
    try:
        policy = numerics_policy(numerics)
    except UnsupportedError as error:
        raise click.BadParameter(error.message, param_hint="'--numerics'") from error
    return {"numerics": policy, "elided": literals.load_arrays(elided) if is_file else elided, "unknown": unknown}


def values_per_device(
    module: Module,
    topology: Topology,
    inputs: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    different_inputs: bool,
    seed: int,
    distribution: str,
) -> list[list[Value]]:
    """The inputs of a module's entry as the options say: one list for all devices, or one for each."""
    from hloexec.cli.devices import inputs_per_device

    return inputs_per_device(
        topology,
        inputs,
        different_inputs,
        seed,
        lambda path, number: parameter_values(module, module.entry, path, overrides, number, distribution),
    )


def said_options(
    *,
    seed: int,
    distribution: str,
    inputs: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    different_inputs: bool,
    replicas: int | None,
    partitions: int | None,
    numerics: str,
    elided: str,
    unknown: str,
) -> list[str]:
    """The options that are not as they are without saying, as one types them."""
    said = {
        "--seed": [str(seed)] if seed else [],
        "--distribution": [distribution] if distribution != "normal" else [],
        "--inputs": list(inputs),
        "--input": [f"{key}={path}" for key, path in overrides],
        "--replicas": [str(replicas)] if replicas else [],
        "--partitions": [str(partitions)] if partitions else [],
        "--numerics": [numerics] if numerics != "reference" else [],
        "--elided": [elided] if elided != "zeros" else [],
        "--unknown": [unknown] if unknown != "error" else [],
    }
    words = [word for name, texts in said.items() for text in texts for word in (name, text)]
    return [*words, "--different-inputs"] if different_inputs else words


def computation_named(module: Module, name: str | None) -> Computation:
    """A computation of the module, the entry without a name; InputError where it has none of that name."""
    if name is None:
        return module.entry
    found = module.by_name.get(name.removeprefix("%"))
    if found is None:
        raise InputError(f"module {module.name} has no computation {name!r}; `hloexec fmt` shows those it has")
    return found


def parameter_values(
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
