"""Values as XLA writes them: a serialized LiteralProto, or text with shapes such as `f32[2,2] {{1, 2}, {3, 4}}`.

A file of text may have several literals, one after the other: they are the elements of a tuple.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.files import FilePath, opened
from hloexec.core.structs import frozen
from hloexec.core.values import Value, join_values
from hloexec.errors import InputError, LiteralError, ParseError
from hloexec.language.interop.content import decoded, read_limited, unpacked
from hloexec.language.literals.npz import Entry, Expected, keyed_leaves

if TYPE_CHECKING:
    from hloexec.core.ir import Shape

_GZIP_MAGIC = b"\x1f\x8b"
_START_BYTES = 1 << 12
_TEXT_START = re.compile(
    rf"\ufeff?(?:\s|//.*|/\*(?:[^*]|\*(?!/))*\*/|\()*(?:(?:{'|'.join(sorted(ELEMENT_TYPES, reverse=True))})\[|\(\s*\))"
)
"""No module begins with a shape."""
_PROTO_START = re.compile(rb"\x0a[\x80-\xff]{0,2}[\x01-\x7f]\x10[\x01-\x22]")
"""A shape, of which the element type comes first: a module would have its name there, or a module with a name."""
_LAYOUT_OR_ELEMENTS = re.compile(r"\](?=\{)")


@frozen
class _Known(Entry):
    """A leaf of a literal."""

    value: Value

    def header(self) -> Any:
        return (self.value.shape, self.value.dtype) if isinstance(self.value, np.ndarray) else ((), np.dtype("V1"))

    def read(self, shape: Expected | None) -> Value:
        self._checked_type(self.header(), shape)
        return self._exact(self.value, shape) if isinstance(self.value, np.ndarray) else self.value


def holds_literal(path: FilePath) -> bool:
    """Whether a file begins as a literal does. Raises OSError where it cannot be read."""
    with opened(path) as file:
        start = file.read(_START_BYTES)
    if start.startswith(_GZIP_MAGIC):
        try:
            start = zlib.decompressobj(31).decompress(start, _START_BYTES)
        except zlib.error:
            return False
    if start.startswith(_GZIP_MAGIC):
        return False
    return (
        _PROTO_START.match(start) is not None
        or _TEXT_START.match(unpacked(start, "").decode("utf-8", "replace")) is not None
    )


def literal_entries(path: FilePath) -> list[Entry]:
    """The leaves of the literal in a file, keyed as those of the value; LiteralError where it is damaged."""
    filename = os.fspath(path)
    try:
        with opened(path) as file:
            data = unpacked(read_limited(file, filename), filename)
        value = _value_of_proto(data) if _PROTO_START.match(data) else _value_of_text(decoded(data, filename), filename)
    except OSError as error:
        raise LiteralError(f"cannot read {filename!r}: {error.strerror or error}") from error
    except ParseError as error:
        place = f"{filename}:{error.line}:{error.column}"
        raise LiteralError(f"{place}: {error.message}, in a literal such as f32[2] {{1, 2}}") from error
    except InputError as error:
        raise LiteralError(f"{filename!r} holds no literal: {error.message}") from error
    return [_Known(filename, key, None, 0, leaf) for key, leaf in keyed_leaves(value)]


def _value_of_proto(data: bytes) -> Value:
    from hloexec.language.interop.shape_protos import literal_value

    return literal_value(data)


def _value_of_text(text: str, filename: str) -> Value:
    try:
        return _parsed(text, filename)
    except ParseError:
        # What stands behind a shape without a space is its layout, for XLA; people write elements so.
        spaced = _LAYOUT_OR_ELEMENTS.sub("] ", text)
        if spaced == text:
            raise
        try:
            return _parsed(spaced, filename)
        except ParseError:
            pass
        raise


def _parsed(text: str, filename: str) -> Value:
    # Imported late: reading text needs every grammar.
    from hloexec.language.text.lexer import END, SHAPE
    from hloexec.language.text.literals import LiteralParser

    class Parser(LiteralParser):
        """A brace that follows behind a space begins the elements, not a layout."""

        def shape(self) -> Shape:
            stated = self.known(self.value) if self.kind == SHAPE else None
            if stated is None:
                return super().shape()
            self.advance()
            return stated

    parser = Parser(text, filename)
    literals = [parser.with_shape()]
    while parser.kind != END:
        parser.take(",")
        literals.append(parser.with_shape())
    if any(literal.is_elided for literal in literals):
        raise InputError("elements are left out ({...})")
    return join_values([literal.mapped(lambda leaf: leaf.value) for literal in literals])
