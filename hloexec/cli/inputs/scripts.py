"""Functions in users' Python files: kernels of library calls, and inputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from typing import TYPE_CHECKING, Any

import click

from hloexec.core.wording import quoted
from hloexec.errors import HloError, InputError

if TYPE_CHECKING:
    from hloexec.core.ir import Computation, Module, Shape
    from hloexec.core.values import Value


def imported_function(where: str) -> Callable[..., Any]:
    """Import the function `module:name`, also from the working folder, as `python -m` does."""
    module_name, _, name = where.partition(":")
    if not name:
        raise click.UsageError(f"--custom-call expects TARGET=MODULE:FUNCTION, but {quoted(where)} names no function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--custom-call: {where} cannot be imported: {error}") from error
    if not callable(found):
        raise click.UsageError(f"--custom-call: {where} is not a function")
    function: Callable[..., Any] = found
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
    found = _called(path, name, module, seed)
    if not isinstance(found, (list, tuple, dict)):
        raise InputError(
            f"{where} must return a list with a value per parameter, or a dict, but returned {quoted(found)}"
        )
    values: dict[int, Any] = {}
    if isinstance(found, dict):
        values = values_by_number(computation, found)
    elif len(found) != len(computation.parameters):
        raise InputError(
            f"{where} must return {len(computation.parameters)} values, one per parameter of {computation.name}, but "
            f"returned {len(found)}"
        )
    else:
        values = dict(enumerate(found))
    for number, value in values.items():
        parameter = computation.parameters[number]
        values[number] = _value(value, parameter.shape, f"{where}: parameter {number} ({parameter.name})")
    return values


def _value(given: object, shape: Shape, what: str) -> Value:
    """A value from a script, checked against a shape; InputError, which calls it `what`, if it does not fit."""
    from hloexec.engine.exec.arguments import value_leaves
    from hloexec.engine.inputs import value_of

    leaves = value_leaves(given, shape, what)
    return value_of(shape, lambda number, _: leaves[number])


def _called(path: str, name: str, module: Module, seed: int) -> object:
    spec = spec_from_file_location("_hloexec_inputs", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise InputError(f"cannot read {path!r}: there is no such file")
    script = module_from_spec(spec)
    try:
        spec.loader.exec_module(script)
        function = getattr(script, name, None)
        if not callable(function):
            raise InputError(f"{path} has no function {name}")
        return function(module, **({"seed": seed} if _takes_seed(function) else {}))
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
