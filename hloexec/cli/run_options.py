"""The options of every command that runs a module: on which inputs, on how many devices, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import click

from hloexec.cli.options import ByteCount, KeyValue
from hloexec.errors import UnsupportedError

__all__ = ["RunOptions", "run_options"]


def _option(name: str, *, default: object = None, **settings: object) -> Any:
    """A field whose value is that of the option `name`; `settings` as for `click.option`."""
    return attrs.field(default=default, metadata={"name": name, "settings": {"default": default, **settings}})


@attrs.frozen
class RunOptions:
    """What a command line says about a run."""

    seed: int = _option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        show_default=True,
        help="Which random inputs, and which random numbers where the module draws some itself (rng).",
    )
    distribution: str = _option(
        "--distribution",
        type=click.Choice(("normal", "uniform", "ones", "zeros", "iota", "special", "large")),
        default="normal",
        show_default=True,
        help="What random inputs look like. Indices stay in bounds in all of them.",
    )
    inputs: tuple[str, ...] = _option(
        "--inputs",
        metavar="FILE",
        multiple=True,
        default=(),
        help="Read the parameters' values from a .npz file, keyed by number or name, or take those that a function of "
        "the module returns (FILE.py:FUNCTION). Give it once for all devices, or once for each.",
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
        help="Draw one parameter's random values from a range, both ends included. May be repeated.",
    )
    different_inputs: bool = _option(
        "--different-inputs", is_flag=True, default=False, help="Draw other random inputs for each device."
    )
    replicas: int | None = _option(
        "--replicas", type=click.IntRange(1), help="How many replicas there are.  [default: the module's]"
    )
    partitions: int | None = _option(
        "--partitions", type=click.IntRange(1), help="How many partitions there are.  [default: the module's]"
    )
    numerics: str = _option(
        "--numerics", metavar="POLICY", default="reference", show_default=True, help="How much is rounded, and where."
    )
    elided: str = _option(
        "--elided",
        metavar="zeros|random|error|FILE.npz",
        default="zeros",
        show_default=True,
        help="The values of constants that the text leaves out: synthesized, refused, or read by name.",
    )
    unknown: str = _option(
        "--unknown",
        type=click.Choice(("error", "zeros", "random")),
        default="error",
        show_default=True,
        help="What library calls that hloexec does not know give.",
    )
    custom_calls: tuple[tuple[str, str], ...] = _option(
        "--custom-call",
        type=KeyValue("TARGET", "MODULE:FUNCTION"),
        multiple=True,
        default=(),
        help="Implement a library call by a Python function. May be repeated.",
    )
    memory_limit: int | None = _option(
        "--memory-limit", type=ByteCount(), help="Refuse to take more, e.g. 8G.  [default: 80 % of what is free]"
    )
    max_iterations: int | None = _option(
        "--max-iterations", type=click.IntRange(1), help="End the run where a loop has more iterations, and say where."
    )
    timeout: float | None = _option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(0),
        help="End the run where it takes longer, and say where.",
    )

    def register_custom_calls(self) -> None:
        """Let the library calls that were given run the functions that were named."""
        if self.custom_calls:
            from hloexec.cli.scripts import imported_function
            from hloexec.custom_calls.user_calls import register_custom_call

            for target, where in self.custom_calls:
                register_custom_call(target, imported_function(where))

    def settings(self) -> dict[str, Any]:
        """The arguments of `run_devices` that are the same for every module.

        Raises click.BadParameter where one is unknown.
        """
        from hloexec import literals
        from hloexec.ops.policies.policy import numerics_policy

        elided = self.elided
        is_file = elided.lower().endswith((".npz", ".npy"))
        if not is_file and elided not in ("zeros", "random", "error"):
            message = f"{elided!r} is none of zeros, random, error and FILE.npz"
            raise click.BadParameter(message, param_hint="'--elided'")
        try:
            policy = numerics_policy(self.numerics)
        except UnsupportedError as error:
            raise click.BadParameter(error.message, param_hint="'--numerics'") from error
        constants = literals.load_arrays(elided) if is_file else elided
        return {"numerics": policy, "elided": constants, "unknown": self.unknown}

    def limits(self) -> dict[str, Any]:
        """The arguments of `run_devices` that end a run which takes too much."""
        return {"memory_limit": self.memory_limit, "max_iterations": self.max_iterations, "timeout": self.timeout}

    def words(self) -> list[str]:
        """The options that are not as they are without saying, as one types them.

        Limits are no part of what is run, and left out.
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


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets their values as one argument, `given`, a RunOptions."""
    fields = attrs.fields(RunOptions)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        given = RunOptions(**{field.name: values.pop(field.name) for field in fields})
        given.register_custom_calls()
        return function(given=given, **values)

    for field in reversed(fields):
        option = click.option(field.metadata["name"], field.name, **field.metadata["settings"])
        command = option(command)
    return command
