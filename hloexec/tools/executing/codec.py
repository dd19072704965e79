"""Objects of hloexec's classes as JSON has them, and back.

What is read is what an annotation says, and nothing else: the classes are those that the annotations of the class asked
for lead to, and data names none.
"""

from __future__ import annotations

import base64
import enum
import math
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import attrs
import numpy as np

from hloexec.core.arguments import described
from hloexec.core.arrays import as_array, is_foreign
from hloexec.core.dtypes import element_type, element_type_of
from hloexec.core.ir import Module
from hloexec.core.tree import rebuilt
from hloexec.core.values import TOKEN, Array, Value
from hloexec.errors import HloError, InputError

_T = TypeVar("_T")
_Number: TypeAlias = bool | int | float | complex
_SEQUENCES = (list, tuple, Sequence)
_NUMBERS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating),
    complex: (complex, np.complexfloating),
}
"""What counts as a number of an annotated kind."""


def coded(value: Any, kind: Any, modules: Sequence[Module] = ()) -> Any:
    """What JSON holds of a value of an annotated kind.

    Of an array that is the name of its element type, its shape and its bytes; of one of these modules, its number; of
    an error, what it says. Raises TypeError where the value is of another kind.
    """
    if kind == Value:
        return rebuilt(value, lambda node: node if isinstance(node, tuple) else None, _coded_leaf)
    if members := _members(kind):
        if value is None or len(members) == 1:
            return None if value is None else coded(value, members[0], modules)
        number = next((number for number, member in enumerate(members) if _is_of(value, member)), None)
        if number is None:
            raise TypeError(f"{type(value).__name__} is not {kind}")
        return [number, coded(value, members[number], modules)]
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if not _is_of(value, kind):
        raise TypeError(f"{type(value).__name__} is not {kind}")
    if origin in _SEQUENCES:
        kinds = _kinds(arguments, len(value))
        return [coded(element, part_kind, modules) for element, part_kind in zip(value, kinds, strict=True)]
    if origin is typing.Literal:
        return value
    if (leaf := _leaf(origin)) is not None:
        return leaf[0](value, origin)
    if issubclass(origin, Mapping):
        return [
            [coded(part, part_kind, modules) for part, part_kind in zip(pair, arguments, strict=True)]
            for pair in value.items()
        ]
    if issubclass(origin, Module):
        return next(number for number, module in enumerate(modules) if module is value)
    return {name: coded(getattr(value, name), part_kind, modules) for name, _, part_kind in _fields(origin)}


@overload
def decoded(data: Any, kind: type[_T], modules: Sequence[Module] = ()) -> _T: ...
@overload
def decoded(data: Any, kind: Any, modules: Sequence[Module] = ()) -> Any: ...
def decoded(data: Any, kind: Any, modules: Sequence[Module] = ()) -> Any:
    """The value that `coded` was given, with these modules in place of those; errors as InputError.

    Raises ValueError, TypeError, KeyError or IndexError where data is of another kind.
    """
    if kind == Value:
        return rebuilt(data, lambda node: node if isinstance(node, list) else None, _decoded_leaf)
    if members := _members(kind):
        if data is None and type(None) in typing.get_args(kind):
            return None
        number, rest = (0, data) if len(members) == 1 else data
        return decoded(rest, members[number], modules)
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in _SEQUENCES:
        kinds = _kinds(arguments, len(_of(data, list)))
        elements = [decoded(element, part_kind, modules) for element, part_kind in zip(data, kinds, strict=True)]
        return elements if origin is list else tuple(elements)
    if origin is typing.Literal:
        return arguments[arguments.index(data)]
    if (leaf := _leaf(origin)) is not None:
        return leaf[1](data, origin)
    if issubclass(origin, Mapping):
        return {decoded(key, arguments[0], modules): decoded(entry, arguments[1], modules) for key, entry in data}
    if issubclass(origin, Module):
        return modules[data]
    fields = {name: (argument, part_kind) for name, argument, part_kind in _fields(origin)}
    return origin(
        **{fields[name][0]: decoded(part, fields[name][1], modules) for name, part in _of(data, dict).items()}
    )


