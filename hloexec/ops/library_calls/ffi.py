"""Parsing the `backend_config` of calls that use XLA's typed foreign function interface.

It is an MLIR dictionary attribute, `{uplo = 76 : ui8, left = true, k = 3 : i64, recall = 9.5e-01 : f32}`. Letters are
written as ASCII codes. Source: MLIR, builtin dialect (DictionaryAttr); XLA, "Foreign function interface".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from hloexec.core.ir import Instruction
from hloexec.core.wording import quoted
from hloexec.errors import UnsupportedError

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
_MOST_CHARACTERS = 100_000


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
    found: dict[str, AttributeValue] = {}
    body, position = text[1:-1].rstrip(), 0
    while position < len(body):
        name = _NAME.match(body, position)
        value = _VALUE.match(body, name.end()) if name else None
        if name is None or value is None:
            raise UnsupportedError(f"its backend_config cannot be read at {body[position : position + 40]!r}")
        found[name[1] or name[2]] = _read(value)
        position = value.end()
        separator = _SEPARATOR.match(body, position)
        if separator is None and position < len(body):
            raise UnsupportedError(f"its backend_config cannot be read at {body[position : position + 40]!r}")
        position = separator.end() if separator else position
    return found


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
    found = ffi_attributes(backend_config)
    for name, value in found.items():
        if name not in permitted:
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")
        values = permitted[name]
        if not (values(value) if callable(values) else value in values):
            raise UnsupportedError(f"its attribute {name} is {value!r}, which hloexec does not support")
    for name in permitted:
        if name not in found:
            raise UnsupportedError(f"its backend_config lacks the attribute {name}")
    return found


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

    def choice(self, name: str, choices: Mapping[int, _T], default: int | None = None) -> _T:
        """What an enumeration's number stands for."""
        value = self.integer(name, default)
        if value not in choices:
            known = ", ".join(f"{number} ({meaning})" for number, meaning in choices.items())
            raise UnsupportedError(f"its attribute {name} is {value}, and hloexec has {known}")
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
