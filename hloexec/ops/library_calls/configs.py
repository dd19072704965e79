"""What library calls say of themselves: configs in three forms, and the shapes of operands and results.

XLA:GPU writes a protocol buffer as JSON: currently `{"gemm_backend_config":{…},"operation_queue_id":"0",…}`, in older
dumps only the inner object, as a quoted string. What JSON of protocol buffers may say in several ways is one thing
here: fields have the names of the `.proto` files, which older dumps write in lowerCamelCase; numbers may be strings
(the JSON form of 64-bit integers); enumerators are names or numbers; and zeros are omitted.

It is an MLIR dictionary attribute, `{uplo = 76 : ui8, left = true, k = 3 : i64, recall = 9.5e-01 : f32}`. Letters are
written as ASCII codes. Source: MLIR, builtin dialect (DictionaryAttr); XLA, "Foreign function interface".

A call declares one array, or a tuple of its results followed by scratch memory, which is zero here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, largest_number
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import natural_number, quoted
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, require

_CAMEL_CASE = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")


def json_object(backend_config: str) -> dict[str, Any]:
    """A config as an object of JSON, its fields in snake_case; UnsupportedError says why one is none."""
    try:
        fields = json.loads(backend_config, object_pairs_hook=_in_snake_case)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"its backend_config is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise UnsupportedError(f"its backend_config must be a JSON object, but is {quoted(backend_config)}")
    return fields


def _in_snake_case(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names of fields are those of `.proto` files: conv_result_scale, where it says convResultScale."""
    fields: dict[str, Any] = {}
    for said, value in pairs:
        name = re.sub("[A-Z]", r"_\g<0>", said).lower() if _CAMEL_CASE.fullmatch(said) else said
        if name in fields:
            raise UnsupportedError(f"its backend_config gives {name} twice")
        fields[name] = value
    return fields


def enumerator(value: object, words: Sequence[str]) -> str:
    """A member of an enumeration as a word, where it may be a number: that of its place among `words`."""
    number = natural_number(str(value))
    return words[number] if number is not None and number < len(words) else str(value)


@lru_cache(maxsize=1024)
def backend_config_field(backend_config: str | None, field: str) -> dict[str, Any]:
    """The object `field` of a GPU backend config, or the whole object where it has no such field (the older spelling).

    UnsupportedError says what is wrong with a config that is not an object of JSON. The result must not be modified.
    """
    if backend_config is None:
        raise UnsupportedError(f"it has no backend_config, but {field} says what to compute")
    whole = json_object(backend_config)
    config = whole.get(field, whole)
    if not isinstance(config, dict):
        raise UnsupportedError(f"{field} of its backend_config must be a JSON object, but is {config!r}")
    return config


def checked_json(
    backend_config: str | None, permitted: Mapping[str, Collection[Any] | Callable[[Any], bool]]
) -> dict[str, Any]:
    """A protocol buffer as JSON, each field of which must be known and hold a permitted value; any may be left out.

    `permitted` gives for each name the values, or a function that knows them. UnsupportedError names what does not fit.
    """
    fields = json_object(backend_config or "")
    known_fields(fields, permitted)
    for name, value in fields.items():
        values = permitted[name]
        if not (values(value) if callable(values) else value in values):
            raise UnsupportedError(f"{name} of its backend_config is {value!r}, which hloexec does not support")
    return fields