def coded_inputs(node: object) -> Any:
    """What JSON holds of `values.Inputs`; InputError where they have what cannot be told to another process."""
    if isinstance(node, Mapping):
        keys = [coded_inputs(key) for key in node]
        return {"keys": keys, "values": [coded_inputs(value) for value in node.values()]}
    if node is None or isinstance(node, str):
        return node
    if type(node) in (list, tuple):
        return [coded_inputs(part) for part in node]  # type: ignore[attr-defined]
    try:
        if isinstance(node, (bool, int, float, complex)) and not isinstance(node, np.generic):
            return {"number": coded(node, _Number)}
        if node is TOKEN or isinstance(node, (np.ndarray, np.generic)) or is_foreign(node):
            return {"value": coded(node if node is TOKEN else as_array(node), Value)}
    except TypeError as error:
        raise InputError(f"inputs cannot travel to workers: {error}") from error
    raise InputError(
        f"inputs hold {described(node)}, which cannot travel to workers; give arrays, or leave the executor out"
    )


def decoded_inputs(data: Any) -> Any:
    """What `coded_inputs` was given, with lists in place of tuples and NumPy's arrays in place of others."""
    if isinstance(data, list):
        return [decoded_inputs(part) for part in data]
    if not isinstance(data, dict):
        return data
    if "keys" in data:
        return dict(zip(*(map(decoded_inputs, data[name]) for name in ("keys", "values")), strict=True))
    return decoded(data["number"], _Number) if "number" in data else decoded(data["value"], Value)


def _of(data: Any, kind: type[_T]) -> _T:
    if not isinstance(data, kind):
        raise TypeError(f"{type(data).__name__} is not {kind.__name__}")
    return data


def _members(kind: Any) -> list[Any]:
    """What a union is one of, None left out; empty for what is no union."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return []
    return [member for member in typing.get_args(kind) if member is not type(None)]


def _is_of(value: object, kind: Any) -> bool:
    """Whether a value is of a kind; of numbers, `True` is no integer, though integers may stand for floats."""
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return value in typing.get_args(kind)
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin]) and (origin is bool or not isinstance(value, bool))
    return isinstance(value, origin)


def _kinds(arguments: Sequence[Any], count: int) -> Sequence[Any]:
    """The kinds of so many elements."""
    return [arguments[0]] * count if len(arguments) == 1 or arguments[-1] is ... else arguments


@cache
def _fields(cls: Any) -> list[tuple[str, str, Any]]:
    """The fields of a class by their names, with what its constructor calls them, and their kinds."""
    hints = typing.get_type_hints(cls)
    if attrs.has(cls):
        return [(field.name, field.alias or field.name, hints[field.name]) for field in attrs.fields(cls) if field.init]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [(name, name, hints[name]) for name in cls._fields]
    raise TypeError(f"{cls} has no fields")


def _coded_number(value: Any, kind: Any) -> Any:
    if kind is complex:
        return [_coded_number(value.real, float), _coded_number(value.imag, float)]
    if kind is float and not isinstance(value, int):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return kind(value) if kind is bool else int(value)


def _decoded_number(data: Any, kind: Any) -> Any:
    if kind is complex:
        real, imaginary = data
        return complex(_decoded_number(real, float), _decoded_number(imaginary, float))
    if kind is float and data in ("inf", "-inf", "nan"):
        return float(data)
    if not _is_of(data, kind):
        raise TypeError(f"{type(data).__name__} is not {kind.__name__}")
    return data


def _coded_array(array: Array, _: object = None) -> dict[str, Any]:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    try:
        name = element_type_of(native.dtype).name
    except KeyError:
        raise TypeError(f"arrays of {array.dtype} have no element type") from None
    # Without slashes: texts in which paths are renamed have none of these.
    data = base64.urlsafe_b64encode(native.tobytes()).decode()
    return {"element_type": name, "shape": list(native.shape), "data": data}


def _decoded_array(data: Any, _: object = None) -> Array:
    storage = element_type(data["element_type"]).storage
    flat = np.frombuffer(base64.urlsafe_b64decode(data["data"]), storage)
    return flat.reshape([_of(size, int) for size in data["shape"]]).copy()


def _coded_leaf(leaf: Any) -> Any:
    return None if leaf is TOKEN else _coded_array(np.asarray(leaf))


def _decoded_leaf(data: Any) -> Any:
    return TOKEN if data is None else _decoded_array(data)


_LEAVES: Sequence[tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = (
    (tuple(_NUMBERS), _coded_number, _decoded_number),
    (str, lambda value, _: str(value), _of),
    (np.ndarray, _coded_array, _decoded_array),
    (enum.Enum, lambda value, _: value.name, lambda data, kind: kind[data]),
    (Path, lambda value, _: os.fspath(value), lambda data, kind: kind(data)),
    (HloError, lambda value, _: str(value), lambda data, _: InputError(_of(data, str))),
)
"""Classes whose objects have no parts here, with what codes and what decodes them."""


def _leaf(kind: Any) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] | None:
    return next((row[1:] for row in _LEAVES if issubclass(kind, row[0])), None)
