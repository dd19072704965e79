"""Records: results as JSON has them, derived from the attributes of their classes.

The keys of a record are the attributes of its class and the properties that are `told`. Private ones are left out, and
those that are `UNTOLD` or of a type that JSON has no words for, as modules and values. What a key means is what the
docstring of the attribute says.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Instruction, Module, TupleShape
from hloexec.core.structs import UNTOLD, frozen
from hloexec.errors import HloError
from hloexec.language.origins import SourceLine
from hloexec.language.verifier import Note
from hloexec.ops.policies.policy import NumericsPolicy

WORDS: Mapping[str, str] = {
    "file": "The file that was given.",
    "folder": "The folder that was written or read.",
    "module": "The module's name.",
    "numerics": "The numerics policy.",
    "seconds": "How long it took.",
    "computation": "The name of the computation.",
    "instruction": "The name of the instruction.",
    "opcode": "The opcode.",
    "iteration": "The iteration of the innermost loop, from 0.",
    "device": "The number of the device.",
    "devices": "The numbers of the devices.",
    "hlo": "The instruction as HLO text.",
    "op_name": "The name that a framework gave it.",
    "source": "The lines of source it comes from, the innermost call first.",
    "number": "Its number, from 0.",
    "name": "Its name.",
    "kind": "Of which kind it is.",
    "shape": "The shape, as HLO text.",
    "element_type": "The element type that it has.",
    "byte_size": "How many bytes it takes.",
    "index": "The place in a tuple; of an element, in its array.",
    "minimum": "The smallest finite element; None where none is finite.",
    "maximum": "The largest finite element; None where none is finite.",
    "mean": "The mean of the finite elements.",
    "standard_deviation": "The standard deviation of the finite elements.",
    "nan_count": "How many elements are NaN.",
    "infinity_count": "How many elements are infinite.",
    "hash": "A hash of the elements' bytes in logical order.",
    "element_count": "How many elements there are.",
    "verdict": "What it comes to.",
    "comparison": "How far the results are apart.",
    "tolerance": "What is tolerated.",
    "reason": "Why, or what it is, in words.",
    "notes": "What else there is to say.",
}


_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
_WORDS: Mapping[object, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: _NUMBER,
    bool: {"type": "boolean"},
    complex: {"type": "array", "prefixItems": [_NUMBER] * 2, "items": False, "minItems": 2},
    types.NoneType: {"type": "null"},
}
"""The types that are no records. JSON has no infinities and no NaN, which are texts, and no complex numbers, which are
lists of the real and the imaginary part."""
_TEXTS: Mapping[type, Callable[[Any], str]] = {
    **dict.fromkeys((ArrayShape, BufferShape, TupleShape, HloError, Note, Path, SourceLine), str),
    **dict.fromkeys((ElementType, NumericsPolicy), lambda value: str(value.name)),
}
"""What is a text in JSON."""
_SEQUENCES = (tuple, list, frozenset, Sequence)


@frozen
class Key:
    """A key of a record."""

    name: str
    schema: Mapping[str, Any]
    parts: tuple[type, ...]
    """The classes of records that its value is made of."""
    home: type
    """The class that has the attribute."""

    @property
    def meaning(self) -> str:
        """What the docstring of the attribute says or, of words that mean the same everywhere, `WORDS`."""
        said = _docstrings(self.home.__module__).get((self.home.__name__, self.name)) or WORDS.get(self.name, "")
        return re.sub(r"\bNone\b", "null", " ".join(said.split()))


@cache
def keys_of(cls: Any) -> tuple[Key, ...]:
    """The keys of the records of a class of results."""
    keys: list[Key] = []
    for name, annotation, home in _told(cls):
        parts: list[type] = []
        text = getattr(annotation, "__forward_arg__", annotation)
        kind = eval(text, vars(sys.modules[home.__module__])) if isinstance(text, str) else text
        schema = _schema(kind, parts)
        if schema is not None:
            keys.append(Key(name, schema, tuple(parts), home))
    return tuple(keys)


def _told(cls: type) -> Iterator[tuple[str, Any, type]]:
    """The attributes and properties that may be keys, with their types, and with the classes that have them."""
    homes = [base for base in reversed(cls.__mro__) if base is not object]
    owners = {name: home for home in homes for name in inspect.get_annotations(home)}
    hidden = {field.name for field in attrs.fields(cls) if field.metadata == UNTOLD} if attrs.has(cls) else ()
    for name, home in owners.items():
        if not name.startswith("_") and name not in hidden:
            yield name, inspect.get_annotations(home)[name], home
    for home in homes:
        for name, member in vars(home).items():
            read = getattr(member, "fget", None) or getattr(member, "func", None)
            if hasattr(read, "is_told"):
                yield name, read.__annotations__["return"], home


def _schema(kind: Any, parts: list[type]) -> dict[str, Any] | None:
    """The JSON Schema of a type; None where JSON has no words for it."""
    if kind in _WORDS:
        return dict(_WORDS[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        schemas = [_schema(member, parts) for member in arguments if member is not int or float not in arguments]
        return None if None in schemas else {"anyOf": schemas}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in _SEQUENCES:
        items = _schema(arguments[0], parts) if {*arguments[1:]} <= {arguments[0], ...} else None
        return items and {"type": "array", "items": items}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        values = _schema(arguments[1], parts) if arguments[0] in (str, int) else None
        return values and {"type": "object", "additionalProperties": values}
    if not inspect.isclass(kind):
        return None
    if issubclass(kind, tuple(_TEXTS)):
        return dict(_WORDS[str])
    if issubclass(kind, enum.Enum):
        return {"enum": [_word(member) for member in kind]}
    if _is_record(kind):
        parts.append(kind)
        return {"$ref": f"#/$defs/{name_of(kind)}"}
    return None


def _is_record(cls: type) -> bool:
    """Whether values of a class are records: attrs classes, but for modules and their parts, and named tuples."""
    is_data = attrs.has(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    return is_data and not issubclass(cls, (Computation, Instruction, Module))


def name_of(cls: type) -> str:
    """What a class is called in schemas: with its package, as in the API."""
    place = cls.__module__.split(".")
    return f"{place[min(2, len(place) - 1)]}.{cls.__name__}"


def _word(member: enum.Enum) -> str:
    word = getattr(member, "word", member.value)
    return word if isinstance(word, str) else member.name.lower()


@cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """The docstrings of attributes and properties in a file of source, by their classes."""
    docstrings: dict[tuple[str, str], str] = {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node, after in zip(cls.body, [*cls.body[1:], None], strict=True):
            if isinstance(node, ast.FunctionDef):
                docstrings[cls.name, node.name] = ast.get_docstring(node) or ""
            elif isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                docstrings[cls.name, ast.unparse(node.target)] = ast.literal_eval(after.value)
    return docstrings


def json_text(record: object) -> str:
    """JSON that any reader takes; what no terminal may see is an escape."""
    text = json.dumps(json_value(record), indent=2, allow_nan=False, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def json_value(value: Any) -> Any:
    """A value as JSON has it: records of results, texts for numbers that are not finite, pairs for complex ones."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, complex):
        return [json_value(value.real), json_value(value.imag)]
    cls: Any = type(value)
    if _is_record(cls) and cls not in _TEXTS:
        return {key.name: json_value(getattr(value, key.name)) for key in keys_of(cls)}
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, (Sequence, Set)):
        return [json_value(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return _word(value)
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    return next((text(value) for kind, text in _TEXTS.items() if isinstance(value, kind)), value)
