"""Functions of users' that other processes import by their names."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from hloexec.core.structs import frozen
from hloexec.core.wording import first_line
from hloexec.errors import InputError
from hloexec.ops.library_calls.user_calls import IMPLEMENTATIONS, register_custom_call
from hloexec.ops.registry import USER_CALLS


@frozen
class NamedFunction:
    """A function by its name, with arguments that JSON holds."""

    place: str
    """`MODULE:FUNCTION`."""
    arguments: Mapping[str, Any] = attrs.Factory(dict)
    files: tuple[str, ...] = ()
    """The files that these name."""

    def __call__(self, *values: Any) -> Any:
        return imported(self.place)(*values, **self.arguments)


def imported(place: str) -> Any:
    """What `MODULE:FUNCTION` names, in modules of the working folder, too; InputError where that is nothing."""
    module, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        why = first_line(str(error)) or type(error).__name__
        raise InputError(f"{place} cannot be imported: {why}") from error


def named_function(subject: str, function: Any) -> NamedFunction:
    """A function by its name; InputError, which calls it `subject`, where no other process could import it so."""
    if isinstance(function, NamedFunction):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module not in (None, "__main__") and name is not None and "<" not in name:
        try:
            if imported(place := f"{module}:{name}") is function:
                return NamedFunction(place)
        except InputError:
            pass
    raise InputError(
        f"{subject} is a function that workers cannot import, so it cannot travel to them; define it in a module, or "
        "leave the executor out"
    )


def custom_calls_by_name() -> list[list[str]]:
    """The library calls that users implement, with the names of the functions; InputError where one has none."""
    calls = []
    for target in USER_CALLS:
        function = IMPLEMENTATIONS[target]
        subject = f"the implementation of custom call {target!r}"
        calls.append([target, function if isinstance(function, str) else named_function(subject, function).place])
    return calls


def register_by_name(calls: list[list[str]]) -> None:
    """Implement library calls with the functions of these names."""
    for target, place in calls:
        register_custom_call(target, imported(place))
