"""What people type for values: `dot.3`, `tuple.2{0}[1:3, :]`, and values as literals or files.

    expression = name [ "{" index { "," index } "}" ] [ "[" slice { "," slice } "]" ]
    slice      = index | [ start ] ":" [ stop ] [ ":" step ]

Braces choose an element of a (nested) tuple, as in XLA's shape indices, and brackets elements of an array, as in NumPy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from hloexec.core.ir import ArrayShape, Literal, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, rebuilt
from hloexec.core.wording import braced
from hloexec.errors import InputError, ParseError
from hloexec.language import literals

_EXPRESSION = re.compile(r"\s*%?([^\s{}\[\]%]+)\s*(?:\{([^{}]*)\})?\s*(?:\[([^\[\]]*)\])?\s*")


@frozen
class Expression:
    """A value, or a part of it."""

    name: str
    index: tuple[int, ...]
    """Where in a nested tuple."""
    slices: tuple[int | slice, ...] | None

    def of(self, value: Value) -> Value:
        """The part of what the instruction gives; InputError where it has none such."""
        for position in self.index:
            if not isinstance(value, tuple) or not 0 <= position < len(value):
                what = f"a tuple of {len(value)}" if isinstance(value, tuple) else "no tuple"
                raise InputError(f"%{self.name} has no element {braced(self.index)}: it is {what} there")
            value = value[position]
        if self.slices is None:
            return value
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"%{self.name} is no array; choose an element of a tuple with braces, as in {self.name}{{0}}"
            )
        return np.asarray(value[self.within(value)])

    def within(self, array: Array) -> tuple[int | slice, ...]:
        """The slices, which fit an array; InputError where they don't."""
        slices = self.slices or ()
        if len(slices) > array.ndim:
            raise InputError(f"%{self.name} has {array.ndim} dimensions, but {len(slices)} are indexed")
        for dimension, (part, size) in enumerate(zip(slices, array.shape, strict=False)):
            if isinstance(part, int) and not -size <= part < size:
                raise InputError(
                    f"index {part} is out of bounds for dimension {dimension} of %{self.name}, of size {size}"
                )
        return slices


def expression(text: str) -> Expression:
    """What a text means; InputError where it is no expression."""
    found = _EXPRESSION.fullmatch(text)
    if found is None:
        raise InputError(
            f"{text.strip()!r} is not of the form NAME, NAME{{INDEX}}, NAME[SLICES] or NAME{{INDEX}}[SLICES]"
        )
    name, index, slices = found.groups()
    try:
        path = () if not index else tuple(int(part) for part in index.split(","))
        parts = None if slices is None else tuple(_slice(part) for part in slices.split(",") if slices.strip())
    except ValueError:
        raise InputError(f"{text.strip()!r} has an index that is no integer, as in NAME{{0}}[1:3, 2]") from None
    return Expression(name, path, parts)


def _slice(text: str) -> int | slice:
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    if len(parts) == 1:
        if parts[0] is None:
            raise ValueError
        return parts[0]
    if len(parts) > 3 or parts[2:] == [0]:
        raise ValueError
    return slice(*parts)


def value_of_text(text: str, shape: Shape, what: str) -> Value:
    """The value in a file (`.npy`, `.npz`, XLA's literals), or the one of a literal; a number alone fills an array.

    InputError, which calls it `what`, where it is not of the shape.
    """
    text = text.strip()
    suffix = os.path.splitext(text)[1].lower()
    if suffix in (".npy", ".npz") or (suffix[1:].isalpha() and os.path.isfile(text)):
        return literals.load_value(text, shape, what)
    if isinstance(shape, ArrayShape) and shape.is_array and shape.rank and not text.startswith("{"):
        element = _literal(text, ArrayShape(shape.element_type, ()), what, shape)
        assert isinstance(element, np.ndarray)
        return np.broadcast_to(element, shape.dimensions)
    return _literal(text, shape, what, shape)


def _literal(text: str, shape: Shape, what: str, whole: Shape) -> Value:
    # Imported late: reading text needs every grammar.
    from hloexec.language.text.lexer import END, Lexer
    from hloexec.language.text.literals import LiteralParser
    from hloexec.language.text.shapes import ShapeParser

    lexer = Lexer(text, what)
    try:
        found = LiteralParser(lexer, ShapeParser(lexer), strict=False).of_shape(shape)
        if lexer.kind != END:
            lexer.fail("expected the end of the value")
    except ParseError as error:
        advice = "give a literal, a number that fills it, or a file (.npy, .npz)"
        raise InputError(f"{what}, which is {whole}, cannot be {text!r}: {error.message}; {advice}") from error
    if found.is_elided:
        raise InputError(f"{what} must have all of its elements")
    return rebuilt(found, _elements, lambda leaf: leaf.value)


def _elements(literal: Literal) -> Sequence[Literal] | None:
    return literal.value if isinstance(literal.value, tuple) else None