@frozen
class Fields:
    """One object of a config; UnsupportedError where a field is not of the kind that is asked for."""

    values: Mapping[str, Any]

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.values.get(name, default)
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a number, but is {value!r}") from None

    def whole(self, name: str) -> int:
        value = self.number(name)
        if not value.is_integer():
            raise UnsupportedError(f"{name} of its backend_config must be a whole number, but is {value}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise UnsupportedError(f"{name} of its backend_config must be true or false, but is {value!r}")
        return value

    def word(self, name: str, words: Sequence[str]) -> str:
        """A member of an enumeration, by its name or its number; the first one where the field is left out."""
        value = enumerator(self.values.get(name, words[0]), words)
        if value not in words:
            raise UnsupportedError(f"{name} of its backend_config is {value!r}; known are {', '.join(words)}")
        return value

    def object(self, name: str, default: Mapping[str, Any] | None = None) -> Fields:
        """An object inside this one."""
        value = self.values.get(name, default)
        if not isinstance(value, dict):
            raise UnsupportedError(f"{name} of its backend_config must be an object, but is {value!r}")
        return Fields(value)

    def whole_list(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name, [])
        try:
            if isinstance(value, str):
                raise TypeError
            return tuple(int(item) for item in value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a list of whole numbers") from None


def known_fields(values: Mapping[str, Any], names: Collection[str], field: str = "backend_config") -> Fields:
    """The fields of an object; UnsupportedError names one that is not among those `names`."""
    for name in values:
        if name not in names:
            raise UnsupportedError(f"its {field} has the field {name}, which hloexec does not know")
    return Fields(values)


def read_fields(instruction: Instruction, field: str, names: Collection[str]) -> Fields:
    """The fields of the object `field` of a call's config, all of them `names`."""
    return known_fields(backend_config_field(instruction.backend_config, field), names, field)


AttributeValue: TypeAlias = bool | int | float | str
_T = TypeVar("_T")

_NAME = re.compile(r"\s*(?:([A-Za-z_][\w.$]*)|\"((?:[^\"\\]|\\.)*)\")\s*=\s*")
_VALUE = re.compile(
    r"(?P<word>true|false)\b"
    r"|(?P<number>-?\d+(?:\.\d*(?:[eE][+-]?\d+)?)?)(?:\s*:\s*(?P<type>\w+))?"
    r"|\"(?P<text>(?:[^\"\\]|\\.)*)\""
)
_ESCAPE = re.compile(rb"\\(?:([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED_LETTERS = {b"n": b"\n", b"t": b"\t"}
_SEPARATOR = re.compile(r"\s*,")
_MOST_CHARACTERS = 50_000_000


@lru_cache(maxsize=1024)
def ffi_attributes(backend_config: str | None) -> Mapping[str, AttributeValue]:
    """The attributes of a call by name; none where there is no config.

    UnsupportedError for text that is no dictionary of numbers, strings and truth values.
    """
    text = (backend_config or "").strip()
    if not text:
        return {}
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _MOST_CHARACTERS:
        raise UnsupportedError(f"its backend_config must be a dictionary {{name = value, …}}, but is {quoted(text)}")
    attributes: dict[str, AttributeValue] = {}
    body, position = text[1:-1].rstrip(), 0
    while position < len(body):
        name = _NAME.match(body, position)
        value = _VALUE.match(body, name.end()) if name else None
        if name is None or value is None:
            raise UnsupportedError(f"its backend_config cannot be read at {body[position : position + 40]!r}")
        attributes[name[1] or name[2]] = _read(value)
        position = value.end()
        separator = _SEPARATOR.match(body, position)
        if separator is None and position < len(body):
            raise UnsupportedError(f"its backend_config cannot be read at {body[position : position + 40]!r}")
        position = separator.end() if separator else position
    return attributes


def bytes_of_config(backend_config: str | None) -> bytes:
    """A config that is no text, but a number or a C structure."""
    return (backend_config or "").encode("utf-8", "surrogateescape")


def bytes_of_attribute(text: str) -> bytes:
    """The bytes of a string attribute: MLIR writes bytes that it cannot print as a backslash and two hex digits."""

    def unescaped(escape: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escape[1].decode()) if escape[1] else _ESCAPED_LETTERS.get(escape[2], escape[2])

    return _ESCAPE.sub(unescaped, bytes_of_config(text))


def checked_attributes(
    backend_config: str | None, permitted: Mapping[str, Collection[AttributeValue] | Callable[[AttributeValue], bool]]
) -> Mapping[str, Any]:
    """The attributes of a call, each of which must be there and hold a permitted value, and no others.

    `permitted` gives for each name the values, or a function that knows them. UnsupportedError names what does not fit.
    """
    attributes = ffi_attributes(backend_config)
    for name, value in attributes.items():
        if name not in permitted:
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")
        values = permitted[name]
        if not (values(value) if callable(values) else value in values):
            raise UnsupportedError(f"its attribute {name} is {value!r}, which hloexec does not support")
    for name in permitted:
        if name not in attributes:
            raise UnsupportedError(f"its backend_config lacks the attribute {name}")
    return attributes


class Attributes:
    """The attributes of a call, each asked for once by name; leaving the context refuses those nobody asked for."""

    def __init__(self, text: str | None) -> None:
        self._found = dict(ffi_attributes(text))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedError(f"its attribute {name} must be a whole number, but is {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._take(name, default)
        if isinstance(value, (bool, str)):
            raise UnsupportedError(f"its attribute {name} must be a number, but is {value!r}")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        value = self._take(name, default)
        if value not in (True, False) or isinstance(value, float):
            raise UnsupportedError(f"its attribute {name} must be true or false, but is {value!r}")
        return bool(value)

    def text(self, name: str) -> str:
        """A string, in which escapes stand as they are."""
        value = self._take(name, None)
        if not isinstance(value, str):
            raise UnsupportedError(f"its attribute {name} must be a string, but is {value!r}")
        return value

    def choice(self, name: str, choices: Mapping[int, _T], default: int | None = None) -> _T:
        """What an enumeration's number stands for."""
        value = self.integer(name, default)
        if value not in choices:
            meanings = ", ".join(f"{number} ({meaning})" for number, meaning in choices.items())
            raise UnsupportedError(f"its attribute {name} is {value}, and hloexec has {meanings}")
        return choices[value]

    def ignore(self, *names: str) -> None:
        """Pass over attributes that cannot change values, or repeat what the operands' shapes say."""
        for name in names:
            self._found.pop(name, None)

    def __enter__(self) -> Attributes:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for name in self._found if error is None else ():
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")

    def _take(self, name: str, default: AttributeValue | None) -> AttributeValue:
        value = self._found.pop(name, default)
        if value is None:
            raise UnsupportedError(f"its backend_config lacks the attribute {name}")
        return value


def no_attributes(instruction: Instruction) -> None:
    """The `config` of calls that say nothing besides their operands; UnsupportedError names an attribute."""
    checked_attributes(instruction.backend_config, {})


def _read(value: re.Match[str]) -> AttributeValue:
    if value["word"]:
        return value["word"] == "true"
    if value["text"] is not None:
        return value["text"]
    number = value["number"]
    is_integer = number.lstrip("-").isdigit() and not (value["type"] or "").startswith(("f", "bf"))
    return int(number) if is_integer else float(number)


CallResult: TypeAlias = Array | tuple[Array, ...]


def require_floating(shapes: Iterable[ArrayShape], subject: str) -> None:
    """ShapeError unless all of these arrays hold floating-point numbers."""
    for shape in shapes:
        require(
            shape.element_type.is_floating, f"the operands of {subject} must be floating-point numbers, not {shape}"
        )


def shapes_of(arrays: Iterable[Array]) -> list[ArrayShape]:
    """The shapes of values, for checking a call that is given arrays alone."""
    return [ArrayShape(element_type_of(array.dtype), array.shape) for array in arrays]


def result_shapes(shape: Shape, subject: str, count: int = 1) -> list[ArrayShape]:
    """The arrays that a call declares as its results, scratch memory included; ShapeError for fewer than `count`."""
    leaves = parts_of(shape)
    if len(leaves) < count:
        raise ShapeError(f"{subject} has {count} results, which do not fit into {shape}")
    return [array_shape(leaf, f"a result of {subject}") for leaf in leaves]


def in_declared_form(results: Sequence[Shape], shape: Shape) -> Shape:
    """The declared shape with its first leaves replaced by the inferred results."""
    return TupleShape((*results, *shape.elements[len(results) :])) if isinstance(shape, TupleShape) else results[0]


def with_scratch(results: Sequence[Array], shape: Shape) -> CallResult:
    """The results in the form of the declared shape, zeros for the scratch memory declared behind them."""
    if not isinstance(shape, TupleShape):
        return results[0]
    return (*results, *zeros(shape.elements[len(results) :]))


@frozen(eq=False)
class WithScratch:
    """A kernel of the first result, and zeros for the scratch memory declared behind it."""

    first: Callable[..., Any]
    scratch: Sequence[Shape]

    @property
    def overwrites(self) -> int | None:
        return getattr(self.first, "overwrites", None)

    def __call__(self, *operands: Array, **out: Array) -> CallResult:
        return (self.first(*operands, **out), *zeros(self.scratch))


def zeros(shapes: Iterable[Shape]) -> list[Array]:
    """What several arrays of scratch memory hold."""
    return list(map(zeros_of, shapes))


def zeros_of(shape: Shape) -> Array:
    """What scratch memory holds."""
    array = array_shape(shape, "scratch memory")
    return np.zeros(array.dimensions, array.element_type.storage)


def saturating(array: Array, element_type: ElementType) -> Array:
    """The array rounded once to `element_type`, integers to the nearest; these and 8-bit floats saturate, NaN aside.

    So libraries for GPUs round. HLO's convert truncates towards an integer, and lets 8-bit floats overflow.
    """
    if element_type.is_integral:
        limits = np.iinfo(element_type.compute)
        wide = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0)
        return narrow(np.clip(wide, limits.min, limits.max).astype(np.int64), element_type)
    if element_type.is_floating and element_type.bits == 8:
        largest = array.dtype.type(largest_number(element_type))
        array = np.clip(array, -largest, largest)
    return narrow(array, element_type)
