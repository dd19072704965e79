"""The options that every command that runs a module shares: its inputs, devices, numerics and limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import click

from hloexec.cli.options import ByteCount, KeyValue, named_policy
from hloexec.core.structs import frozen


def _option(name: str, *, default: object = None, **settings: object) -> Any:
    """A field whose value is that of the option `name`; `settings` as for `click.option`."""
    return attrs.field(default=default, metadata={"name": name, "settings": {"default": default, **settings}})


@frozen
class RunOptions:
    """The options of a run."""

    seed: int = _option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        show_default=True,
        help="Seed of the random inputs, and of the random numbers that the module generates itself (rng).",
    )
    distribution: str = _option(
        "--distribution",
        type=click.Choice(("normal", "uniform", "ones", "zeros", "iota", "special", "large", "edges")),
        default="normal",
        show_default=True,
        help="What random inputs are like. normal, uniform (-1 to 1): as the module needs them, masks of 0 and 1. "
        "zeros, ones. iota: 0, 1, 2, … as far as the type, or the bounds of an index, "
        "allow. special: half of the floats are NaN, infinite, denormal or extreme. large: the upper end of each "
        "range. edges: few unlike numbers, often repeated: both ends of each type, both zeros, denormals, and of "
        "indices those below, at and beyond their bounds; floats are finite. Indices stay in bounds with all others.",
    )
    inputs: tuple[str, ...] = _option(
        "--inputs",
        metavar="FILE",
        multiple=True,
        default=(),
        help="Read the parameters' values from a .npz file, keyed by number or name, or call a function with the "
        "module (and a seed, if it takes one), and use the values that it returns (FILE.py:FUNCTION). Give once for "
        "all devices, or once for each.",
    )
    overrides: tuple[tuple[str, str], ...] = _option(
        "--input",
        type=KeyValue("PARAMETER", "FILE"),
        multiple=True,
        default=(),
        help="Read one parameter's value, by number or name. May be repeated.",
    )
    ranges: tuple[tuple[str, str], ...] = _option(
        "--range",
        type=KeyValue("PARAMETER", "LOW:HIGH"),
        multiple=True,
        default=(),
        help="Sample one parameter's random values from a range, both ends included. May be repeated.",
    )
    different_inputs: bool = _option(
        "--different-inputs", is_flag=True, default=False, help="Generate different random inputs for each device."
    )
    replicas: int | None = _option(
        "--replicas", type=click.IntRange(1), help="Number of replicas.  [default: as in the module]"
    )
    partitions: int | None = _option(
        "--partitions", type=click.IntRange(1), help="Number of partitions.  [default: as in the module]"
    )
    numerics: str = _option(
        "--numerics",
        metavar="POLICY",
        default="reference",
        show_default=True,
        help="Numerics policy: how results are rounded.",
    )
    elided: str = _option(
        "--elided",
        metavar="zeros|random|error|FILE.npz",
        default="zeros",
        show_default=True,
        help="Values of constants that the text elides: generated, refused, or read by name from a file.",
    )
    unknown: str = _option(
        "--unknown",
        type=click.Choice(("error", "zeros", "random")),
        default="error",
        show_default=True,
        help="Results of library calls that hloexec does not know.",
    )
    custom_calls: tuple[tuple[str, str], ...] = _option(
        "--custom-call",
        type=KeyValue("TARGET", "MODULE:FUNCTION"),
        multiple=True,
        default=(),
        help="Implement a library call with a Python function. May be repeated.",
    )
    memory_limit: int | None = _option(
        "--memory-limit",
        type=ByteCount(),
        help="Refuse runs that need more memory, e.g. 8G.  [default: 80 % of free memory]",
    )
    max_iterations: int | None = _option(
        "--max-iterations",
        type=click.IntRange(1),
        help="Stop the run if a loop exceeds this many iterations, and name the loop.",
    )
    timeout: float | None = _option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(0),
        help="Stop the run if it takes longer, and say where it was.",
    )

    def settings(self) -> dict[str, Any]:
        """The arguments of `run_devices` that do not depend on the module.

        Raises click.BadParameter if a value is unknown.
        """
        from hloexec.language import literals

        elided = self.elided
        is_file = elided.lower().endswith((".npz", ".npy"))
        if not is_file and elided not in ("zeros", "random", "error"):
            message = f"{elided!r} is not one of zeros, random, error and FILE.npz"
            raise click.BadParameter(message, param_hint="'--elided'")
        policy = named_policy(self.numerics)
        constants = literals.load_arrays(elided, allow_untyped=True) if is_file else elided
        return {"numerics": policy, "elided": constants, "unknown": self.unknown}

    def limits(self) -> dict[str, Any]:
        """The arguments of `run_devices` that limit a run."""
        return {"memory_limit": self.memory_limit, "max_iterations": self.max_iterations, "timeout": self.timeout}

    def words(self) -> list[str]:
        """The options that differ from their defaults, as words of a command line.

        Limits are omitted: they do not change what a run computes.
        """
        words, flags = [], []
        for field in attrs.fields(RunOptions):
            name, value = field.metadata["name"], getattr(self, field.name)
            if value == field.default or field.name in self.limits():
                continue
            if value is True:
                flags.append(name)
                continue
            for entry in value if isinstance(value, tuple) else (value,):
                words += [name, "=".join(entry) if isinstance(entry, tuple) else str(entry)]
        return words + flags


def register_custom_calls(calls: Iterable[tuple[str, str]]) -> None:
    """Register the functions of --custom-call."""
    if calls:
        from hloexec.cli.inputs.scripts import imported_function
        from hloexec.ops.library_calls.user_calls import register_custom_call

        for target, where in calls:
            register_custom_call(target, imported_function(where))


def run_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add one of these options alone, whose value the command receives under the name of the field."""
    field = getattr(attrs.fields(RunOptions), name)
    return click.option(field.metadata["name"], field.name, **field.metadata["settings"])


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command, which receives their values as the argument `given`, a RunOptions."""
    fields = attrs.fields(RunOptions)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        given = RunOptions(**{field.name: values.pop(field.name) for field in fields})
        register_custom_calls(given.custom_calls)
        return function(given=given, **values)

    wrapped: Callable[..., Any] = command
    for field in reversed(fields):
        wrapped = run_option(field.name)(wrapped)
    return wrapped
