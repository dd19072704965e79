"""Which types of hloexec's a user of its functions meets: those in the annotations of functions, and of the public
attributes and methods of such types.
"""

import ast
import importlib
import inspect
import sys
import typing
from collections.abc import Iterator
from functools import cache, cached_property
from types import FunctionType, ModuleType
from typing import Any

import attrs


def reachable_types(functions: dict[str, FunctionType], types: dict[str, type]) -> dict[type, str]:
    """Each type of hloexec's that annotations lead to, and one way there."""
    found: dict[type, str] = {entry: name for name, entry in types.items()}
    for name, function in functions.items():
        for parameter, kind in _types_of(function):
            found.setdefault(kind, f"{name}({parameter})")
    todo = list(found)
    while todo:
        owner = todo.pop()
        for name, kind in _members(owner):
            if kind not in found:
                found[kind] = f"{found[owner]}.{name}"
                todo.append(kind)
    return found


def _members(owner: type) -> Iterator[tuple[str, type]]:
    """The types of a class's public fields, properties and methods."""
    for base in owner.__mro__:
        if _is_ours(base):
            yield from ((name, kind) for name, kind in _types_of(base) if not name.startswith("_"))
            for name, member in vars(base).items():
                function = _function_of(member)
                if function is not None and not name.startswith("_"):
                    yield from ((name, kind) for _, kind in _types_of(function))


def _function_of(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, cached_property):
        member = member.func
    elif isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member if isinstance(member, FunctionType) else None


def _types_of(owner: Any) -> Iterator[tuple[str, type]]:
    """The types of hloexec's in each annotation of a class or function."""
    names = _names_of(sys.modules[owner.__module__])
    hints = typing.get_type_hints(owner, names, names)
    for name, hint in hints.items():
        yield from ((name, kind) for kind in _parts(hint) if _is_ours(kind))


def _parts(hint: Any) -> Iterator[type]:
    """The classes that a type is put together of."""
    if isinstance(hint, list):
        for part in hint:
            yield from _parts(part)
        return
    origin = typing.get_origin(hint)
    if isinstance(hint, type) and origin is None:
        yield hint
    if isinstance(origin, type):
        yield origin
    for part in typing.get_args(hint):
        yield from _parts(part)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "hloexec" and (attrs.has(kind) or not kind.__name__.startswith("_"))


@cache
def _names_of(module: ModuleType) -> dict[str, Any]:
    """What annotations in a module may name, with what it imports for type checkers alone."""
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in ast.walk(node):
                if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                    home = importlib.import_module(statement.module)
                    names |= {entry.asname or entry.name: getattr(home, entry.name) for entry in statement.names}
    return names
