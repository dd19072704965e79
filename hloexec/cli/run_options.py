"""The options that every command that runs a module shares: its inputs, devices, numerics and limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.cli.options import ByteCount, KeyValue, named_policy
from hloexec.core.structs import frozen

if TYPE_CHECKING:
    from hloexec.engine.options import Options


def _option(name: str, *, default: object = None, **settings: object) -> tuple[str, dict[str, Any]]:
    """The option `name`; `settings` as for `click.option`."""
    return name, {"default": default, **settings}


_OPTIONS = {
    "seed": _option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        show_default=True,
        help="Seed of the random inputs, and of the random numbers that the module generates itself (rng).",
    ),
    "distribution": _option(
        "--distribution",
        type=click.Choice(("normal", "uniform", "ones", "zeros", "iota", "special", "large", "edges")),
        default="normal",
        show_default=True,
        help="What random inputs are like. normal, uniform (-1 to 1): as the module needs them, masks of 0 and 1. "
        "zeros, ones. iota: 0, 1, 2, … as far as the type, or the bounds of an index, "
        "allow. special: half of the floats are NaN, infinite, denormal or extreme. large: the upper end of each "
        "range. edges: few unlike numbers, often repeated: both ends of each type, both zeros, denormals, and of "
        "indices those below, at and beyond their bounds; floats are finite. Indices stay in bounds with all others.",
    ),
    "inputs": _option(
        "--inputs",
        metavar="FILE",
        multiple=True,
        default=(),
        help="Read the parameters' values from a .npz file, keyed by number or name, or call a function with the "
        "module (and a seed, if it takes one), and use the values that it returns (FILE.py:FUNCTION). Give once for "
        "all devices, or once for each.",
    ),
    "overrides": _option(
        "--input",
        type=KeyValue("PARAMETER", "FILE"),
        multiple=True,
        default=(),
        help="Read one parameter's value, by number or name. May be repeated.",
    ),
    "ranges": _option(
        "--range",
        type=KeyValue("PARAMETER", "LOW:HIGH"),
        multiple=True,
        default=(),
        help="Sample one parameter's random values from a range, both ends included. May be repeated.",
    ),
    "different_inputs": _option(
        "--different-inputs",
        is_flag=True,
        default=False,
        help="Generate different random inputs for each device; integers that say how often devices communicate agree.",
    ),
    "replicas": _option("--replicas", type=click.IntRange(1), help="Number of replicas.  [default: as in the module]"),
    "partitions": _option(
        "--partitions", type=click.IntRange(1), help="Number of partitions.  [default: as in the module]"
    ),
    "numerics": _option(
        "--numerics",
        metavar="POLICY",
        default="reference",
        show_default=True,
        help="Numerics policy: how results are rounded.",
    ),
    "elided": _option(
        "--elided",
        metavar="zeros|random|error|FILE.npz",
        default="zeros",
        show_default=True,
        help="Values of constants that the text elides: generated, refused, or read by name from a file.",
    ),
    "unknown": _option(
        "--unknown",
        type=click.Choice(("error", "zeros", "random")),
        default="error",
        show_default=True,
        help="Results of library calls that hloexec does not know.",
    ),
    "custom_calls": _option(
        "--custom-call",
        type=KeyValue("TARGET", "MODULE:FUNCTION"),
        multiple=True,
        default=(),
        help="Implement a library call with a Python function. May be repeated.",
    ),
    "memory_limit": _option(
        "--memory-limit",
        type=ByteCount(),
        help="Refuse runs that need more memory, e.g. 8G.  [default: 80 % of free memory]",
    ),
    "max_iterations": _option(
        "--max-iterations",
        type=click.IntRange(1),
        help="Stop the run if a loop exceeds this many iterations, and name the loop.",
    ),
    "timeout": _option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(0),
        help="Stop the run if it takes longer, and say where it was.",
    ),
}
"""By the names of the fields of `Given`, or of the options of a run that they are resolved to."""


@frozen
class Given:
    """What a command line says of a run."""

    options: Options
    elided: str
    """How it says what elided constants are, which may be a file."""
    distribution: str
    inputs: tuple[str, ...]
    overrides: tuple[tuple[str, str], ...]
    ranges: tuple[tuple[str, str], ...]
    different_inputs: bool
    custom_calls: tuple[tuple[str, str], ...]

    def words(self) -> list[str]:
        """The options that differ from their defaults, as words of a command line.

        Limits are omitted: they do not change what a run computes.
        """
        words, flags = [], []
        for field, (name, settings) in _OPTIONS.items():
            value = getattr(self if hasattr(self, field) else self.options, field)
            value = getattr(value, "name", value)
            if value == settings["default"] or field in ("memory_limit", "max_iterations", "timeout"):
                continue
            if value is True:
                flags.append(name)
                continue
            for entry in value if isinstance(value, tuple) else (value,):
                words += [name, "=".join(entry) if isinstance(entry, tuple) else str(entry)]
        return words + flags


def resolve_given(**values: Any) -> Given:
    """What a command line says by the values of its options; click.BadParameter if one is unknown."""
    from hloexec.engine.options import Options
    from hloexec.language import literals

    values = {name: values.get(name, settings["default"]) for name, (_, settings) in _OPTIONS.items()}
    own = {field.name: values.pop(field.name) for field in attrs.fields(Given)[1:]}
    elided: Any = own["elided"]
    if elided.lower().endswith((".npz", ".npy")):
        elided = literals.load_arrays(elided, allow_untyped=True)
    elif elided not in ("zeros", "random", "error"):
        message = f"{elided!r} is not one of zeros, random, error and FILE.npz"
        raise click.BadParameter(message, param_hint="'--elided'")
    values["numerics"] = named_policy(values["numerics"])
    return Given(Options(elided=elided, **values), **own)


def register_custom_calls(calls: Iterable[tuple[str, str]]) -> None:
    """Register the functions of --custom-call."""
    if calls:
        from hloexec.cli.inputs.loading import imported_function
        from hloexec.ops.library_calls.user_calls import IMPLEMENTATIONS, register_custom_call

        for target, where in calls:
            register_custom_call(target, imported_function(where))
            IMPLEMENTATIONS[target] = where


def run_option(field: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add one of these options alone, whose value the command receives under the name of the field."""
    name, settings = _OPTIONS[field]
    return click.option(name, field, **settings)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command, which receives what they say as the argument `given`."""

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        given = resolve_given(**{field: values.pop(field) for field in _OPTIONS})
        register_custom_calls(given.custom_calls)
        return function(given=given, **values)

    wrapped: Callable[..., Any] = command
    for field in reversed(_OPTIONS):
        wrapped = run_option(field)(wrapped)
    return wrapped
